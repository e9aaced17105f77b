"""Memory is bounded (promise 7): peers that send much, take nothing, or come by the thousand.

Each test holds its hostile peers while a well-behaved client beside them is served, and looks at the broker's peak
of resident memory meanwhile. The bound comes from the design:

    BASE       interpreter, libraries, RocksDB with its memtables and cache as set here
  + memory_bytes, twice: requests in flight and replies waiting, and what Python's objects take beside their bytes
  + FAIR       for each connection: what it may hold although the budget is spent, and its own state
  + one batch  being decoded, and one answer being made: they are there while the event loop works on them
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from krappy.errors import KrappyError, Overloaded
from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.frames import frame
from tests.long import LONG
from tests.neighbour import Neighbour, undisturbed
from tests.peer import Gone, Peer
from tests.process import BrokerProcess, Launcher, broker_process, wait_until

pytestmark = pytest.mark.skipif(not LONG, reason="minutes of load: `make hostile` runs it (KRAPPY_LONG=1)")

MIB = 1 << 20
MEMORY = 16 * MIB
BASE = 110 * MIB
FAIR = 64 << 10
TRANSIENT = 64 * MIB


def bound(connections: int) -> int:
    return BASE + 2 * MEMORY + connections * FAIR + TRANSIENT


@pytest.fixture
def broker(tmp_path: Path, launch: Launcher) -> Iterator[BrokerProcess]:
    """A fresh one, so that nobody's memory is mistaken for another's."""
    settings: dict[str, Any] = {"memory_bytes": MEMORY, "view_memtable_bytes": 4 * MIB, "view_cache_bytes": 8 * MIB}
    with broker_process(tmp_path / "data", launch=launch, **settings) as running:
        yield running
        assert not running.events("internal_error"), running.last_words()
        assert running.stop() == 0


@pytest.fixture
def beside(broker: BrokerProcess) -> Iterator[Neighbour]:
    with undisturbed(broker) as client:
        yield client


@pytest.fixture
def bounded(
    broker: BrokerProcess, beside: Neighbour, record_property: Callable[[str, object], None]
) -> Callable[..., contextlib.AbstractContextManager[None]]:
    """`with bounded(connections):` what is done inside must not take the broker's memory beyond the bound."""

    @contextmanager
    def holding(connections: int, allowed: int = 0) -> Iterator[None]:
        broker.reset_peak()
        before = broker.rss()
        yield
        beside(3)
        peak, limit = broker.peak_rss(), allowed or bound(connections)
        record_property("rss_before", before)
        record_property("rss_peak", peak)
        print(f"memory {before / MIB:.0f} MiB, at the most {peak / MIB:.0f} of {limit / MIB:.0f} MiB")  # noqa: T201
        assert peak <= limit, f"{peak / MIB:.0f} MiB where {limit / MIB:.0f} are the bound ({before / MIB:.0f} before)"

    return holding


@contextmanager
def peers(broker: BrokerProcess, count: int, receive_buffer: int = 0) -> Iterator[list[Peer]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Peer(broker.address, receive_buffer=receive_buffer)) for _ in range(count)]


def push(peer: Peer, data: bytes, seconds: float = 0.5) -> int:
    """Sends as much as the broker takes within that time, as a peer that never reads; returns how many bytes."""
    peer.socket.setblocking(False)
    sent, end = 0, time.monotonic() + seconds
    while sent < len(data) and time.monotonic() < end:
        try:
            sent += peer.socket.send(data[sent : sent + MIB])
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            break
    return sent


def fill(
    broker: BrokerProcess, topic: str, size: int, value: int = 1000, config: dict[str, object] | None = None
) -> int:
    """Makes a topic of about `size` bytes under distinct keys, once; returns how many events it has."""
    count = size // value
    with Peer(broker.address) as peer:
        if topic in peer.topics():
            return count
        peer.ask(m.CreateTopic(topic, 1, config), m.TopicCreated)
        handle = peer.producer(topic).handle
        step = max(1, 500_000 // value)
        for first in range(0, count, step):
            keys: list[bytes | None] = [b"key%08d" % number for number in range(first, min(first + step, count))]
            data = batch.encode(keys, [bytes(value)] * len(keys), timestamps=1)
            peer.ask(m.Batch(handle, 0, data), m.BatchStored)
        peer.get(topic, b"")  # the view is there
    return count


Bounded = Callable[..., contextlib.AbstractContextManager[None]]


def test_a_thousand_connections_that_say_nothing(broker: BrokerProcess, beside: Neighbour, bounded: Bounded) -> None:
    with bounded(1000), peers(broker, 1000):
        wait_until(lambda: broker.sockets >= 1000, "a thousand connections are open")
        beside(10)


def test_half_frames(broker: BrokerProcess, beside: Neighbour, bounded: Bounded) -> None:
    """Each sends all it can of a frame that never ends. Memory follows what was really sent, and only in the budget."""
    start = (MEMORY // 2 - 4).to_bytes(4, "big") + m.Batch.kind.to_bytes(4, "big")
    with bounded(40), peers(broker, 40) as hostile:
        for peer in hostile:
            push(peer, start + bytes(MEMORY // 2 - 9), 0.2)
        beside(8)


@pytest.mark.parametrize("filler", [b"\x80", b"\x90", b"\x00", b"\xa1x", b"\xc4\x01x"], ids=lambda data: data.hex())
def test_frames_full_of_tiny_values(broker: BrokerProcess, beside: Neighbour, bounded: Bounded, filler: bytes) -> None:
    """A byte of msgpack can be a Python object of 64 bytes and more."""
    count = 7 * MIB // len(filler)
    body = b"\x82\xa2id\x01\xa4keys\xdd" + count.to_bytes(4, "big") + filler * count
    with bounded(3), peers(broker, 3) as hostile:
        for peer in hostile:
            peer.post(frame(m.MultiGet.kind, body))
        for peer in hostile:
            assert isinstance(peer.receive()[1], KrappyError)
        beside(5)


def test_frames_byte_by_byte_from_many(broker: BrokerProcess, beside: Neighbour, bounded: Bounded) -> None:
    """Together they need more than the budget. On a busy machine, the broker parts with connections that wait with half
    of a frame for longer than their grace, since they keep others waiting."""
    data = m.Message(1, bytes(120_000), b"k").frame(1)
    with bounded(200), peers(broker, 200) as hostile:
        for peer in hostile:
            peer.post(data[:-1])
        beside(5)
        parted = 0
        for peer in hostile:
            try:
                peer.post(data[-1:])
                assert isinstance(peer.receive()[1], KrappyError)
            except Gone:
                parted += 1
        assert not parted or broker.events("peer_stalled")
        assert parted < 100, "more gave way than others wanted room"


def test_a_producer_faster_than_the_disk(broker: BrokerProcess, beside: Neighbour, bounded: Bounded) -> None:
    """Eight pipeline small Messages for seconds and read no answer."""
    with bounded(8), peers(broker, 8) as hostile:
        handles = [peer.producer("fast", name="fast").handle for peer in hostile]
        messages = b"".join(
            m.Message(handles[0], b"v" * 20, b"k%d" % (number % 100)).frame(9) for number in range(5000)
        )
        threads = [threading.Thread(target=push, args=(peer, messages * 20, 4.0)) for peer in hostile]
        for thread in threads:
            thread.start()
        beside(10)
        for thread in threads:
            thread.join()
        beside(3)


def test_large_batches_faster_than_the_disk(broker: BrokerProcess, beside: Neighbour, bounded: Bounded) -> None:
    data = batch.encode([b"k%d" % number for number in range(900)], [bytes(1000)] * 900, timestamps=1)
    with bounded(8), peers(broker, 8) as hostile:
        config: dict[str, object] = {"segment.bytes": 8 * MIB, "retention.bytes": 16 * MIB}
        hostile[0].ask(m.CreateTopic("fast-batches", 1, config, if_absent=True), m.TopicCreated)
        handles = [peer.producer("fast-batches").handle for peer in hostile]
        batches = m.Batch(handles[0], 0, data).frame(9) * 30
        threads = [threading.Thread(target=push, args=(peer, batches, 3.0)) for peer in hostile]
        for thread in threads:
            thread.start()
        beside(10)
        for thread in threads:
            thread.join()


def test_consumers_that_never_read(broker: BrokerProcess, beside: Neighbour, bounded: Bounded) -> None:
    """Sixty ask for 16 MiB at a time, again and again, and take nothing of it."""
    fill(broker, "big", 40 * MIB)
    with bounded(60), peers(broker, 60, receive_buffer=4096) as hostile:
        for peer in hostile:
            handle = peer.ask(m.ConsumerRegistration(["big"]), m.ConsumerRegistered).handle
            peer.send(*[m.Poll(handle, max_records=2**31 - 1, max_bytes=16 * MIB, max_wait=60_000)] * 20)
        beside(8)


def test_a_consumer_that_reads_slowly_gets_everything(broker: BrokerProcess, beside: Neighbour) -> None:
    """Back-pressure is no loss."""
    count = fill(broker, "slowly", 6 * MIB)
    with Peer(broker.address, receive_buffer=8192) as slow:
        handle = slow.ask(m.ConsumerRegistration(["slowly"]), m.ConsumerRegistered).handle
        ids = slow.send(*[m.Poll(handle, max_bytes=300_000)] * 30)
        beside(5)
        parts = [part for id in ids for part in slow.answer(id, m.Polled).parts]
        assert sum(header.count for part in parts for header, _ in batch.split(part[4])) == count


def test_watchers_that_never_read(broker: BrokerProcess, beside: Neighbour, bounded: Bounded) -> None:
    fill(broker, "watched", 20 * MIB)
    with bounded(30), peers(broker, 30, receive_buffer=4096) as hostile:
        for peer in hostile:
            peer.send(*[m.Watch("watched")] * 10)
        with Peer(broker.address) as writer:
            handle = writer.producer("watched").handle
            for number in range(20):
                writer.ask(m.Message(handle, bytes(100_000), b"w%d" % number), m.MessageStored)
        beside(8)


def test_answers_much_larger_than_their_requests(broker: BrokerProcess, beside: Neighbour, bounded: Bounded) -> None:
    """Small requests that would be answered by hundreds of megabytes."""
    with Peer(broker.address) as peer:
        handle = peer.producer("heavy").handle
        peer.ask(m.Message(handle, bytes(900_000), b"heavy"), m.MessageStored)
    with bounded(12), peers(broker, 12, receive_buffer=4096) as hostile:
        for peer in hostile[:4]:
            peer.send(m.MultiGet("heavy", [b"heavy"] * 800))
        for peer in hostile[4:8]:
            peer.send(*[m.Get("heavy", b"heavy")] * 500)
        for peer in hostile[8:10]:
            peer.send(m.DescribeTopics(["heavy"] * 60_000))
        for peer in hostile[10:]:
            peer.send(m.Scan("heavy", partitions=[0] * 60_000, max_entries=1))
        beside(8)


def test_more_registrations_than_a_connection_may_hold(
    broker: BrokerProcess, beside: Neighbour, bounded: Bounded
) -> None:
    with bounded(3), peers(broker, 3) as hostile:
        hostile[0].ask(m.CreateTopic("wide", 100, if_absent=True), m.TopicCreated)
        refused = 0
        for peer, request in zip(
            hostile,
            [m.ProducerRegistration("wide"), m.ConsumerRegistration(["wide"], partitions=[0])] * 2,
            strict=False,
        ):
            for _ in range(6):
                for id in peer.send(*[request] * 2000):
                    answer = peer.receive()[1]
                    refused += isinstance(answer, Overloaded)
                    assert isinstance(answer, Overloaded | m.ProducerRegistered | m.ConsumerRegistered), (id, answer)
        assert refused, "36,000 registrations were taken"
        beside(5)


def test_registrations_of_many_partitions(broker: BrokerProcess, beside: Neighbour, bounded: Bounded) -> None:
    """A reader holds a position for each of its partitions."""
    with bounded(4), peers(broker, 4) as hostile:
        hostile[0].ask(m.CreateTopic("wide", 100, if_absent=True), m.TopicCreated)
        for peer in hostile:
            for _ in range(10):
                ids = peer.send(*[m.ConsumerRegistration(["wide"])] * 200)
                for _ in ids:
                    answer = peer.receive()[1]
                    assert isinstance(answer, Overloaded | m.ConsumerRegistered), answer
        beside(5)


def test_thousands_of_waiting_polls(broker: BrokerProcess, beside: Neighbour, bounded: Bounded) -> None:
    with Peer(broker.address) as writer:
        handle = writer.producer("awaited").handle
        with bounded(6), peers(broker, 6) as hostile:
            for peer in hostile:
                consumer = peer.ask(m.ConsumerRegistration(["awaited"], start="latest"), m.ConsumerRegistered).handle
                polls = b"".join(m.Poll(consumer, max_wait=600_000).frame(id) for id in range(100, 3100))
                push(peer, polls, 3.0)
            beside(8)
            writer.ask(m.Message(handle, b"v"), m.MessageStored)
            beside(3)


def test_scans_opened_and_left(broker: BrokerProcess, beside: Neighbour, bounded: Bounded) -> None:
    """A scan pins a snapshot; hundreds are opened, the table changes under them, and nobody asks for the next page."""
    count = fill(broker, "scanned", 4 * MIB, value=200)
    with bounded(4), peers(broker, 4) as hostile:
        opened = 0
        for peer in hostile:
            for _ in range(250):
                with contextlib.suppress(Overloaded):
                    opened += peer.ask(m.Scan("scanned", max_entries=1), m.Scanned).cursor is not None
        assert opened
        with Peer(broker.address) as writer:
            handle = writer.producer("scanned").handle
            for round in range(10):
                keys: list[bytes | None] = [b"key%08d" % number for number in range(0, count, 10)]
                data = batch.encode(keys, [b"%d" % round * 100] * len(keys), timestamps=1)
                writer.ask(m.Batch(handle, 0, data), m.BatchStored)
        beside(5)


BOMBS = {1: 240 * MIB, 2: 18 * MIB, 3: 180 * MIB, 4: 240 * MIB}  # bytes of zeros in a batch that is not too large


@pytest.mark.parametrize("codec", BOMBS)
@pytest.mark.parametrize("kind", ["bytes", "records"])
def test_compression_bombs(broker: BrokerProcess, beside: Neighbour, bounded: Bounded, codec: int, kind: str) -> None:
    """A few KiB that decompress to hundreds of MiB, or to a million records."""
    values: list[bytes | None] = [bytes(BOMBS[codec] // 30)] * 30 if kind == "bytes" else [b""] * 1_000_000
    data = batch.encode([b"k"] * len(values), values, timestamps=1, codec=codec)
    assert len(data) < MIB or kind == "records"
    with bounded(4), peers(broker, 4) as hostile:
        for peer in hostile:
            handle = peer.producer("bombs").handle
            peer.send(*[m.Batch(handle, 0, data)] * 4)
        for peer in hostile:
            for _ in range(4):
                _, answer = peer.receive()
                assert isinstance(answer, KrappyError | m.BatchStored), answer
        beside(3)
        with Peer(broker.address) as peer:
            peer.ask(m.DeleteTopic("bombs"), m.TopicDeleted)


READERS = ["watch", "polls", "polls by key", "dead letters"]


@pytest.mark.parametrize("kind", READERS)
def test_readers_of_batches_that_open_to_very_much(
    broker: BrokerProcess, beside: Neighbour, bounded: Bounded, kind: str
) -> None:
    """A MiB of log has hundreds of batches that open to 31 MiB each: a watch, or a group, took gigabytes for it.

    Some of these may be there at a time: one that is being opened, one that is being applied, copies of what readers
    are told of them, and what the C library keeps of them.
    """
    each, order = 31 * MIB // 30, "key" if kind == "polls by key" else "none"
    data = batch.encode([b"k%d" % key for key in range(30)], [bytes(each)] * 30, timestamps=1, codec=4)
    with bounded(4, bound(4) + 6 * TRANSIENT), peers(broker, 4) as hostile:
        handle = hostile[0].producer("opened").handle
        for id in hostile[0].send(*[m.Batch(handle, 0, data)] * 30):
            hostile[0].answer(id, m.BatchStored)
        if kind == "watch":
            for peer in hostile:
                peer.send(m.Watch("opened", offsets=[(0, 0)]))
            for peer in hostile:
                for _ in range(10):
                    assert isinstance(peer.receive()[1], m.Watched)
        else:
            for number, peer in enumerate(hostile):
                registration = m.ConsumerRegistration(["opened"], f"g{number}", order=order, max_deliveries=1)
                consumer = peer.ask(registration, m.ConsumerRegistered).handle
                for _ in range(3):
                    polled = peer.ask(m.Poll(consumer, max_records=300), m.Polled)
                    if kind == "dead letters" and polled.leases:
                        peer.ask(m.Nack(consumer, [lease[:4] for lease in polled.leases]), m.Nacked)
        beside(5)


def test_answers_to_those_who_left_cost_nothing(tmp_path: Path) -> None:
    """Peers vanish while their publishes are written, thousands of times: they do not use up the budget."""
    with broker_process(tmp_path / "data", memory_bytes=MIB) as broker:
        for _ in range(60):
            with Peer(broker.address) as peer:
                handle = peer.producer("left").handle
                peer.send(*[m.Message(handle, b"v", b"k")] * 400)
                peer.reset()
        with Peer(broker.address) as peer:  # a frame that needs most of the budget
            handle = peer.producer("left").handle
            data = batch.encode([b"k"], [bytes(450_000)], timestamps=1)
            peer.ask(m.Batch(handle, 0, data), m.BatchStored)
        assert not broker.events("internal_error")


def test_more_connections_than_allowed_are_told_so(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", max_connections=5) as broker, peers(broker, 5) as five:
        for peer in five:
            peer.ask(m.Ping(), m.Pong)
        for _ in range(20):
            with Peer(broker.address) as sixth:
                id, error = sixth.receive()
                assert id == 0
                assert isinstance(error, Overloaded)
                with pytest.raises(Gone):
                    sixth.receive()
        five[0].close()

        def one_more() -> bool:
            with Peer(broker.address) as again, contextlib.suppress(Overloaded, Gone, OSError):
                again.ask(m.Ping(), m.Pong)
                return True
            return False

        wait_until(one_more, "there is room for one again")
        for peer in five[1:]:
            peer.ask(m.Ping(), m.Pong)


def test_a_topic_of_more_partitions_than_files_may_be_open(tmp_path: Path) -> None:
    """It is refused as a whole, and the broker starts again afterwards."""
    with broker_process(tmp_path / "data") as broker:
        with Peer(broker.address) as peer:
            broker.limit_fds(sum(broker.fds().values()) + 60)
            for attempt in range(2):
                with pytest.raises(KrappyError) as caught:
                    peer.ask(m.CreateTopic("huge", 500), m.TopicCreated)
                assert caught.value.name != KrappyError.name, caught.value
                assert "huge" not in peer.topics(), f"attempt {attempt} left something behind"
            assert peer.ask(m.CreateTopic("small", 2), m.TopicCreated).partitions == 2
            with pytest.raises(KrappyError):
                peer.ask(m.AlterTopic("small", partitions=500), m.TopicAltered)
            peer.ask(m.AlterTopic("small", partitions=3), m.TopicAltered)
            assert len(peer.describe("small")["partitions"]) == 3
            handle = peer.producer("small").handle
            peer.ask(m.Message(handle, b"v", b"k", partition=0), m.MessageStored)
        broker.kill()
        broker.start()
        with Peer(broker.address) as peer:
            assert list(peer.topics()) == ["small"]
            assert len(peer.describe("small")["partitions"]) == 3
            entry = peer.get("small", b"k", 0)
            assert entry is not None
            assert entry[2] == b"v"


def test_a_peer_that_closes_its_side_gets_its_answers(broker: BrokerProcess, beside: Neighbour) -> None:
    with Peer(broker.address) as peer:
        handle = peer.producer("half-closed").handle
        ids = peer.send(*[m.Message(handle, b"v%d" % number) for number in range(300)])
        peer.socket.shutdown(socket.SHUT_WR)
        offsets = [peer.answer(id, m.MessageStored).offset for id in ids]
        assert offsets == sorted(offsets)
        with pytest.raises(Gone):
            peer.receive()


HTTP: dict[str, bytes] = {
    "idle": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "slow head": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "large head": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Large: " + b"x" * 15_000,
    "many headers": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 4000,
    "body without end": b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nKrappy-Request: 1\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 10_000,
    "body nobody reads": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"1000\r\n"
    + bytes(0x1000)
    + b"\r\n",
    "pipelined": b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500,
}


@pytest.mark.parametrize("kind", HTTP)
def test_http_peers_by_the_thousand(tmp_path: Path, launch: Launcher, kind: str) -> None:
    """Each sends as much as the broker takes of it, reads nothing, and stays. The native port is served meanwhile."""
    settings: dict[str, Any] = {
        "memory_bytes": MEMORY,
        "view_memtable_bytes": 4 * MIB,
        "view_cache_bytes": 8 * MIB,
        "listen_http": "127.0.0.1:0",
    }
    with broker_process(tmp_path / "data", launch=launch, **settings) as broker, undisturbed(broker) as beside:
        host, _, port = broker.http.rpartition(":")
        with contextlib.ExitStack() as stack:
            broker.reset_peak()
            for _ in range(1000):
                sock = stack.enter_context(socket.create_connection((host, int(port)), 60))
                sock.setblocking(False)
                with contextlib.suppress(OSError):
                    sock.send(HTTP[kind])
            beside(5)
            peak = broker.peak_rss()
            print(f"{kind}: at the most {peak / MIB:.0f} of {bound(1000) / MIB:.0f} MiB")  # noqa: T201
            assert peak <= bound(1000)
        wait_until(lambda: broker.sockets < 20, "the connections that are left are closed")
        assert not broker.events("internal_error"), broker.last_words()
