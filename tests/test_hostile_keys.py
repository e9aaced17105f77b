"""Whoever sends keys that take long to hash makes nobody else wait: no round of the event loop takes long.

A round is measured in processor time, so a busy machine changes little.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import httpx
import pytest
import trio

from krappy import arrow_layout
from krappy.broker.partition import pending, strays
from krappy.broker.partition.hashing import STEP, look_for_strays
from krappy.broker.partition.strays import ViewStrays
from krappy.partitioner import murmur2
from krappy.records import batch, codecs
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from krappy.wire.messages import Request
from tests.kafka.raw import Raw
from tests.peer import Peer
from tests.process import wait_until
from tests.rounds import Rounds

WORST = 0.25  # seconds of a round
MIB = 1 << 20
LONG = MIB - 4096  # bytes of a key that is hashed; its record is as large as an event over HTTP, or a Message, may be


class Victim:
    def __init__(self, broker: RunningBroker, rounds: Rounds) -> None:
        self.broker, self.rounds = broker, rounds

    def make(self, topic: str) -> None:
        """A topic of two partitions."""
        with Peer(self.broker.address) as peer:
            peer.ask(m.CreateTopic(topic, 2, {"max.message.bytes": 32 * MIB}), m.TopicCreated)

    def quick(self, attack: Callable[[Peer], object]) -> None:
        with Peer(self.broker.address) as peer:
            peer.ask(m.Ping(), m.Pong)
            self.rounds.longest = 0.0
            attack(peer)
            peer.ask(m.Ping(), m.Pong)
        print(f"the longest round: {self.rounds.longest * 1000:.0f} ms")  # noqa: T201
        assert self.rounds.longest <= WORST


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    rounds = Rounds()
    folder = tmp_path_factory.mktemp("keys")
    with run_broker(folder, listen_http="127.0.0.1:0", report=rounds.report) as broker:
        assert broker.address
        with broker.connect() as client:
            client.create_topic("first")
        assert rounds.measured.wait(60)
        yield Victim(broker, rounds)


def at_home(size: int, count: int, index: int = 0) -> list[bytes]:
    """`count` keys of this size that murmur2 gives to partition `index` of two."""
    found: list[bytes] = []
    number = 0
    while len(found) < count:
        key = b"%09d" % number + bytes(size - 9)
        if murmur2(key) % 2 == index:
            found.append(key)
        number += 1
    return found


def all_of(peer: Peer, requests: Sequence[Request]) -> list[object]:
    """The answers to requests that are sent together."""
    ids = peer.send(*requests)
    return [peer.answer(id, object) for id in ids]


def packed(keys: list[bytes], *, timestamp: int = 1000, value: bytes = b"") -> bytes:
    return batch.encode(keys, [value] * len(keys), timestamps=timestamp, codec=codecs.ZSTD)


@pytest.mark.parametrize("count", [5, 15], ids=["small batches", "batches that are opened in a thread"])
def test_keys_of_many_lengths(victim: Victim, count: int) -> None:
    """Keys of one length would take a tenth of the time. Partitions are tried at the same time: when their events
    become readable, and when these are folded."""
    keys = [key for size in range(200, 1020, 3) for key in at_home(size, count)]
    data = packed(keys)
    assert len(data) < 300_000
    topics = [f"lengths-{count}-{number}" for number in range(12)]
    for topic in topics:
        victim.make(topic)
    told = [{"name": topic, "partition_data": [{"index": 0, "records": data}]} for topic in topics]

    def produce(peer: Peer) -> None:
        with Raw(victim.broker.kafka_address) as raw:
            answer = raw.ask(ApiKey.PRODUCE, {"acks": -1, "timeout_ms": 30_000, "topic_data": told}, 9)
        assert {each["partition_responses"][0]["error_code"] for each in answer["responses"]} == {0}
        for topic in topics:
            assert peer.ask(m.Get(topic, keys[0]), m.Got).entry != [None]

    victim.quick(produce)
    with victim.broker.connect() as client:
        assert not any(client.describe(topic).scattered for topic in topics)


def test_long_keys(victim: Victim) -> None:
    victim.make("long")
    keys = at_home(LONG, 3)
    with Peer(victim.broker.address) as peer:
        handle = peer.producer("long").handle
        victim.quick(lambda _: all_of(peer, [m.Message(handle, b"", key) for key in keys]))
        victim.quick(lambda _: all_of(peer, [m.Get("long", key) for key in keys]))


def test_look_ups_of_long_keys(victim: Victim) -> None:
    victim.make("looked-up")
    column = arrow_layout.binary([b"%09d" % number + bytes(160_000) for number in range(40)])
    victim.quick(lambda peer: peer.ask(m.GetColumns("looked-up", column.offsets, column.data), m.ColumnsGot))


def test_look_ups_over_http(victim: Victim) -> None:
    victim.make("http")
    url = f"http://{victim.broker.http_address}/api/v1/topics/http"
    keys = [f"{number}" + "x" * 120_000 for number in range(2)]
    with httpx.Client(trust_env=False, timeout=60, headers={"Krappy-Request": "1"}) as http:

        def look_up(_: Peer) -> None:
            assert http.post(f"{url}/table/lookup", json={"keys": keys}).status_code == 200

        victim.quick(look_up)
        event = {"key": "x" * (2 * MIB - 100), "value": ""}

        def publish(_: Peer) -> None:
            assert "has to be named" in http.post(f"{url}/events", json=event).text

        victim.quick(publish)


@pytest.fixture(scope="module")
def astray(victim: Victim) -> list[bytes]:
    """Keys that stand in both partitions of the topic `astray`, with one and the same time."""
    victim.make("astray")
    keys = at_home(LONG, 10, 1)
    with Peer(victim.broker.address) as peer:
        handle = peer.producer("astray").handle
        for index in (0, 1):
            peer.ask(m.Batch(handle, index, packed(keys)), m.BatchStored)
        peer.get("astray", keys[0])
    return keys


def test_conditions_on_long_keys_that_stand_elsewhere(victim: Victim, astray: list[bytes]) -> None:
    data = packed(astray, value=b"new")
    with Peer(victim.broker.address) as peer:
        handle = peer.producer("astray").handle
        request = m.Batch(handle, 1, data, [(row, row) for row in range(len(astray))])
        victim.quick(lambda _: peer.ask(request, m.BatchStored))


def test_long_keys_that_stand_in_several_partitions(victim: Victim, astray: list[bytes]) -> None:
    column = arrow_layout.binary(astray)
    victim.quick(lambda peer: peer.ask(m.GetColumns("astray", column.offsets, column.data), m.ColumnsGot))

    def scan(peer: Peer) -> None:
        page = peer.ask(m.Scan("astray", max_bytes=16 * MIB), m.Scanned)
        while page.cursor is not None:
            page = peer.ask(m.Scan(cursor=page.cursor, max_bytes=16 * MIB), m.Scanned)

    victim.quick(scan)

    def watch(peer: Peer) -> None:
        [id] = peer.send(m.Watch("astray", offsets=[(0, 0), (1, 0)]))
        seen = 0
        while seen < len(astray):
            seen += len(peer.answer(id, m.Watched).entries) // 2

    victim.quick(watch)


class RoundCount(trio.abc.Instrument):
    """Counts rounds of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


@pytest.mark.parametrize("sizes", [[100] * 400, range(60, 360)], ids=["of one length", "of many lengths"])
def test_ordinary_keys_do_not_wait_behind_long_ones(sizes: Sequence[int]) -> None:
    keys, long = [at_home(size, 1)[0] for size in set(sizes)], at_home(LONG, 1)
    keys *= len(sizes) // len(keys)
    rounds, needed = RoundCount(), list[int]()

    async def look() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(look_for_strays, long, 2, 0)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            before = rounds.count
            assert not await look_for_strays(keys, 2, 0)
            needed.append(rounds.count - before)
            nursery.cancel_scope.cancel()

    trio.run(look, instruments=[rounds])
    assert needed[0] <= 2 + sum(sizes) // STEP


def test_a_long_key_is_hashed_in_many_rounds() -> None:
    rounds, long = RoundCount(), at_home(LONG, 1)
    assert not trio.run(look_for_strays, long, 2, 0, instruments=[rounds])
    assert rounds.count >= LONG // STEP


def test_keys_are_hashed_once(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they stand behind a long key, which is hashed when it is folded."""
    victim.make("once")
    seen: list[bytes | None] = []

    async def look(keys: Sequence[bytes | None], partitions: int, index: int) -> bool:
        seen.extend(keys)
        return await look_for_strays(keys, partitions, index)

    for module in (pending, strays):
        monkeypatch.setattr(module, "look_for_strays", look)
    [long], keys = at_home(LONG, 1), at_home(100, 400)
    with Peer(victim.broker.address) as peer:
        handle = peer.producer("once").handle
        for each in all_of(peer, [m.Batch(handle, 0, packed([long])), m.Batch(handle, 0, packed(keys))]):
            assert isinstance(each, m.BatchStored)
        assert peer.get("once", keys[-1]) is not None
    assert seen.count(long) == 1
    assert sorted(key for key in seen if key != long and key is not None) == sorted(keys)


def test_a_view_is_not_far_behind_with_long_keys(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sender is made to wait for the view. The lag is counted by what it takes to hash the keys."""
    victim.make("behind")
    behind: list[int] = []
    look_ahead = ViewStrays.look_ahead

    async def look(self: ViewStrays, keys: Collection[bytes], applied: int) -> None:
        behind.append(self._replica.high_watermark - applied)
        await look_ahead(self, keys, applied)

    monkeypatch.setattr(ViewStrays, "look_ahead", look)
    data = packed(at_home(LONG, 1))
    with Peer(victim.broker.address) as peer:
        handle = peer.producer("behind").handle
        all_of(peer, [m.Batch(handle, 0, data)] * 150)
    assert 0 < max(behind) < 60


def test_a_stop_does_not_wait_until_keys_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start folds them."""
    key, begun, ended = at_home(LONG, 1)[0], threading.Event(), list[int]()

    async def look(keys: Sequence[bytes | None], partitions: int, index: int) -> bool:
        begun.set()
        await trio.sleep(30)
        ended.append(len(keys))
        return False

    with monkeypatch.context() as patch:
        patch.setattr(strays, "look_for_strays", look)
        with run_broker(tmp_path) as broker, Peer(broker.address) as peer:
            peer.ask(m.CreateTopic("stopped", 2), m.TopicCreated)
            peer.ask(m.Batch(peer.producer("stopped").handle, 0, packed([key], value=b"there")), m.BatchStored)
            wait_until(begun.is_set, "the key to be hashed")
    assert not ended
    with run_broker(tmp_path) as broker, Peer(broker.address) as peer:
        entry = peer.get("stopped", key)
        assert entry is not None
        assert entry[2] == b"there"
