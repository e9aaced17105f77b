"""One broker for all tests of a module. Each test uses users, client ids and topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from krappy.testing.running import RunningBroker, run_broker
from tests.quotas.quotas import Quotas


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    faults = []

    def report(event: str, **facts: object) -> None:
        if event == "internal_error":
            faults.append(facts)

    data = tmp_path_factory.mktemp("quotas") / "data"
    with run_broker(data, durability="os", listen_http="127.0.0.1:0", report=report) as found:
        yield found
    assert not faults


@pytest.fixture
def quotas(broker: RunningBroker) -> Iterator[Quotas]:
    with Quotas(broker.kafka_address) as found:
        yield found
