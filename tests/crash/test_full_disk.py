"""A full disk: publishes are refused with an error that says so, and may be tried again. No acknowledged event is lost,
and reads go on. Once there is room, the same broker takes publishes again.

The disk is made full in two ways: by a small tmpfs (if it may be mounted), and by RLIMIT_FSIZE, which any user can set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from krappy.errors import KrappyError
from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.crash.ledger import fold
from tests.crash.tmpfs import Tmpfs
from tests.kafka.raw import Raw, produce
from tests.peer import Gone, Peer, Stored
from tests.process import BrokerProcess, Died, Launcher, broker_process, wait_until

TOPIC = "t"
SETTINGS = {"view_memtable_bytes": 256 << 10, "view_cache_bytes": 1 << 20, "retention_check_ms": 100}


class Small(Tmpfs):
    """A file system of 8 MiB; `release` makes it larger."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "8m")

    def begin(self, broker: BrokerProcess) -> None:
        """Does nothing: the file system is small from the start."""

    def release(self, broker: BrokerProcess) -> None:
        self.resize("64m")


class FileLimit:
    """A limit of 2 MiB for each file, until `release` is called."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "broker.log"
        self.folder = folder

    def begin(self, broker: BrokerProcess) -> None:
        broker.limit_file_size(2 << 20)

    def release(self, broker: BrokerProcess) -> None:
        broker.limit_file_size(None)

    def close(self) -> None:
        """Does nothing: there is nothing to remove."""


@pytest.fixture(params=[Small, FileLimit], ids=["tmpfs", "rlimit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Small | FileLimit]:
    made = request.param(tmp_path)
    yield made
    made.close()


class Producer:
    """An idempotent producer that sends a refused batch again."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        registered = peer.producer(TOPIC, idempotent=True)
        self.id, self.epoch = registered.producer_id, registered.producer_epoch
        self.handle = registered.handle
        self.sequence = 0
        self.acknowledged: dict[int, tuple[bytes, bytes]] = {}  # offset -> key, value
        self.refusals: list[KrappyError] = []

    def register(self, peer: Peer) -> None:
        """Registers it, on a new connection."""
        self.peer = peer
        again = peer.producer(TOPIC, idempotent=True, producer_id=self.id, producer_epoch=self.epoch)
        self.handle = again.handle

    def publish(self) -> bool:
        """Publishes the next ten events; returns whether they were stored."""
        numbers = range(self.sequence, self.sequence + 10)
        keys = [b"k%d" % (number % 300) for number in numbers]
        values = [b"%d:" % number + bytes(2000) for number in numbers]
        data = batch.encode(
            list(keys),
            list(values),
            timestamps=1_000,
            producer_id=self.id,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        try:
            offset = self.peer.ask(m.Batch(self.handle, 0, data), m.BatchStored).offset
        except KrappyError as error:
            self.refusals.append(error)
            return False
        self.acknowledged.update(zip(range(offset, offset + 10), zip(keys, values, strict=True), strict=True))
        self.sequence += 10
        return True


def done(attempt: Callable[[], object]) -> bool:
    """Whether the attempt succeeded. Raises AssertionError if it failed with an error that may not be tried again."""
    try:
        attempt()
    except KrappyError as error:
        if not error.retriable:
            raise
        return False
    return True


def check(peer: Peer, producer: Producer) -> list[Stored]:
    """Checks that the log has the acknowledged events, and that the table is its fold; returns the log."""
    log, _, _ = peer.read_log(TOPIC)
    assert {stored.offset: (stored.key, stored.value) for stored in log} == producer.acknowledged
    table = {key: (entry[0], entry[2]) for key, entry in peer.scan(TOPIC).items()}
    assert table == {key: (stored.offset, stored.value) for key, stored in fold(log).items()}
    return log


def test_a_full_disk_refuses_and_recovers(disk: Small | FileLimit, launch: Launcher) -> None:
    with (
        broker_process(disk.folder / "data", launch=launch, log=disk.log, **SETTINGS) as broker,
        Peer(broker.address) as peer,
    ):
        peer.ask(m.CreateTopic(TOPIC, 1, {"retention.ms": -1}), m.TopicCreated)
        disk.begin(broker)
        producer = Producer(peer)
        while producer.publish():
            assert len(producer.acknowledged) < 100_000
        for _ in range(20):
            producer.publish()
        assert producer.refusals
        assert broker.events("append_failed")  # it is logged for the operator, too
        for error in producer.refusals:
            assert error.retriable, error
            assert error.name == "STORAGE_ERROR", error
        # Reads go on. The full disk may also stop the view from following the log, so only the log is compared.
        log, _, _ = peer.read_log(TOPIC)
        assert {stored.offset: (stored.key, stored.value) for stored in log} == producer.acknowledged
        peer.ask(m.Ping(), m.Pong)

        disk.release(broker)
        wait_until(producer.publish, "publishes are taken again")
        for _ in range(20):
            assert producer.publish()
        check(peer, producer)
        peer.ask(m.CreateTopic("another"), m.TopicCreated)
        assert broker.stop() == 0
        broker.start()
        with Peer(broker.address) as again:
            check(again, producer)
            producer.register(again)
            assert producer.publish()
            check(again, producer)
        assert not broker.events("internal_error"), broker.last_words()


class Stager:
    """A task attempt that stages a refused batch again."""

    def __init__(self, peer: Peer, job: str) -> None:
        self.peer = peer
        self.job = job
        self.opened = peer.ask(m.Stage(TOPIC, job, "0", "0"), m.Staged)
        self.records = 0

    def send(self) -> bool:
        """Stages the next ten events; returns whether they were staged."""
        data = batch.encode(
            [b"k%d" % number for number in range(self.records, self.records + 10)],
            [b"%d" % number + bytes(2000) for number in range(10)],
            timestamps=1_000,
            producer_id=self.opened.producer_id,
            producer_epoch=0,
            base_sequence=self.records,
        )
        if not done(lambda: self.peer.ask(m.Batch(self.opened.handle, 0, data), m.BatchStored)):
            return False
        self.records += 10
        return True

    def commit(self) -> m.StagedCommitted:
        token = self.peer.ask(m.SealStaged(self.job, self.opened.stage, self.records), m.StagedSealed).token
        while True:
            answer = self.peer.ask(m.CommitStaged(self.job, [token], 1_000), m.StagedCommitted)
            if answer.done:
                return answer


def test_staging_on_a_full_disk(disk: Small | FileLimit, launch: Launcher) -> None:
    """Staging is refused, and goes on once there is room."""
    with (
        broker_process(disk.folder / "data", launch=launch, log=disk.log, **SETTINGS) as broker,
        Peer(broker.address) as peer,
    ):
        peer.ask(m.CreateTopic(TOPIC, 1, {"retention.ms": -1}), m.TopicCreated)
        disk.begin(broker)
        stager = Stager(peer, "j")
        while stager.send():
            assert stager.records < 100_000
        for _ in range(5):
            stager.send()
        disk.release(broker)
        wait_until(stager.send, "what is staged is taken again")
        [(topic, _, first, last, records)] = stager.commit().published
        assert (topic, first, last, records) == (TOPIC, 0, stager.records - 1, stager.records)
        log, _, _ = peer.read_log(TOPIC)
        assert [stored.key for stored in log[:-1]] == [b"k%d" % number for number in range(stager.records)]
        assert broker.stop() == 0
        assert not broker.events("internal_error"), broker.last_words()


def test_a_view_that_could_not_be_flushed_goes_on(disk: Small | FileLimit, launch: Launcher) -> None:
    """There is still room for the log's last small batches, but not for the view's next file."""
    settings = {**SETTINGS, "view_memtable_bytes": 64 << 10}
    with (
        broker_process(disk.folder / "data", launch=launch, log=disk.log, **settings) as broker,
        Peer(broker.address) as peer,
    ):
        peer.ask(m.CreateTopic(TOPIC, 1, {"retention.ms": -1, "segment.bytes": 100_000}), m.TopicCreated)
        handle = peer.producer(TOPIC).handle
        if isinstance(disk, Small):
            (disk.folder / "ballast").write_bytes(bytes(6 << 20))
        else:
            broker.limit_file_size(24 << 10)
        stored = 0

        def publish() -> bool:
            ids = peer.send(*[m.Message(handle, bytes(60), b"key%06d" % (stored + each)) for each in range(50)])
            return sum([done(lambda id=id: peer.answer(id, m.MessageStored)) for id in ids]) == 50  # type: ignore[misc]

        while publish():
            stored += 50
            assert stored < 1_000_000
        disk.release(broker)
        wait_until(publish, "publishes are taken again")
        log, _, end = peer.read_log(TOPIC)
        assert end >= stored
        wait_until(lambda: done(lambda: peer.get(TOPIC, b"")), "lookups are answered again")
        table = {key: entry[0] for key, entry in peer.scan(TOPIC).items()}
        assert table == {key: event.offset for key, event in fold(log).items()}
        assert broker.stop() == 0


def test_killed_on_a_full_disk(disk: Small | FileLimit, launch: Launcher) -> None:
    """The broker starts even on the full disk, at least for reads, or says why it can't: RocksDB writes when it is
    opened. The broker takes publishes again when there is room."""
    with broker_process(disk.folder / "data", launch=launch, log=disk.log, **SETTINGS) as broker:
        with Peer(broker.address) as peer:
            peer.ask(m.CreateTopic(TOPIC, 1, {"retention.ms": -1}), m.TopicCreated)
            disk.begin(broker)
            producer = Producer(peer)
            while producer.publish():
                pass
            broker.kill()
        try:
            broker.start()
        except Died:
            assert "No space left on device" in broker.last_words()
            disk.release(broker)
            broker.start()
        disk.begin(broker)
        with Peer(broker.address) as peer:
            log, _, _ = peer.read_log(TOPIC)
            assert {stored.offset: (stored.key, stored.value) for stored in log} == producer.acknowledged
            disk.release(broker)
            producer.register(peer)
            wait_until(producer.publish, "publishes are taken again")
            check(peer, producer)
        broker.kill()
        broker.start()
        with Peer(broker.address) as peer:
            check(peer, producer)


def test_stopped_on_a_full_disk(disk: Small | FileLimit, launch: Launcher) -> None:
    """SIGTERM ends the broker, even if it can't write everything. The next start recovers what is missing."""
    with broker_process(disk.folder / "data", launch=launch, log=disk.log, **SETTINGS) as broker:
        with Peer(broker.address) as peer:
            peer.ask(m.CreateTopic(TOPIC, 1, {"retention.ms": -1}), m.TopicCreated)
            disk.begin(broker)
            producer = Producer(peer)
            while producer.publish():
                pass
        assert broker.stop() == 0, broker.last_words()
        disk.release(broker) if isinstance(disk, Small) else None
        broker.start()
        with Peer(broker.address) as peer:
            check(peer, producer)


def test_deleting_a_topic_makes_room(disk: Small | FileLimit, launch: Launcher) -> None:
    """When everything else is refused, deleting a topic still works."""
    with (
        broker_process(disk.folder / "data", launch=launch, log=disk.log, **SETTINGS) as broker,
        Peer(broker.address) as peer,
    ):
        peer.ask(m.CreateTopic(TOPIC, 1, {"retention.ms": -1}), m.TopicCreated)
        peer.ask(m.CreateTopic("kept", 1, {"retention.ms": -1}), m.TopicCreated)
        kept = peer.producer("kept").handle
        peer.ask(m.Message(kept, b"v", b"k"), m.MessageStored)
        disk.begin(broker)
        producer = Producer(peer)
        while producer.publish():
            pass
        if not done(lambda: peer.ask(m.DeleteTopic(TOPIC), m.TopicDeleted)):
            disk.release(broker)  # there was no room even for the few bytes of the deletion
            peer.ask(m.DeleteTopic(TOPIC), m.TopicDeleted)

        def taken() -> bool:
            return done(lambda: peer.ask(m.Message(kept, bytes(10_000), b"k2"), m.MessageStored))

        wait_until(taken, "publishes are taken again")
        assert list(peer.topics()) == ["kept"]
        # A topic's files are deleted some time after the topic, and a broker needs some room to start.
        wait_until(lambda: not [*(disk.folder / "data").glob(f"**/{TOPIC}-0*")], "the files of the topic are gone")
        broker.kill()
        with pytest.raises(Gone):
            peer.ask(m.Ping(), m.Pong)
        broker.start()
        with Peer(broker.address) as again:
            assert list(again.topics()) == ["kept"]
            assert len(again.read_log("kept")[0]) >= 2


def test_batches_behind_one_that_could_not_be_stored_are_told_why(tmp_path: Path) -> None:
    """The error of later batches is the full disk too, and not a gap in their producer's sequence. Once there is room,
    they are stored in the producer's order."""
    with broker_process(tmp_path / "data", listen_kafka="127.0.0.1:0") as broker, Raw(broker.kafka) as raw:
        raw.make("t")
        given = raw.ask(ApiKey.INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout_ms": 60_000}, 4)
        values = [bytes([65 + number]) * size for number, size in enumerate((200_000, 1, 1, 200_000, 1, 1))]

        def sent(sequence: int) -> Code:
            facts = {"producer_id": given["producer_id"], "producer_epoch": 0, "base_sequence": sequence}
            data = batch.encode([b"k"], [values[sequence]], timestamps=1000, **facts)
            [found] = raw.ask(ApiKey.PRODUCE, produce("t", data), 9)["responses"][0]["partition_responses"]
            return Code(found["error_code"])

        for first in (0, 3):
            broker.limit_file_size(100_000)
            assert [sent(first + each) for each in range(2)] == [Code.KAFKA_STORAGE_ERROR] * 2
            broker.limit_file_size(None)
            assert sent(first + 2) == Code.KAFKA_STORAGE_ERROR
            assert [sent(first + each) for each in range(3)] == [Code.NONE] * 3
        assert sent(5) == Code.NONE  # a retry
        assert raw.values("t") == values
