"""What the tests of the console's pages share: a browser's arguments, and how a page is visited and read."""

from __future__ import annotations

import re
import shlex
from typing import Any

from playwright.sync_api import Locator, Page, expect

from krappy.testing.running import RunningBroker
from tests.process import krappy

SLOW = 60_000  # ms: a busy machine is no fault of the page
# Features of Chromium that are turned off. The pages that its address bar opens in each window, although nobody sees
# them, took a third of the CPU time of these tests. Chromium uses only the last such list, so Playwright's list is
# here, too.
UNWANTED = (
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    "AimEnabled",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    f"--disable-features={','.join(UNWANTED)}",
]
WIDE: Any = {"width": 1280, "height": 800}
NARROW: Any = {"width": 360, "height": 740}


def visit(page: Page, broker: RunningBroker, where: str) -> None:
    page.goto(f"http://{broker.http_address}/{where}")


def rows(page: Page, label: str) -> Locator:
    return page.get_by_role("region", name=label, exact=True).locator("tbody tr")


def is_live(page: Page) -> None:
    """Returns once a live view has begun."""
    expect(page.get_by_role("status").filter(has_text=re.compile("^Live"))).to_be_visible()


def run_command(text: str) -> str:
    """What a command prints that was copied from a page. It is run as a shell would run it."""
    program, *arguments = shlex.split(text)
    assert program == "krappy"
    done = krappy(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()
