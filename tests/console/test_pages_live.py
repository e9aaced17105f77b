"""The stream of a topic: jumping, filtering, pausing, skipping, pages both ways; and all of it by keyboard."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from krappy.testing.running import RunningBroker
from tests.console.pages import is_live, rows, visit
from tests.console.web import Web

EVENTS = 250


@pytest.fixture(scope="module")
def numbered(console: RunningBroker) -> RunningBroker:
    """Events v0, v1, … whose times are a second apart, since 2020; every tenth has the key "ten"."""
    with console.connect() as client:
        client.create_topic("numbered")
        with client.producer("numbered") as producer:
            for at in range(EVENTS):
                time = 1_577_836_800_000 + at * 1000
                producer.send(f"v{at} ", key="ten" if at % 10 == 0 else f"k{at}", timestamp=time)
    return console


def test_jumping_and_going_on(page: Page, numbered: RunningBroker) -> None:
    visit(page, numbered, "#/topics/numbered/stream")
    is_live(page)
    events = rows(page, "Events of numbered")
    expect(events).to_have_count(100)
    expect(events.first).to_contain_text("v249")
    page.get_by_role("button", name="Older events").click()
    expect(events).to_have_count(200)
    expect(events.last).to_contain_text("v50 ")
    page.get_by_label("Show").select_option("offset")
    page.get_by_label("Offset").fill("120")
    page.get_by_role("button", name="Jump").click()
    expect(events.first).to_contain_text("v120")
    expect(events).to_have_count(100)
    page.get_by_role("button", name="Earlier events").click()
    expect(events.first).to_contain_text("v20 ")
    page.get_by_role("button", name="Later events").click()
    expect(events.last).to_contain_text("v249")
    expect(page.get_by_text("This is the end of the log.")).to_be_visible()
    page.get_by_label("Show").select_option("timestamp")
    page.get_by_label("Time", exact=True).fill(
        page.evaluate("""() => {
            const at = new Date(1577836830000 - new Date(1577836830000).getTimezoneOffset() * 60000);
            return at.toISOString().slice(0, 19);
        }""")
    )
    page.get_by_role("button", name="Jump").click()
    expect(events.first).to_contain_text("v30 ")
    page.get_by_role("button", name="Back to live").click()
    expect(events.first).to_contain_text("v249")


def test_filters(page: Page, numbered: RunningBroker) -> None:
    visit(page, numbered, "#/topics/numbered/stream?start=earliest")
    events = rows(page, "Events of numbered")
    page.get_by_label("Key", exact=True).fill("ten")
    expect(events).to_have_count(EVENTS // 10)
    page.get_by_label("Text", exact=True).fill("v20 ")
    expect(events).to_have_count(1)
    page.get_by_label("Key", exact=True).fill("")
    page.get_by_label("Text", exact=True).fill("no such")
    expect(page.get_by_text("Nothing matches yet.")).to_be_visible()


def test_pausing_and_skipping(page: Page, console: RunningBroker, web: Web) -> None:
    path = web.topic("busy")
    visit(page, console, "#/topics/busy/stream")
    is_live(page)
    web.publish(path, "a", "first")
    events = rows(page, "Events of busy")
    expect(events).to_have_count(1)
    page.get_by_role("link", name="Event 0").focus()
    web.publish(path, "a", "second")
    expect(events).to_have_count(2)
    expect(page.get_by_role("link", name="Event 0")).to_be_focused()
    page.get_by_role("button", name="Pause").click()
    web.publish(path, "a", "third")
    expect(page.get_by_role("status").filter(has_text=re.compile("Paused: about [0-9]+ more"))).to_be_visible()
    expect(events).to_have_count(2)
    page.get_by_role("button", name="Go on").click()
    expect(events.first).to_contain_text("third")
    with console.connect() as client, client.producer("busy") as producer:
        producer.send_columns(["k"] * 5000, ["v"] * 5000)
    expect(events.filter(has_text="more came than can be shown").first).to_be_visible()
    expect(page.locator(".status-bar").filter(has_text=re.compile(r"events skipped"))).to_be_visible()


@pytest.mark.parametrize("kind", ["stream", "table"])
def test_nothing_is_heard_once_it_is_paused(page: Page, console: RunningBroker, web: Web, kind: str) -> None:
    web.topic(f"heard-{kind}")
    page.add_init_script("""
        window.heard = [];
        window.EventSource = class extends EventSource {
            constructor(...given) {
                super(...given);
                window.heard.push(this);
            }
        };
    """)
    visit(page, console, f"#/topics/heard-{kind}/{kind}")
    is_live(page)
    # The next task of the page: by then an event may have come, but no frame is drawn yet.
    open_after = page.get_by_role("button", name="Pause").evaluate("""async (button) => {
        button.click();
        await new Promise((done) => setTimeout(done));
        return window.heard.filter((each) => each.readyState !== EventSource.CLOSED).length;
    }""")
    assert open_after == 0


def test_a_row_and_a_chart_by_keyboard(page: Page, numbered: RunningBroker) -> None:
    visit(page, numbered, "#/topics/numbered/stream?start=earliest")
    first = page.get_by_role("link", name="Event 0 of partition 0", exact=True)
    first.focus()
    outline = first.evaluate("each => getComputedStyle(each).outlineStyle")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Event 1 of partition 0", exact=True)).to_be_focused()
    assert (
        page.get_by_role("link", name="Event 1 of partition 0", exact=True).evaluate(
            "each => getComputedStyle(each).outlineStyle"
        )
        != "none"
    )
    assert outline is not None
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("v1")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("link", name="Event 1 of partition 0", exact=True)).to_be_focused()
    visit(page, numbered, "")
    chart = page.get_by_role("img", name=re.compile("^Memory: process [0-9]"))
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(chart).to_be_focused()


def test_nothing_moves_for_who_wants_that(page: Page, numbered: RunningBroker) -> None:
    page.emulate_media(reduced_motion="reduce")
    visit(page, numbered, "#/topics/numbered/stream")
    is_live(page)
    assert page.evaluate("document.getAnimations().length") == 0
