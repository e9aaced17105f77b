"""Keys, values and events in the pages: a live table, publishing, looking at an event as a whole, and
hostile values."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote

from playwright.sync_api import Page, Route, expect

from krappy.testing.running import RunningBroker
from tests.console.pages import NARROW, is_live, rows, run_command, visit
from tests.console.web import Web

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
DEEP = 10_000
LARGE = 1_000_000


def pick(page: Page, label: str, value: str) -> None:
    page.get_by_label(label, exact=True).select_option(value)


def test_a_table_follows_what_happens(page: Page, console: RunningBroker, web: Web) -> None:
    """Changes and tombstones are marked in their rows; what is new is counted, or comes behind the last row."""
    path = web.topic("followed")
    for at in range(5):
        web.publish(path, f"k{at}", "old")
    visit(page, console, "#/topics/followed/table")
    is_live(page)
    table = rows(page, "Table of followed")
    expect(table).to_have_count(5)
    link = table.nth(2).get_by_role("link", name="Whole value")
    link.focus()
    tops = "all => all.slice(0, 5).map((each) => each.getBoundingClientRect().top)"
    places = table.evaluate_all(tops)
    pause = page.get_by_role("button", name="Pause").bounding_box()
    web.publish(path, "k2", "changed")
    web.publish(path, "k3", None)
    expect(table.nth(2)).to_contain_text("changed")
    expect(table.nth(2)).to_have_class(re.compile("changed"))
    expect(table.nth(3)).to_contain_text("deleted")
    web.publish(path, "k1a", "between")
    web.publish(path, "k9", "behind")
    expect(table).to_have_count(6)
    expect(table.nth(5)).to_contain_text("k9")
    more = page.get_by_role("button", name="Show 1 new")
    expect(more).to_be_visible()
    expect(link).to_be_focused()
    assert table.evaluate_all(tops) == places
    assert page.get_by_role("button", name="Pause").bounding_box() == pause
    more.click()
    expect(table.nth(2)).to_contain_text("k1a")
    expect(table).to_have_count(7)


def test_a_paused_table_stands_still(page: Page, console: RunningBroker, web: Web) -> None:
    path = web.topic("halted")
    web.publish(path, "a", "one")
    visit(page, console, "#/topics/halted/table")
    is_live(page)
    page.get_by_role("button", name="Pause").click()
    web.publish(path, "a", "two")
    expect(page.get_by_role("status").filter(has_text=re.compile("Paused: about [0-9]+ event"))).to_be_visible()
    expect(rows(page, "Table of halted")).to_contain_text("one")
    page.get_by_role("button", name="Go on").click()
    expect(rows(page, "Table of halted")).to_contain_text("two")
    expect(rows(page, "Table of halted")).to_have_class(re.compile("changed"))
    is_live(page)
    web.publish(path, "a", "three")
    expect(rows(page, "Table of halted")).to_contain_text("three")


def test_times_of_other_years_and_none(page: Page, console: RunningBroker, web: Web) -> None:
    web.topic("dated")
    with console.connect() as client:
        client.alter_topic("dated", {"message.timestamp.after.max.ms": 2**63 - 1})
    with console.connect() as client, client.producer("dated") as producer:
        producer.send("v", key="a", timestamp=1_577_880_000_000).result()
        producer.send("v", key="b", timestamp=-1).result()
        producer.send("v", key="c", timestamp=253_402_387_200_000).result()
    for where, label in (("stream", "Events of dated"), ("table", "Table of dated")):
        visit(page, console, f"#/topics/dated/{where}")
        for key, told in (("a", r"^2020-01-0\d "), ("b", "^no time$"), ("c", r"^10000-01-0\d ")):
            found = rows(page, label).filter(has=page.get_by_text(key, exact=True))
            expect(found.locator("td.time")).to_have_text(re.compile(told))


def test_a_lookup_follows_its_key(page: Page, console: RunningBroker, web: Web) -> None:
    path = web.topic("sought", 3)
    visit(page, console, "#/topics/sought/table?key=late")
    answer = page.get_by_role("status", name="Lookup")
    expect(answer).to_contain_text("is not in the table")
    is_live(page)
    web.publish(path, "late", "here")
    expect(answer).to_contain_text("has a value")
    expect(answer).to_contain_text("here")


def test_a_table_is_paged_both_ways(page: Page, console: RunningBroker, web: Web) -> None:
    path = web.topic("paged", 2)
    for at in range(60):
        web.publish(path, f"k{at:02}", "v")
    visit(page, console, "#/topics/paged/table")
    table = rows(page, "Table of paged")
    expect(table).to_have_count(50)
    page.get_by_role("button", name="Next").click()
    expect(table).to_have_count(10)
    expect(table.first).to_contain_text("k50")
    expect(page.get_by_text("Page 2, the last")).to_be_visible()
    is_live(page)
    web.publish(path, "k55", "changed")
    expect(table.nth(5)).to_contain_text("changed")
    page.get_by_role("button", name="Previous").click()
    expect(table.first).to_contain_text("k00")


def test_an_empty_key_is_a_key(page: Page, console: RunningBroker, web: Web) -> None:
    """It is published, looked up, filtered by, and its history is shown. No key at all is something else."""
    web.topic("zero")
    visit(page, console, "#/topics/zero/publish")
    is_live(page)
    page.get_by_label("Value", exact=True).fill("of the empty key")
    page.get_by_role("button", name="Publish").click()
    expect(rows(page, "Events as they arrive")).to_have_count(1)
    page.get_by_label("With a key").uncheck()
    page.get_by_label("Value", exact=True).fill("of no key")
    page.get_by_role("button", name="Publish").click()
    arrived = rows(page, "Events as they arrive")
    expect(arrived).to_have_count(2)
    expect(arrived.nth(0)).to_contain_text("none")
    expect(arrived.nth(1)).to_contain_text("yours")

    visit(page, console, "#/topics/zero/table")
    expect(rows(page, "Table of zero")).to_have_count(1)
    expect(page.get_by_role("status", name="Lookup")).to_have_count(0)
    pick(page, "Key or prefix is", "empty")
    answer = page.get_by_role("status", name="Lookup")
    expect(answer).to_contain_text("has a value")
    command = answer.locator("code")
    assert run_command(command.inner_text()).strip() == "of the empty key"
    answer.get_by_role("link", name="Raw events").click()
    expect(page.get_by_text("1 event, the oldest first")).to_be_visible()
    expect(page.locator("tbody tr")).to_contain_text("of the empty key")
    page.get_by_role("link", name="Back to its value").click()
    expect(answer).to_contain_text("of the empty key")

    visit(page, console, "#/topics/zero/stream?start=earliest")
    events = rows(page, "Events of zero")
    expect(events).to_have_count(2)
    pick(page, "Key is", "empty")
    expect(events).to_have_count(1)
    expect(events).to_contain_text("of the empty key")


def test_keys_that_are_no_text(page: Page, console: RunningBroker, web: Web) -> None:
    path = web.topic("binary")
    web.publish(path, {"base64": "/wA="}, "found")
    visit(page, console, "#/topics/binary/table")
    pick(page, "Key or prefix is", "hex")
    page.get_by_label("Key or prefix", exact=True).fill("ff0")
    expect(page.get_by_role("alert")).to_contain_text("This is not hex")
    page.get_by_label("Key or prefix", exact=True).fill("ff 00")
    answer = page.get_by_role("status", name="Lookup")
    expect(answer).to_contain_text("has a value")
    assert run_command(answer.locator("code").inner_text()).strip() == "found"
    answer.get_by_role("link", name="Raw events").click()
    expect(page.locator("tbody tr")).to_contain_text("found")


def test_publishing_with_everything(page: Page, console: RunningBroker, web: Web) -> None:
    path = web.topic("form", 3)
    visit(page, console, "#/topics/form/publish")
    is_live(page)
    page.get_by_label("Key", exact=True).fill("6b")
    pick(page, "Key is", "hex")
    pick(page, "Value is", "json")
    page.get_by_label("Value", exact=True).fill('{"a": 1,}')
    page.get_by_role("button", name="Add a header").click()
    page.get_by_label("Name of header 1").fill("h")
    page.get_by_label("Value of header 1").fill("AP8=")
    pick(page, "Header 1 is", "base64")
    page.get_by_role("button", name="Add a header").click()
    page.get_by_role("button", name="Remove header 2").click()
    page.get_by_label("Partition", exact=True).fill("2")
    page.get_by_label("Time", exact=True).fill("2024-02-03T04:05:06.789")
    publish = page.get_by_role("button", name="Publish", exact=True)
    publish.click()
    expect(page.get_by_role("alert")).to_contain_text("is not JSON")
    text = '{"a": 12345678901234567890.10}'
    page.get_by_label("Value", exact=True).fill(text)
    publish.click()
    expect(rows(page, "Events as they arrive").filter(has_text="yours")).to_have_count(1)
    (event,) = web.get(f"{path}/events")["events"]
    at = page.evaluate("new Date('2024-02-03T04:05:06.789').getTime()")
    assert (event["key"]["data"], event["value"]["data"]) == ("k", text)
    assert (event["partition"], event["timestamp"]) == (2, at)
    assert event["headers"] == [{"name": "h", "value": {"as": "base64", "data": "AP8=", "size": 2}}]

    pick(page, "Publish if the key is", "absent")
    publish.click()
    expect(page.get_by_role("alert")).to_contain_text("at offset 0")
    page.get_by_role("button", name="Expect offset 0").click()
    expect(publish).to_be_focused()
    publish.click()
    expect(rows(page, "Events as they arrive").filter(has_text="yours")).to_have_count(2)
    page.get_by_label("Tombstone").check()
    page.get_by_label("Expected offset").fill("1")
    publish.click()
    expect(rows(page, "Events as they arrive").filter(has_text="tombstone")).to_have_count(1)
    publish.click()
    page.get_by_role("button", name="Expect it to be absent").click()
    expect(page.get_by_label("Publish if the key is")).to_have_value("absent")
    assert len(web.get(f"{path}/events")["events"]) == 3


def test_an_event_in_every_form(page: Page, console: RunningBroker, web: Web) -> None:
    path = web.topic("forms")
    text = '{"big": 12345678901234567890, "exact": 1.10}'
    web.publish(path, "it's; a $key", text, headers=[["h", "header's"]])
    web.publish(path, "-dash", {"base64": base64.b64encode(b"\x82\xa1a\x01\xa1b\xc4\x01\xff").decode()})
    visit(page, console, "#/topics/forms/events/0/0")
    value = page.get_by_role("region", name="Value")
    whole = value.locator("pre")
    expect(whole).to_contain_text('"big": 12345678901234567890,')
    expect(whole).to_contain_text('"exact": 1.10')
    value.get_by_role("button", name="Text", exact=True).click()
    expect(whole).to_have_text(text)
    value.get_by_role("button", name="Hex").click()
    expect(whole).to_contain_text("00000000  7b 22 62 69 67")
    expect(page.get_by_text("header's")).to_be_visible()
    event = json.loads(run_command(page.get_by_label("Read this event").inner_text()))
    assert (event["offset"], event["value"]) == (0, text)
    assert "12345678901234567890" in run_command(page.get_by_label("Read its key").inner_text())
    page.get_by_role("link", name="Offset 1 →").click()
    expect(whole).to_contain_text('"b": bin(ff)')
    run_command(page.get_by_label("Read its key").inner_text())


def test_a_command_is_not_shown_before_it_is_whole(page: Page, console: RunningBroker, web: Web) -> None:
    """Whoever copies the command at once would ask another broker, or none."""
    web.publish(web.topic("commanded"), "k", "v")
    held: list[Route] = []
    holding = True
    page.route("**/api/v1/cluster", lambda route: held.append(route) if holding else route.continue_())
    with page.expect_response(re.compile("/commanded/partitions/0/events/0")):
        visit(page, console, "#/topics/commanded/events/0/0")
    expect(page.get_by_label("Loading")).to_be_visible()
    expect(page.locator("code")).to_have_count(0)
    holding = False
    for route in held:
        route.continue_()
    [own, *_] = console.address.split(",")  # each broker of a cluster tells of itself
    expect(page.get_by_label("Read its key")).to_contain_text(f"--address {own} ")


def test_hostile_text_everywhere(page: Page, console: RunningBroker, web: Web) -> None:
    path = web.topic("evil")
    web.publish(path, HOSTILE, HOSTILE, headers=[[HOSTILE, HOSTILE]])
    web.publish(path, "bidi\u202ekey", "\u202etxt")
    with (
        console.connect() as client,
        client.consumer("evil", group=HOSTILE, dead_letter="evil.dead") as consumer,
        client.producer("evil", name=HOSTILE),
    ):
        consumer.ack(next(consumer), wait=True)
        for where in ("#/topics/evil/stream", "#/topics/evil/table", "#/topics/evil/events/0/0", "#/groups"):
            visit(page, console, where)
            expect(page.get_by_text("onerror").first).to_be_visible()
        page.get_by_role("link", name="onerror").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("onerror")
        expect(rows(page, "Positions")).to_have_count(1)
        visit(page, console, "#/connections")
        page.get_by_label("Protocol").select_option("native")
        page.locator("summary").first.click()
        expect(page.get_by_text("onerror").first).to_be_visible()
    visit(page, console, "#/topics/evil/events/0/1")
    expect(page.get_by_text("⟨U+202E⟩txt")).to_be_visible()
    assert "base64:" in page.get_by_label("Read its key").inner_text()
    assert page.evaluate("window.hacked") is None


def test_large_and_deep_values(page: Page, console: RunningBroker, web: Web) -> None:
    """Such values are cut, and can be shown as a whole; what is not looked at is not made."""
    path = web.topic("heavy")
    web.publish(path, "large", "x" * LARGE)
    web.publish(path, "deep", "[" * DEEP + "]" * DEEP)
    web.publish(path, "many", json.dumps([{"n": at} for at in range(LARGE // 16)]))
    web.publish(path, "broken", {"base64": base64.b64encode(b"ok\xff\xfe").decode()})
    page.set_viewport_size(NARROW)
    for offset, length in ((0, LARGE), (1, 2 * DEEP), (2, LARGE // 2)):
        visit(page, console, f"#/topics/heavy/events/0/{offset}")
        whole = page.get_by_role("region", name="Value").locator("pre")
        expect(page.get_by_text("Cut: this is the beginning")).to_be_visible()
        assert whole.evaluate("each => each.textContent.length") < 100_000
        page.get_by_role("button", name="Show all").click()
        expect(page.get_by_text("Cut: this is the beginning")).to_have_count(0)
        assert whole.evaluate("each => each.textContent.length") >= length
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    visit(page, console, "#/topics/heavy/events/0/3")
    page.get_by_role("button", name="Text", exact=True).click()
    expect(page.get_by_text("This is not UTF-8")).to_be_visible()


def test_fields_of_json_become_columns(page: Page, console: RunningBroker, web: Web) -> None:
    """Columns are chosen among those that are there, are kept in the address, and show every digit; in the stream and
    in the table."""
    path = web.topic("readings")
    web.publish(
        path, "s1", '{"id": 12345678901234567890, "at": {"room": "kitchen"}, "ok": true, "long": "' + "x" * 3000 + '"}'
    )
    web.publish(path, "s2", '{"id": 2, "at": {"room": "<b>hall</b>"}}')
    web.publish(path, "s3", "no JSON")
    for where, label in (("stream", "Events of readings"), ("table", "Table of readings")):
        visit(page, console, f"#/topics/readings/{where}")
        is_live(page)
        expect(rows(page, label)).to_have_count(3)
        page.get_by_text("Columns").click()
        picker = page.get_by_role("group", name="Fields to show as columns")
        picker.get_by_label("at.room").check()
        picker.get_by_label("id", exact=True).check()
        page.get_by_text("Columns (2)").click()
        region = page.get_by_role("region", name=label, exact=True)
        expect(region.get_by_role("columnheader", name="at.room")).to_be_visible()
        expect(region.get_by_role("columnheader", name="Value")).to_have_count(0)
        first = rows(page, label).filter(has_text="s1")
        expect(first.get_by_role("cell", name="kitchen")).to_be_visible()  # though the value itself is cut in a list
        expect(first.get_by_role("cell", name="12345678901234567890")).to_be_visible()
        expect(rows(page, label).filter(has_text="s2").get_by_role("cell", name="<b>hall</b>")).to_be_visible()
        expect(rows(page, label).filter(has_text="s3")).to_contain_text("no JSON")
        web.publish(path, "s2", '{"id": 3}')  # arrives live, and lacks a column
        expect(rows(page, label).filter(has_text="s2").first.get_by_role("cell", name="3", exact=True)).to_be_visible()
        page.reload()
        expect(page.get_by_role("columnheader", name="at.room")).to_be_visible()
        page.get_by_text("Columns (2)").click()
        page.get_by_role("group", name="Fields to show as columns").get_by_role("button", name="None").click()
        expect(page.get_by_role("columnheader", name="Value")).to_be_visible()
        web.publish(path, "s2", '{"id": 2, "at": {"room": "<b>hall</b>"}}')


def test_columns_that_somebody_typed_into_the_address(page: Page, console: RunningBroker, web: Web) -> None:
    web.publish(web.topic("typed"), "k", '{"__proto__": {"a": 1}, "b": 2}')
    for text in ("nonsense", "[1]", '[["constructor"]]', '[["__proto__","a"]]', "{}"):
        visit(page, console, f"#/topics/typed/stream?columns={quote(text)}")
        expect(rows(page, "Events of typed")).to_have_count(1)
