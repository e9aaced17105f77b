"""The console's pages in a real browser, against a real broker with flights in it."""

from __future__ import annotations

import json
import os
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from krappy import blocking
from krappy.demos import flights
from krappy.testing.running import RunningBroker
from tests.console.pages import NARROW, SLOW, WIDE, rows, visit
from tests.long import some

FLIGHTS = 3_000
SHOTS = os.environ.get("KRAPPY_SCREENSHOTS")  # a folder to write pictures of the main pages to
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


@pytest.fixture(scope="module")
def loaded(console: RunningBroker) -> RunningBroker:
    """Flights by aircraft, a group that has read a little, and hostile values."""
    names, *rows = islice(flights.rows(flights.find_file()), FLIGHTS + 1)
    keys = [row[names.index("tailnum")] or "none" for row in rows]
    with blocking.connect(console.address) as client:
        client.create_topic("flights", partitions=3)
        client.create_topic("hostile")
        with client.producer("flights") as producer:
            producer.send_columns(keys, [json.dumps(dict(zip(names, row, strict=True))) for row in rows])
            producer.send(None, key="N00000").result()
        with client.producer("hostile") as producer:
            producer.send(HOSTILE, key=HOSTILE, headers=[(HOSTILE, HOSTILE.encode())]).result()
            producer.send(b"\xff\xfe\x00", key=b"\xff\x00").result()
            producer.send("x" * 1_000_000, key="large").result()
        with client.consumer("flights", group="mail") as consumer:
            consumer.ack(next(consumer))
    return console


def test_the_overview(page: Page, loaded: RunningBroker) -> None:
    visit(page, loaded, "")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    for name in ("Events in", "Group lag", "Disk", "Memory"):
        expect(page.locator("dt", has_text=re.compile(f"^{name}$"))).to_be_visible()
    expect(page.get_by_role("region", name="Requests").locator("tbody tr").first).to_be_visible()
    for place in ("Topics", "Groups", "Cluster", "Connections"):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=place).click()
        expect(page.get_by_role("heading", level=1, name=place)).to_be_visible()


def test_a_published_event_is_seen_in_the_tail(page: Page, loaded: RunningBroker, context: BrowserContext) -> None:
    """By the form's own view of what arrives, and by a tail that was already open in another tab."""
    visit(page, loaded, "#/topics/flights/stream")
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    form = context.new_page()
    visit(form, loaded, "#/topics/flights/publish")
    expect(form.get_by_role("status").filter(has_text="Live")).to_be_visible()
    form.get_by_label("Key", exact=True).fill("fresh")
    form.get_by_label("Value", exact=True).fill('{"seen": "in the tail"}')
    form.get_by_role("button", name="Publish").click()
    expect(rows(form, "Events as they arrive").filter(has_text="in the tail")).to_be_visible()
    expect(rows(page, "Events of flights").filter(has_text="in the tail")).to_be_visible()
    form.close()


def test_an_expectation_that_does_not_hold_is_told(page: Page, loaded: RunningBroker) -> None:
    visit(page, loaded, "#/topics/flights/publish")
    page.get_by_label("Key", exact=True).fill("N14228")
    page.get_by_label("Value", exact=True).fill("never")
    page.get_by_label("Publish if the key is").select_option("absent")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("alert")).to_contain_text("is at offset")


def test_a_key_is_looked_up_and_its_history_shown(page: Page, loaded: RunningBroker) -> None:
    visit(page, loaded, "#/topics/flights/table")
    expect(rows(page, "Table of flights").first).to_be_visible()
    page.get_by_label("Key or prefix", exact=True).fill("N14228")
    answer = page.get_by_role("status", name="Lookup")
    expect(answer).to_contain_text("has a value")
    answer.get_by_role("link", name="Raw events behind this value").click()
    expect(page.locator("tbody tr").filter(has_text="N14228").first).to_be_visible()


def test_a_prefix_and_a_tombstone(page: Page, loaded: RunningBroker) -> None:
    visit(page, loaded, "#/topics/flights/table")
    page.get_by_label("Key or prefix", exact=True).fill("N00")
    expect(rows(page, "Table of flights")).to_have_count(1)
    expect(rows(page, "Table of flights")).to_contain_text("N00000")
    page.get_by_label("Key or prefix", exact=True).fill("N00000")
    expect(page.get_by_role("status", name="Lookup")).to_contain_text("was deleted")
    page.get_by_label("Key or prefix", exact=True).fill("nobody")
    expect(page.get_by_role("status", name="Lookup")).to_contain_text("is not in the table")


def test_an_event_whole(page: Page, loaded: RunningBroker) -> None:
    visit(page, loaded, "#/topics/flights/events/0/0")
    expect(page.get_by_text('"tailnum"')).to_be_visible()
    expect(page.get_by_text("krappy consume")).to_be_visible()


def test_a_group_is_reset_after_a_preview(page: Page, loaded: RunningBroker) -> None:
    visit(page, loaded, "#/groups/mail")
    expect(rows(page, "Positions")).to_have_count(3)
    page.get_by_role("button", name="Reset…").click()
    page.get_by_label("Go on from").select_option("latest")
    page.get_by_role("button", name="Preview").click()
    expect(rows(page, "What changes").first).to_contain_text("skipped")
    with blocking.connect(loaded.address) as client:
        assert client.group("mail").lag > 0  # nothing has happened yet
    page.get_by_role("button", name=re.compile("^Move")).click()
    expect(page.get_by_role("status").filter(has_text="Moved")).to_be_visible()
    with blocking.connect(loaded.address) as client:
        assert client.group("mail").lag == 0


def test_connections_say_who_they_are(page: Page, loaded: RunningBroker) -> None:
    with blocking.connect(loaded.address) as client, client.producer("flights", name="loader"):
        visit(page, loaded, "#/connections")
        expect(page.locator("tbody tr").filter(has_text="native").first).to_be_visible()


def test_a_topic_is_deleted_by_its_name_alone(page: Page, loaded: RunningBroker) -> None:
    with blocking.connect(loaded.address) as client:
        client.create_topic("doomed")
    visit(page, loaded, "#/topics/doomed/settings")
    page.get_by_role("button", name="Delete topic").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    dialog.get_by_label("To confirm").fill("doomed")
    dialog.get_by_role("button", name="Delete").click()
    expect(page).to_have_url(re.compile("#/topics$"))
    with blocking.connect(loaded.address) as client:
        assert "doomed" not in [topic.name for topic in client.topics()]


def test_hostile_values_stay_text(page: Page, loaded: RunningBroker) -> None:
    for where in ("stream", "table"):
        visit(page, loaded, f"#/topics/hostile/{where}")
        expect(page.get_by_text("onerror").first).to_be_visible()
        assert page.evaluate("window.hacked") is None
    for offset in range(3):
        visit(page, loaded, f"#/topics/hostile/events/0/{offset}")
        expect(page.get_by_text("Offset", exact=True).first).to_be_visible()
    assert page.evaluate("window.hacked") is None


PAGES = [
    "",
    "#/topics",
    "#/topics/flights/stream",
    "#/topics/flights/table",
    "#/topics/flights/publish",
    "#/groups/mail",
    "#/topics/flights/table?key=N14228",
    "#/topics/flights/history?key=N14228",
    "#/topics/flights/partitions",
    "#/topics/flights/settings",
    "#/topics/flights/events/0/0",
    "#/topics/hostile/stream",
    "#/groups",
    "#/connections",
]
PICTURED = PAGES[:6]


@pytest.mark.parametrize("scheme", some(["light", "dark"], 2))
def test_everybody_can_use_them(browser: Browser, loaded: RunningBroker, scheme: Any) -> None:
    """axe-core finds nothing serious. If pictures for the README are asked for, they are made on the way."""
    made = browser.new_context(viewport=WIDE, color_scheme=scheme)
    opened = made.new_page()
    opened.set_default_timeout(SLOW)
    grounds = set()
    for where in PAGES:
        visit(opened, loaded, where)
        opened.locator("h1").first.wait_for()
        opened.locator("[aria-busy=true]").first.wait_for(state="detached")
        grounds.add(opened.evaluate("getComputedStyle(document.body).backgroundColor"))
        found = Axe().run(opened).response["violations"]
        serious = [
            (each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], where
        if SHOTS and where in PICTURED:
            name = where.removeprefix("#/").replace("/", "-") or "overview"
            opened.screenshot(path=Path(SHOTS) / f"{name}-{scheme}.png")
    assert len(grounds) == 1
    [ground] = grounds
    level = sum(map(int, re.findall(r"\d+", ground)[:3]))
    assert (level < 200) == (scheme == "dark")
    made.close()


def test_a_narrow_screen_needs_no_sideways_scrolling(browser: Browser, loaded: RunningBroker) -> None:
    made = browser.new_context(viewport=NARROW)
    opened = made.new_page()
    opened.set_default_timeout(SLOW)
    for where in PAGES:
        visit(opened, loaded, where)
        opened.locator("h1").first.wait_for()
        opened.locator("[aria-busy=true]").first.wait_for(state="detached")
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), where
    made.close()


def test_by_keyboard(page: Page, loaded: RunningBroker) -> None:
    visit(page, loaded, "")
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.type("flig")
    expect(page.get_by_role("link", name="flights")).to_be_visible()
