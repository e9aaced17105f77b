"""A broker for each test, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.testing.running import RunningBroker, run_broker
from tests.handlers.raw import Raw


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with run_broker(tmp_path / "data", durability="os") as running:
        yield running


@pytest.fixture
def raw(broker: RunningBroker) -> Iterator[Raw]:
    with Raw(broker.address) as client:
        yield client
