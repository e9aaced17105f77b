"""What one peer asks for must not make others wait: how long a ping takes beside the heaviest requests there are.

The bounds themselves are held without a clock, by tests/kafka/test_turns.py, tests/wire and tests/broker/test_large.py.
This holds what they are for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from krappy.records import batch, codecs
from krappy.records.codecs import snappy
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, encode_request
from tests.kafka.raw import Closed, Raw
from tests.long import LONG
from tests.peer import Peer
from tests.process import BrokerProcess, broker_process
from tests.test_hostile import raw_batch

pytestmark = pytest.mark.skipif(not LONG, reason="measures time: `make hostile` runs it (KRAPPY_LONG=1)")

MIB = 1 << 20
WORST = 0.25  # seconds that others may wait
MEMORY = 64 * MIB
ROOM = 256 * MIB  # what all of it may take: the budget, what is opened at a time, and what Python keeps of it


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("stalls") / "data"
    with broker_process(data, memory_bytes=MEMORY) as running:
        with Peer(running.address) as peer:
            peer.ask(m.CreateTopic("t", 200), m.TopicCreated)
            peer.ask(m.CreateTopic("large", 1), m.TopicCreated)
        yield running
        assert not running.events("internal_error"), running.last_words()


def quick(broker: BrokerProcess, attack: Callable[[], None]) -> None:
    """Pings while it is attacked; the slowest must be quick. What a busy machine adds differs from try to try, what the
    broker does not: the best of three counts."""
    tries: list[float] = []
    broker.reset_peak()
    before = broker.rss()
    while len(tries) < 3 and min(tries, default=WORST + 1) > WORST:
        tries.append(_slowest_ping(broker, attack))
    taken = (broker.peak_rss() - before) / MIB
    print(f"the slowest ping: {[round(each * 1000) for each in tries]} ms; {taken:.0f} MiB")  # noqa: T201
    assert min(tries) <= WORST
    assert broker.peak_rss() <= before + ROOM


def _slowest_ping(broker: BrokerProcess, attack: Callable[[], None]) -> float:
    worst, stop = 0.0, threading.Event()

    def ping() -> None:
        nonlocal worst
        with Peer(broker.address) as peer:
            while not stop.is_set():
                begun = time.perf_counter()
                peer.ask(m.Ping(), m.Pong)
                worst = max(worst, time.perf_counter() - begun)
                time.sleep(0.002)

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        attack()
    finally:
        stop.set()
        thread.join(60)
    return worst


ONE = batch.encode([b"k"], [b"v"], timestamps=1)
PARTITION = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
OFTEN: dict[str, tuple[ApiKey, int, dict[str, Any]]] = {
    "waiting Fetch": (
        ApiKey.FETCH,
        12,
        {"max_wait_ms": 3000, "min_bytes": 1 << 30, "max_bytes": 1, "session_epoch": -1,
         "topics": [{"topic": "t", "partitions": [PARTITION] * 20_000}]},
    ),
    "OffsetFetch": (ApiKey.OFFSET_FETCH, 8, {"groups": [{"group_id": "g", "topics": None}] * 20_000}),
    "DescribeGroups": (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"] * 20_000}),
    "many DescribeGroups": (ApiKey.DESCRIBE_GROUPS, 5, {"groups": [f"g{number}" for number in range(20_000)]}),
    "DescribeProducers": (ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "t", "partition_indexes": [0] * 20_000}]}),
    "ListOffsets": (
        ApiKey.LIST_OFFSETS,
        7,
        {"topics": [{"name": "t", "partitions": [{"partition_index": at, "timestamp": 0} for at in range(20_000)]}]},
    ),
    "Produce": (
        ApiKey.PRODUCE,
        9,
        {"acks": -1, "timeout_ms": 9000, "topic_data": [{"name": "t", "partition_data": [
            {"index": at % 250, "records": ONE} for at in range(20_000)]}]},
    ),
    "Metadata": (ApiKey.METADATA, 9, {"topics": [{"name": f"x{number}"} for number in range(20_000)]}),
}  # fmt: skip


@pytest.mark.parametrize("kind", OFTEN)
def test_requests_that_name_very_much(broker: BrokerProcess, kind: str) -> None:
    key, version, body = OFTEN[kind]
    data = encode_request(key, version, 1, "x", body)

    def attack() -> None:
        raws = [Raw(broker.kafka) for _ in range(3)]
        for raw in raws:
            raw.send_bytes(data)
        for raw in raws:
            raw.receive_frame()
            raw.close()

    quick(broker, attack)


def heads(count: int, each: int = 1) -> list[Any]:
    return [(("h", b"x"),) * each] * count


BATCHES: dict[str, Callable[[], bytes]] = {
    "zeros": lambda: batch.encode([b"k"] * 30, [bytes(MIB)] * 30, timestamps=1, codec=codecs.ZSTD),
    "headers": lambda: batch.encode(
        [b"k"] * 300_000, [b""] * 300_000, timestamps=1, codec=codecs.ZSTD, headers=heads(300_000)
    ),
    "one record's headers": lambda: batch.encode([b"k"], [b""], timestamps=1, headers=heads(1, 200_000)),
    "small records": lambda: batch.encode(
        [b"%d" % (number % 9) for number in range(80_000)], [b""] * 80_000, timestamps=list(range(80_000))
    ),
    "gzip members": lambda: raw_batch(codecs.compress(codecs.GZIP, b"") * 50_000, 1, codecs.GZIP),
    "lz4 frames": lambda: raw_batch(codecs.compress(codecs.LZ4, b"") * 60_000, 1, codecs.LZ4),
    "snappy blocks": lambda: raw_batch(snappy.HEADER + b"\0\0\0\1\0" * 200_000, 1, codecs.SNAPPY),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_batches_that_take_long_to_open(broker: BrokerProcess, kind: str) -> None:
    data = BATCHES[kind]()
    assert len(data) < 1_048_588

    def attack() -> None:
        with Peer(broker.address) as peer:
            handle = peer.producer("large").handle
            for id in peer.send(*[m.Batch(handle, 0, data)] * 3):
                assert peer.receive()[0] == id
            peer.get("large", b"k")  # its view has them

    quick(broker, attack)


def test_look_ups_by_time_in_large_batches(broker: BrokerProcess) -> None:
    data = batch.encode([b"k"] * 30, [bytes(MIB)] * 30, timestamps=list(range(1000, 1030)), codec=codecs.ZSTD)
    with Peer(broker.address) as peer:
        peer.ask(m.Batch(peer.producer("timed").handle, 0, data), m.BatchStored)
    asked = {"partition_index": 0, "timestamp": 1029, "current_leader_epoch": -1}
    ask = encode_request(ApiKey.LIST_OFFSETS, 7, 1, "x", {"topics": [{"name": "timed", "partitions": [asked]}]})

    def attack() -> None:
        raws = [Raw(broker.kafka) for _ in range(10)]
        for raw in raws:
            raw.send_bytes(ask * 20)
        for raw in raws:
            for _ in range(20):
                raw.receive_frame()
            raw.close()

    quick(broker, attack)


def test_more_than_a_request_may_name(broker: BrokerProcess) -> None:
    one = {"index": 0, "records": batch.encode([b"k"], [b"v"], timestamps=1)}
    body = {"acks": -1, "timeout_ms": 9000, "topic_data": [{"name": "t", "partition_data": [one] * 130_000}]}
    data = encode_request(ApiKey.PRODUCE, 9, 1, "x", body)

    def attack() -> None:
        with Raw(broker.kafka) as raw:
            raw.send_bytes(data)
            with pytest.raises((Closed, OSError)):
                raw.receive_frame()

    quick(broker, attack)
