"""A broker process for each test file, and a bare connection to it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import process
from tests.kafka.raw import Raw
from tests.process import BrokerProcess, Launcher, broker_process


@pytest.fixture(scope="session")
def launcher() -> Launcher:
    return process.launcher()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Iterator[BrokerProcess]:
    """A broker that must stop cleanly at the end, and must have logged no internal error."""
    data = tmp_path_factory.mktemp("kafka") / "data"
    with broker_process(data, launch=launcher, durability="os") as running:
        yield running
        assert not running.events("internal_error"), running.last_words()
        assert running.stop() == 0


@pytest.fixture
def raw(broker: BrokerProcess) -> Iterator[Raw]:
    with Raw(broker.kafka) as found:
        yield found
