"""Clients that hold all the places of a broker keep no other broker away from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, start_registered
from tests.kafka.raw import Closed, Raw
from tests.process import free_ports, wait_until

PLACES = 12


class ApartProcesses(ClusterProcesses):
    """Brokers reach each other by a listener of their own, and so do tests."""

    def __init__(self, folder: Path, shared: SharedProcesses) -> None:
        super().__init__(folder, shared.zookeeper, 3, shared.launch, max_connections=PLACES)
        self.for_clients: dict[int, str] = {}
        for (id, broker), port in zip(self.brokers.items(), free_ports(3), strict=True):
            settings = broker.settings
            self.for_clients[id] = f"127.0.0.1:{port}"
            settings["listen_kafka"] = f"OWN://{settings['listen_kafka']},CLIENTS://{self.for_clients[id]}"
            settings["listener_security_protocol_map"] = "OWN:PLAINTEXT,CLIENTS:PLAINTEXT"

    def asked(self, id: int) -> Raw:
        own, _, _ = str(self.brokers[id].settings["listen_kafka"]).partition(",")
        return Raw(own.removeprefix("OWN://"))


@pytest.fixture
def apart(tmp_path: Path, shared_processes: SharedProcesses) -> Iterator[ApartProcesses]:
    """Two of three brokers run."""
    made = ApartProcesses(tmp_path, shared_processes)
    try:
        for id in (1, 2):
            start_registered(made.brokers[id])
        yield made
    finally:
        made.kill()


def test_a_broker_joins_although_clients_hold_all_places(apart: ApartProcesses) -> None:
    with ExitStack() as clients:

        def is_full(id: int) -> bool:
            client = clients.enter_context(Raw(apart.for_clients[id]))
            try:
                client.ask(ApiKey.METADATA, {"topics": []})
            except Closed:
                return True
            return False

        for id in apart.running:
            wait_until(partial(is_full, id), f"a client is refused by broker {id}")
        start_registered(apart.brokers[3])
        apart.until_known()
        topic = {"name": "t", "num_partitions": 3, "replication_factor": 3, "assignments": [], "configs": []}
        with apart.asked(3) as raw:
            [made] = raw.ask(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout_ms": 30_000}, 7)["topics"]
        assert not made["error_code"], made
        apart.until_in_sync("t")
        assert {each.leader for each in apart.partitions("t").values()} == {1, 2, 3}
        assert is_full(1), "clients have no more places than before"
