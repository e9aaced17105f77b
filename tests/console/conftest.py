"""A broker with its console, an HTTP client over a real socket, and a browser for the console's pages."""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from krappy.testing.running import RunningBroker, run_broker
from tests.console.pages import ARGUMENTS, SLOW, WIDE
from tests.console.web import Web
from tests.served import BROKERS, serving


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One broker for all tests of a module, each of which uses topics and groups of its own; in a cluster it is the
    first broker."""
    folder: Path = tmp_path_factory.mktemp("console")
    settings: dict[str, Any] = {"group_initial_rebalance_delay_ms": 0}
    if BROKERS > 1:
        with serving(folder, **settings) as first:
            yield first
        return
    faults: list[Any] = []

    def report(event: str, **facts: Any) -> None:
        if event == "internal_error":
            faults.append(facts.get("exc_info"))
            if isinstance(faults[-1], BaseException):
                traceback.print_exception(faults[-1])

    with run_broker(folder, listen_http="127.0.0.1:0", durability="os", report=report, **settings) as broker:
        yield broker
    assert not faults, "the broker had an internal error"


@pytest.fixture
def web(console: RunningBroker) -> Iterator[Web]:
    with httpx.Client(base_url=f"http://{console.http_address}", timeout=60.0, trust_env=False) as client:
        yield Web(client)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and os.environ.get("CI") == "true":
        pytest.fail("CI needs a Chromium: apt-get install chromium")
    if found is None:
        pytest.skip("there is no Chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport=WIDE, color_scheme="light")
    made.set_default_timeout(SLOW)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that must log no errors and warnings in the browser's console."""
    complaints: list[str] = []
    made = context.new_page()
    made.on("console", lambda told: complaints.append(told.text) if told.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.set_default_timeout(SLOW)
    expect.set_options(timeout=SLOW)
    yield made
    # The browser logs answers with an error status by itself.
    assert [told for told in complaints if "the server responded with a status of 4" not in told] == []
