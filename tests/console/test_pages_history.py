"""The charts begin with what the broker has kept, in a browser that has just been opened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from krappy.console import history as history_module
from krappy.testing.running import RunningBroker, run_broker
from krappy.types import TopicPartition
from tests.console.pages import visit
from tests.process import wait_until


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that has kept some points, of a group that lags, before a page is opened."""
    folder: Path = tmp_path_factory.mktemp("past")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_module, "EVERY_SECONDS", 0.1)
        with run_broker(folder, listen_http="127.0.0.1:0", durability="os") as broker:
            with broker.connect() as client, client.producer("t") as producer:
                for number in range(3):
                    producer.send("v", key=f"k{number}").result()
                client.commit("behind", {TopicPartition("t", 0): 1})
            kept = f"http://{broker.http_address}/api/v1/history/groups?group=behind"

            def points() -> int:
                """How many points there are of the group, which did not exist at first."""
                series = [each["lags"] for each in httpx.get(kept, trust_env=False, timeout=60).json()["groups"]]
                return sum(lag is not None for lags in series for lag in lags)

            wait_until(lambda: points() > 20, "some points are kept")
            patch.setattr(history_module, "EVERY_SECONDS", 3600.0)
            yield broker


def drawn(page: Page, label: str) -> int:
    """How many points the first line of a chart has."""
    path = page.get_by_role("img", name=re.compile(label)).locator("path.line").first.get_attribute("d")
    return len(re.findall("[ML]", path or ""))


def test_the_overview_begins_with_the_past(page: Page, past: RunningBroker) -> None:
    visit(page, past, "")
    expect(page.get_by_role("img", name=re.compile("^Lag: groups 2, "))).to_be_visible()
    wait_until(lambda: drawn(page, "^Lag: ") > 20, "the points of before are drawn")
    page.get_by_role("button", name="1 h").click()
    expect(page.get_by_text(re.compile(r"^[0-9]+ s ago$")).first).to_be_visible()  # no wider than the data
    page.get_by_role("link", name="Topics").first.click()
    page.get_by_role("link", name="Overview").first.click()
    expect(page.get_by_role("button", name="1 h")).to_have_attribute("aria-pressed", "true")


def test_a_group_begins_with_the_past(page: Page, past: RunningBroker) -> None:
    visit(page, past, "#/groups/behind")
    expect(page.get_by_role("img", name="Lag: events behind 2")).to_be_visible()
    wait_until(lambda: drawn(page, "^Lag: events behind") > 20, "the points of before are drawn")
