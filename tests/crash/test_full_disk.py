"""A full disk: publishes are refused with an error that says so and may be tried again, nothing acknowledged is lost,
reads go on, and once there is space the same broker takes publishes again.

Two ways to fill one: a small tmpfs (where this may be mounted), and RLIMIT_FSIZE, which any user can set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from krappy.errors import KrappyError
from krappy.records import batch
from krappy.wire import messages as m
from tests.crash.ledger import fold
from tests.crash.tmpfs import Tmpfs
from tests.peer import Gone, Peer, Stored
from tests.process import BrokerProcess, Died, Launcher, broker_process, wait_until

TOPIC = "t"
SETTINGS = {"view_memtable_bytes": 256 << 10, "view_cache_bytes": 1 << 20, "retention_check_ms": 100}


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


class Small(Tmpfs):
    """8 MiB, more once `release` is called."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "8m")

    def begin(self, broker: BrokerProcess) -> None:
        """It is small from the start."""

    def release(self, broker: BrokerProcess) -> None:
        self.resize("64m")


class FileLimit:
    """No file may grow beyond 2 MiB, until `release` is called."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "broker.log"
        self.folder = folder

    def begin(self, broker: BrokerProcess) -> None:
        broker.limit_file_size(2 << 20)

    def release(self, broker: BrokerProcess) -> None:
        broker.limit_file_size(None)

    def close(self) -> None:
        """Nothing is left behind."""


@pytest.fixture(params=[Small, FileLimit], ids=["tmpfs", "rlimit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Small | FileLimit]:
    made = request.param(tmp_path)
    yield made
    made.close()


class Producer:
    """An idempotent one that goes on with the batch that was refused."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        registered = peer.producer(TOPIC, idempotent=True)
        self.id, self.epoch = registered.producer_id, registered.producer_epoch
        self.handle = registered.handle
        self.sequence = 0
        self.acknowledged: dict[int, tuple[bytes, bytes]] = {}  # offset -> key, value
        self.refusals: list[KrappyError] = []

    def register(self, peer: Peer) -> None:
        """On another connection."""
        self.peer = peer
        again = peer.producer(TOPIC, idempotent=True, producer_id=self.id, producer_epoch=self.epoch)
        self.handle = again.handle

    def publish(self) -> bool:
        """The next ten events; whether they were stored."""
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
    """Whether it was; if not, then with an error that may be tried again."""
    try:
        attempt()
    except KrappyError as error:
        if not error.retriable:
            raise
        return False
    return True


def check(peer: Peer, producer: Producer) -> list[Stored]:
    """The log is what was acknowledged, and the table its fold."""
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
        assert broker.events("append_failed")  # an operator reads of it too
        for error in producer.refusals:
            assert error.retriable, error
            assert error.name == "STORAGE_ERROR", error
        # Reads go on. (The view may have been kept from going on with the log; the log is the truth.)
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
    """An attempt that goes on with the batch that was refused."""

    def __init__(self, peer: Peer, job: str) -> None:
        self.peer = peer
        self.job = job
        self.opened = peer.ask(m.Stage(TOPIC, job, "0", "0"), m.Staged)
        self.records = 0

    def send(self) -> bool:
        """The next ten events; whether they were staged."""
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
    """What is staged is refused, and goes on once there is room."""
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
    """The log finds room for its last small batches where the view's next file does not."""
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
    """It comes up on the full disk too, to read at least, or says what keeps it from that (RocksDB wants to write when
    it is opened); and takes publishes again when there is space."""
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
    """SIGTERM ends it, whatever could not be written; the next start makes it good."""
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
    """Where everything else is refused, this is what helps."""
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
            disk.release(broker)  # not even its own few bytes could be written
            peer.ask(m.DeleteTopic(TOPIC), m.TopicDeleted)

        def taken() -> bool:
            return done(lambda: peer.ask(m.Message(kept, bytes(10_000), b"k2"), m.MessageStored))

        wait_until(taken, "publishes are taken again")
        assert list(peer.topics()) == ["kept"]
        broker.kill()
        with pytest.raises(Gone):
            peer.ask(m.Ping(), m.Pong)
        broker.start()
        with Peer(broker.address) as again:
            assert list(again.topics()) == ["kept"]
            assert len(again.read_log("kept")[0]) >= 2
