"""Requests that take some ms come from hundreds of connections at the same moment: others wait for only a
few of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from krappy.server.turns import SMALL
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, encode_request
from tests.kafka.raw import NEWEST, Raw
from tests.process import PATIENCE
from tests.rounds import HeldRounds

MANY = 500
MOST = 0.3  # seconds of a round; if each request began as it comes, a round would take twice this and more


def kafka(key: ApiKey, body: dict[str, object], version: int | None = None) -> bytes:
    made = encode_request(key, NEWEST[key] if version is None else version, 1, "x", body)
    assert len(made) <= SMALL
    return made


NAMES = [f"{number}" for number in range(520)]
PARTITIONS = [{"name": name, "partitions": [0]} for name in NAMES[:300]]
PRODUCER = {
    f"v3_and_below_{name}": value
    for name, value in (("transactional_id", "x"), ("producer_id", 1), ("producer_epoch", 0))
}
SHORT = [f"{number:x}" for number in range(100, 600)]
CROWDS = {
    "answered by a task": kafka(ApiKey.ADD_PARTITIONS_TO_TXN, {**PRODUCER, "v3_and_below_topics": PARTITIONS}, 3),
    "answered at once": kafka(
        ApiKey.DESCRIBE_LOG_DIRS, {"topics": [{"topic": name, "partitions": [0]} for name in NAMES[:360]]}
    ),
    "native": m.Metadata(NAMES * 2).frame(1),
    "a kilobyte, answered at once": kafka(ApiKey.METADATA, {"topics": [{"name": name} for name in SHORT[:190]]}, 0),
    "a kilobyte, answered by a task": kafka(ApiKey.FIND_COORDINATOR, {"coordinator_keys": SHORT[:200]}, 4),
}
LITTLE = {True: m.Ping().frame(1), False: kafka(ApiKey.API_VERSIONS, {}, 3)}  # for the native port, and Kafka's


@pytest.fixture(scope="module")
def rounds() -> HeldRounds:
    return HeldRounds()


@pytest.fixture(scope="module")
def broker(rounds: HeldRounds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker where nobody may do anything: each name is refused, and the refusal is noted."""
    folder, nobody = tmp_path_factory.mktemp("crowds"), {"authorizer": "acl", "super_users": "User:ada"}
    with run_broker(folder, durability="os", report=rounds.report, **nobody) as found:
        with Raw(found.kafka_address) as raw:
            raw.send_bytes(b"x" * 100)  # this is reported, so the measuring begins
            assert raw.closed()
        assert rounds.measured.is_set()
        yield found


@pytest.mark.parametrize("crowd", CROWDS)
def test_a_crowd_leaves_others_their_time(broker: RunningBroker, rounds: HeldRounds, crowd: str) -> None:
    host, _, port = (broker.address if crowd == "native" else broker.kafka_address).rpartition(":")
    with ExitStack() as opened:
        socks = [opened.enter_context(socket.create_connection((host, int(port)), PATIENCE)) for _ in range(MANY)]
        for sock in socks:  # whoever has asked for little does not wait for a turn
            sock.sendall(LITTLE[crowd == "native"])
            assert sock.recv(65536)
        rounds.longest = 0.0
        rounds.go.clear()
        for sock in socks:
            sock.sendall(CROWDS[crowd])
        rounds.go.set()
        for sock in socks:
            assert sock.recv(1)
    assert rounds.longest < MOST
