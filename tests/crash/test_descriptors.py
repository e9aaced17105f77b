"""Too few file descriptors: an operation waits until there is one, and connections leave some for the storage."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from krappy.errors import KrappyError, Overloaded, StorageError
from krappy.records import batch
from krappy.wire import messages as m
from tests.peer import Gone, Peer
from tests.process import BrokerProcess, broker_process, wait_until

KEYS: list[bytes | None] = [b"k%d" % number for number in range(10)]
DATA = batch.encode(KEYS, [b"v" * 100] * 10, timestamps=1)
SMALL = {"segment.bytes": 2000, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(
        tmp_path / "data", durability="fsync", cleaner_backoff_ms=100, view_memtable_bytes=1 << 20
    ) as made:
        yield made


@pytest.mark.parametrize("spare", range(6))
def test_a_log_goes_on_when_there_are_descriptors_again(broker: BrokerProcess, spare: int) -> None:
    """The log needs a new segment, and can't make it or can't open its folder for the sync. Nothing is lost. `spare`:
    so many descriptors may still be opened."""
    with Peer(broker.address) as peer:
        peer.ask(m.CreateTopic("t", config=SMALL), m.TopicCreated)
        handle = peer.ask(m.ProducerRegistration("t"), m.ProducerRegistered).handle
        for _ in range(3):
            peer.ask(m.Batch(handle, 0, DATA), m.BatchStored)
        before = broker.allow_fds(sum(broker.fds().values()) + spare)
        ids = [peer.send(m.Batch(handle, 0, DATA))[0] for _ in range(20)]
        peer.ask(m.Ping(), m.Pong)  # the broker has taken all requests before this one
        broker.allow_fds(before)
        stored, refused = [], []
        for id in ids:
            try:
                stored.append(peer.answer(id, m.BatchStored).offset)
            except KrappyError as error:  # the batch could not be written
                refused.append(str(error))
        assert all("Too many open files" in text for text in refused)
        for _ in range(10):
            stored.append(peer.ask(m.Batch(handle, 0, DATA), m.BatchStored).offset)
        assert stored == sorted(set(stored))
        assert peer.describe("t")["partitions"][0]["high_watermark"] == stored[-1] + 10


def test_connections_leave_some_to_the_storage(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer, ExitStack() as crowd:
        peer.ask(m.CreateTopic("t", config=SMALL), m.TopicCreated)
        handle = peer.ask(m.ProducerRegistration("t"), m.ProducerRegistered).handle
        broker.allow_fds(800)
        for _ in range(850):  # each sends a request, because idle connections would be closed to make room for new ones
            sock = crowd.enter_context(socket.create_connection(broker.address.rsplit(":", 1)))  # type: ignore[arg-type]
            with suppress(OSError):
                sock.sendall(m.Ping().frame(1))
                sock.recv(1000)
        wait_until(lambda: sum(broker.fds().values()) > 690, "they have taken what they may")
        with Peer(broker.address) as one_more:
            _, error = one_more.receive()
            assert isinstance(error, Overloaded)
            with pytest.raises(Gone):
                one_more.receive()
        for _ in range(20):
            peer.ask(m.Batch(handle, 0, DATA), m.BatchStored)
        assert peer.get("t", b"k1", 0) is not None
        assert not broker.events("accept_failed")


def test_topics_leave_some_to_the_storage(broker: BrokerProcess) -> None:
    """If RocksDB could not open a file, it would take no more writes until it is opened again."""
    with Peer(broker.address) as peer:
        broker.allow_fds(800)
        for number in range(12):
            peer.ask(m.CreateTopic(f"t{number}", 50), m.TopicCreated)
        for _ in range(2):
            with pytest.raises(StorageError, match="the broker may have 800"):
                peer.ask(m.CreateTopic("many", 100), m.TopicCreated)
            with pytest.raises(StorageError, match="the broker may have 800"):
                peer.ask(m.AlterTopic("t0", partitions=150), m.TopicAltered)
        assert len(peer.topics()) == 12
        handle = peer.ask(m.ProducerRegistration("t0"), m.ProducerRegistered).handle
        for number in range(300):
            keys: list[bytes | None] = [b"%d-%d" % (number, row) for row in range(100)]
            data = batch.encode(keys, [b"v" * 100] * 100, timestamps=1)
            peer.ask(m.Batch(handle, 0, data), m.BatchStored)
        assert peer.get("t0", b"299-99", 0) is not None
        assert not broker.events("view_waits")
