"""Topics, settings, partitions, groups and logging in, by the pages; and long lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from playwright.sync_api import Page, expect

from krappy import client
from krappy.testing.running import RunningBroker, run_broker
from krappy.types import TopicPartition
from tests.console.pages import rows, visit
from tests.console.web import Web
from tests.long import LONG

MANY = 10_000 if LONG else 120  # topics; the pages show fifty at a time either way
TOKEN = "a token for the console's tests"


def test_a_topic_is_created_changed_and_grown(page: Page, console: RunningBroker, web: Web) -> None:
    visit(page, console, "#/topics")
    page.get_by_role("button", name=re.compile("^Create")).first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Name")).to_be_focused()
    dialog.get_by_label("Name").fill("no spaces allowed")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    dialog.get_by_label("Name").fill("made")
    dialog.get_by_label("Partitions").fill("2")
    dialog.get_by_label("Cleanup").select_option("compact")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1, name="made")).to_be_visible()

    visit(page, console, "#/topics/made/settings")
    settings = rows(page, "Settings")
    expect(settings.first).to_contain_text("set here")
    page.get_by_label("Filter settings").fill("retention.ms")
    page.get_by_role("button", name="Change retention.ms", exact=True).click()
    dialog.get_by_label("retention.ms").fill("soon")
    dialog.get_by_role("button", name="Change", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("retention.ms")
    dialog.get_by_label("retention.ms").fill("60000")
    dialog.get_by_role("button", name="Change", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Change retention.ms", exact=True)).to_be_focused()
    expect(settings.filter(has_text="60000").first).to_contain_text("set here")
    assert web.get("/topics/made")["config"]["retention.ms"] == "60000"
    page.get_by_role("button", name="Change retention.ms", exact=True).click()
    dialog.get_by_role("button", name="Back to the default").click()
    expect(dialog).to_have_count(0)
    assert "retention.ms" not in web.get("/topics/made")["config"]

    page.get_by_role("button", name="Add partitions").click()
    dialog.get_by_label("Partitions").fill("5")
    dialog.get_by_role("button", name="Add").click()
    page.get_by_role("link", name="Partitions").click()
    expect(rows(page, "Partitions")).to_have_count(5)


def test_events_are_deleted_by_the_name(page: Page, console: RunningBroker, web: Web) -> None:
    path = web.topic("forgotten")
    web.publish(path, "a", "v")
    visit(page, console, "#/topics/forgotten/settings")
    page.get_by_role("button", name="Delete events").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To confirm").fill("forgotte")
    expect(dialog.get_by_role("button", name="Delete all events")).to_be_disabled()
    dialog.get_by_label("To confirm").fill("forgotten")
    dialog.get_by_role("button", name="Delete all events").click()
    expect(dialog).to_have_count(0)
    assert web.get(path)["partitions"][0]["start"] == 1


def test_a_group_with_a_member(page: Page, console: RunningBroker, web: Web) -> None:
    path = web.topic("shared", 2)
    for at in range(4):
        web.publish(path, f"k{at}", "v", partition=at % 2)
    with console.connect() as connected:
        with connected.consumer("shared", group="team", lease_ms=600_000) as consumer:
            next(consumer)
            visit(page, console, "#/groups/team")
            members = rows(page, "Members")
            expect(members).to_have_count(1)
            members.locator("summary").click()
            expect(members).to_contain_text(re.compile("offsets? 0.*until"))
            expect(page.get_by_role("img", name=re.compile("^Lag by partition: shared-0 [0-9]"))).to_be_visible()
            page.get_by_role("button", name="Reset…").click()
            expect(page.get_by_role("dialog")).to_contain_text("The group has members")
            page.get_by_label("Go on from").select_option("offset")
            page.get_by_label("Offset").fill("1")
            page.get_by_role("button", name="Preview").click()
            expect(rows(page, "What changes").first).to_contain_text("skipped")
            page.get_by_role("button", name=re.compile("^Move")).click()
            expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()  # the member has not left
            page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("No members now.")).to_be_visible()
    page.get_by_role("button", name="Delete group").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To confirm").fill("team")
    dialog.get_by_role("button", name="Delete group").click()
    expect(page).to_have_url(re.compile("#/groups$"))
    assert web.get("/groups", filter="team")["total"] == 0


def test_what_does_not_exist_offers_nothing_to_do_with_it(page: Page, console: RunningBroker, web: Web) -> None:
    for what, where in (("group", "#/groups/nobody"), ("topic", "#/topics/nowhere/stream")):
        visit(page, console, where)
        expect(page.get_by_text(f"There is no {what} of this name.")).to_be_visible()
        expect(page.get_by_role("main").get_by_role("button")).to_have_count(0)
        page.get_by_role("link", name=f"All {what}s").click()
        expect(page).to_have_url(re.compile(f"#/{what}s$"))
    web.topic("brief")
    visit(page, console, "#/topics/brief/publish")
    publish = page.get_by_role("main").get_by_role("button", name="Publish")
    expect(publish).to_be_visible()
    with console.connect() as connected:
        connected.delete_topic("brief")
    expect(page.get_by_text("There is no topic of this name.")).to_be_visible()
    expect(publish).to_have_count(0)


def test_logging_in_and_out(page: Page, tmp_path: Path) -> None:
    with run_broker(tmp_path, listen_http="127.0.0.1:0", durability="os", console_token=TOKEN) as broker:
        visit(page, broker, "#/topics")
        field = page.get_by_label("Password or token")
        field.fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not the console's token")
        field.fill(TOKEN)
        field.press("Enter")
        expect(page.get_by_text("No topics yet.")).to_be_visible()
        page.reload()
        expect(page.get_by_text("No topics yet.")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        expect(field).to_be_visible()
        page.reload()
        expect(field).to_be_visible()


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    async def make(address: str) -> None:
        async with client.connect(address) as connected, trio.open_nursery() as nursery:

            async def some(first: int) -> None:
                for at in range(first, MANY, 20):
                    await connected.create_topic(f"topic-{at:05}")

            for first in range(20):
                nursery.start_soon(some, first)

    with run_broker(tmp_path_factory.mktemp("crowded"), listen_http="127.0.0.1:0", durability="os") as broker:
        trio.run(make, broker.address)
        with broker.connect() as connected:
            for at in range(MANY):
                connected.commit(f"group-{at:05}", {TopicPartition("topic-00000", 0): 0})
        yield broker


def test_many_topics_and_groups(page: Page, crowded: RunningBroker) -> None:
    """One page of them is drawn, however many there are; the broker filters."""
    for place, what in (("topics", "topic"), ("groups", "group")):
        visit(page, crowded, f"#/{place}")
        table = rows(page, place.capitalize())
        expect(table).to_have_count(50)
        expect(page.get_by_text(f"{MANY:,} {what}s")).to_be_visible()
        assert page.evaluate("document.querySelectorAll('*').length") < 2000
        page.get_by_role("button", name="Next").click()
        expect(table.first).to_contain_text(f"{what}-00050")
        page.get_by_role("button", name="Previous").click()
        expect(table.first).to_contain_text(f"{what}-00000")
        page.keyboard.press("/")
        page.keyboard.type(f"{MANY - 1:05}")
        expect(table).to_have_count(1)
    visit(page, crowded, "")
    expect(page.locator(".fact").filter(has_text="Topics")).to_contain_text(f"{MANY:,}")
