"""A broker with its console, and a client that speaks HTTP to it over a real socket."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from krappy.testing.running import RunningBroker, run_broker
from tests.console.web import Web


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One for all tests of a module, which use topics and groups of their own."""
    folder: Path = tmp_path_factory.mktemp("console")
    faults: list[Any] = []

    def report(event: str, **facts: Any) -> None:
        if event == "internal_error":
            faults.append(facts.get("exc_info"))
            if isinstance(faults[-1], BaseException):
                traceback.print_exception(faults[-1])

    with run_broker(folder, listen_http="127.0.0.1:0", durability="os", report=report) as broker:
        yield broker
    assert not faults, "the broker failed inside"


@pytest.fixture
def web(console: RunningBroker) -> Iterator[Web]:
    with httpx.Client(base_url=f"http://{console.http_address}", timeout=60.0, trust_env=False) as client:
        yield Web(client)
