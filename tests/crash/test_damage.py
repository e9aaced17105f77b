"""The files of a stopped or killed broker are damaged: it starts, and what it shows is right.

tests/store/test_recovery.py tests the recovery of a log byte by byte. Here a whole broker starts, so the view, the
offsets and the producers' state must agree with the events that are left in the log.
"""

from __future__ import annotations

import shutil
import urllib.request
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer

from krappy.errors import CorruptBatch, StorageError
from krappy.records import batch
from krappy.wire import messages as m
from tests.crash.ledger import fold
from tests.peer import Peer, Stored
from tests.process import BrokerProcess, Launcher, broker_process, wait_until

TOPIC = "t"


def publish(peer: Peer, handle: int, *pairs: tuple[bytes | None, bytes | None]) -> int:
    data = batch.encode([key for key, _ in pairs], [value for _, value in pairs], timestamps=1_000)
    return peer.ask(m.Batch(handle, 0, data), m.BatchStored).offset


def written(broker: BrokerProcess, batches: int = 6, config: dict[str, object] | None = None) -> list[Stored]:
    """Publishes batches to a topic. A batch has three events, and one of them is a tombstone. Returns the whole log."""
    with Peer(broker.address) as peer:
        peer.ask(m.CreateTopic(TOPIC, 1, config), m.TopicCreated)
        handle = peer.producer(TOPIC).handle
        for number in range(batches):
            publish(peer, handle, (b"a", b"%d" % number), (b"k%d" % number, b"v"), (b"k%d" % (number - 2), None))
        log, _, _ = peer.read_log(TOPIC)
        table(peer)  # waits until the view has all events
    return log


def table(peer: Peer) -> dict[bytes, tuple[int, bytes | None]]:
    return {key: (entry[0], entry[2]) for key, entry in peer.scan(TOPIC, tombstones=True).items()}


def folded(log: list[Stored]) -> dict[bytes, tuple[int, bytes | None]]:
    return {key: (stored.offset, stored.value) for key, stored in fold(log).items()}


def fetched(broker: BrokerProcess, path: str) -> bytes:
    """The body of the console's answer, which must have status 200."""
    with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=30) as answer:
        body: bytes = answer.read()
        return body


def log_file(broker: BrokerProcess, last: bool = True) -> Path:
    files = sorted((broker.data / "topics" / f"{TOPIC}-0").glob("*.log"))
    return files[-1] if last else files[0]


def check_all(broker: BrokerProcess, before: list[Stored], whole: int) -> None:
    """Checks that the log has the first `whole` of the events `before`, that the view is its fold, and that new events
    come after them."""
    with Peer(broker.address) as peer:
        log, start, end = peer.read_log(TOPIC)
        assert log == before[:whole]
        assert start == 0
        assert end >= whole
        assert table(peer) == folded(log)
        offset = publish(peer, peer.producer(TOPIC).handle, (b"new", b"event"))
        assert offset >= whole
        assert peer.get(TOPIC, b"new") == [offset, 1_000, b"event", None]
        assert peer.get(TOPIC, b"a", 0) == ([whole - 3, 1_000, b"%d" % (whole // 3 - 1), None] if whole else None)


def test_a_tail_cut_anywhere_after_a_kill(launch: Launcher, tmp_path: Path) -> None:
    """Unacknowledged bytes are cut off anywhere: whole batches stay, and the view is not ahead of them."""
    with broker_process(tmp_path / "data", launch=launch, durability="os") as broker:
        before = written(broker)
        broker.kill()
        original = log_file(broker).read_bytes()
        sizes = [header.size for header, _ in batch.split(original)]
        shutil.copytree(broker.data, tmp_path / "copy")
        last, last_two = len(original) - sizes[-1], len(original) - sum(sizes[-2:])
        edges = [last_two, last_two + 1, *range(last - 3, last + 18), len(original) - 1, len(original)]
        for cut in sorted({*edges, *range(last_two, len(original), 7)}):
            shutil.rmtree(broker.data)
            shutil.copytree(tmp_path / "copy", broker.data)
            log_file(broker).write_bytes(original[:cut])
            broker.start()
            whole = sum(1 for end in range(1, len(sizes) + 1) if sum(sizes[:end]) <= cut)
            check_all(broker, before, 3 * whole)
            broker.kill()


@pytest.mark.parametrize("lost", [1, 60, 61, 200])
def test_a_tail_cut_after_a_clean_stop_leaves_a_gap_and_no_ghosts(launch: Launcher, tmp_path: Path, lost: int) -> None:
    """Bytes that had been synced are gone: their offsets are not used again, and the view forgets their events, too."""
    with broker_process(tmp_path / "data", launch=launch) as broker:
        before = written(broker)
        assert broker.stop() == 0
        path = log_file(broker)
        sizes = [header.size for header, _ in batch.split(path.read_bytes())]
        cut = path.stat().st_size - lost
        path.write_bytes(path.read_bytes()[:cut])
        broker.start()
        whole = 3 * sum(1 for end in range(1, len(sizes) + 1) if sum(sizes[:end]) <= cut)
        check_all(broker, before, whole)
        with Peer(broker.address) as peer:
            log, _, end = peer.read_log(TOPIC)
            assert log[-1].offset == len(before), "offsets that had been given out were given again"
        assert broker.events("log_recovered"), "nobody was told"
        broker.kill()
        broker.start()
        with Peer(broker.address) as peer:
            assert peer.read_log(TOPIC) == (log, 0, end)
            assert table(peer) == folded(log)


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_a_bit_flipped_in_a_batch(launch: Launcher, tmp_path: Path, stopped: bool) -> None:
    """A damaged batch after the recovery point is dropped, and that is reported. Where it is before the recovery point,
    reads fail and say where it is."""
    with broker_process(tmp_path / "data", launch=launch, durability="os") as broker:
        before = written(broker)
        if stopped:
            assert broker.stop() == 0
        else:
            broker.kill()
        path = log_file(broker)
        data = bytearray(path.read_bytes())
        sizes = [header.size for header, _ in batch.split(data)]
        at = sum(sizes[:3]) + 70  # in the records of the fourth batch
        data[at] ^= 4
        path.write_bytes(data)
        broker.start()
        if not stopped:
            check_without(broker, before, range(9, 12))
            return
        with Peer(broker.address) as peer:
            handle = peer.ask(m.ConsumerRegistration([TOPIC]), m.ConsumerRegistered).handle
            parts = peer.ask(m.Poll(handle, max_records=9), m.Polled).parts
            assert [part[2] for part in parts] == [0]
            with pytest.raises(CorruptBatch) as caught:
                peer.ask(m.Poll(handle), m.Polled)
            assert caught.value.file == str(path)
            assert caught.value.position == sum(sizes[:3])
            assert table(peer) == folded(before), "the view had everything already"
            offset = publish(peer, peer.producer(TOPIC).handle, (b"new", b"event"))
            assert offset == len(before)
            peer.ask(m.Seek(handle, TOPIC, 0, "offset", 12), m.Sought)
            parts = peer.ask(m.Poll(handle), m.Polled).parts
            assert parts[0][2] == 12, "what is behind the damage is out of reach"


def check_without(broker: BrokerProcess, before: list[Stored], gone: range) -> None:
    """Checks that only these events are lost, that the loss is reported, that the bytes are kept aside, and that the
    offsets are not used again."""
    (said,) = broker.events("events_lost")
    assert said["level"] == "error"
    assert f"offsets {gone[0]} to {gone[-1]} " in str(said["lost"])
    assert list((broker.data / "topics" / f"{TOPIC}-0").glob("*.cut")), said["kept_aside"]
    with Peer(broker.address) as peer:
        log, _, end = peer.read_log(TOPIC)
        assert log == [stored for stored in before if stored.offset not in gone]
        assert end == len(before)
        assert table(peer) == folded(log)
        assert publish(peer, peer.producer(TOPIC).handle, (b"new", b"event")) == len(before)


def test_a_damaged_batch_and_no_view_to_hide_it(launch: Launcher, tmp_path: Path) -> None:
    """The view can't be made beyond the damage. Lookups say so, and other topics are served."""
    with broker_process(tmp_path / "data", launch=launch) as broker:
        written(broker)
        with Peer(broker.address) as peer:
            handle = peer.producer("other").handle
            peer.ask(m.Message(handle, b"v", b"k"), m.MessageStored)
        assert broker.stop() == 0
        path = log_file(broker)
        data = bytearray(path.read_bytes())
        data[70] ^= 1
        path.write_bytes(data)
        shutil.rmtree(broker.data / "views")
        broker.start()
        with Peer(broker.address) as peer:
            for request in (m.Get(TOPIC, b"a"), m.MultiGet(TOPIC, [b"a"]), m.Scan(TOPIC)):
                with pytest.raises(CorruptBatch) as caught:
                    peer.ask(request, object)
                assert caught.value.file == str(path)
            entry = peer.get("other", b"k")
            assert entry is not None
            assert entry[2] == b"v"
            publish(peer, peer.producer(TOPIC).handle, (b"new", b"event"))  # the log still takes events
        assert broker.stop() == 0


SEGMENTS: dict[str, object] = {"segment.bytes": 200}


@pytest.mark.parametrize("what", ["views", "indexes", "checkpoint", "all"])
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_what_is_derived_may_be_missing(launch: Launcher, tmp_path: Path, what: str, stopped: bool) -> None:
    with broker_process(tmp_path / "data", launch=launch) as broker:
        before = written(broker, 12, SEGMENTS)
        with Peer(broker.address) as peer:
            assert peer.describe(TOPIC)["partitions"][0]["segments"] > 3
        if stopped:
            assert broker.stop() == 0
        else:
            broker.kill()
        folder = broker.data / "topics" / f"{TOPIC}-0"
        if what in ("views", "all"):
            shutil.rmtree(broker.data / "views")
        if what in ("indexes", "all"):
            for path in [*folder.glob("*.index"), *folder.glob("*.timeindex")]:
                path.unlink()
        if what in ("checkpoint", "all"):
            for path in folder.glob("checkpoint*"):
                path.unlink()
        broker.start()
        check_all(broker, before, len(before))


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\xff" * 1000], ids=["empty", "zeros", "ones"])
def test_derived_files_full_of_nonsense(launch: Launcher, tmp_path: Path, content: bytes) -> None:
    with broker_process(tmp_path / "data", launch=launch) as broker:
        before = written(broker, 12, SEGMENTS)
        assert broker.stop() == 0
        folder = broker.data / "topics" / f"{TOPIC}-0"
        for path in [*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("checkpoint*")]:
            path.write_bytes(content)
        broker.start()
        check_all(broker, before, len(before))


def test_a_partition_whose_segment_is_missing_is_out_and_the_rest_serves(launch: Launcher, tmp_path: Path) -> None:
    """Events in the middle are gone. Nobody should find that out by accident, so every answer gives the reason."""
    with broker_process(tmp_path / "data", launch=launch, listen_http="127.0.0.1:0") as broker:
        before = written(broker, 12, SEGMENTS)
        with Peer(broker.address) as peer:
            publish(peer, peer.producer("other").handle, (b"k", b"v"))
            group = m.ConsumerRegistration([TOPIC, "other"], "g")
            peer.ask(m.Commit("g", [(TOPIC, 0, 7)]), m.Committed)
        assert broker.stop() == 0
        files = sorted((broker.data / "topics" / f"{TOPIC}-0").glob("*.log"))
        files[2].rename(tmp_path / "away.log")
        broker.start()
        (said,) = broker.events("partition_offline")
        assert said["partition"] == "t-0"
        assert said["level"] == "error"
        with Peer(broker.address) as peer:
            publish(peer, peer.producer("other").handle, (b"k", b"w"))
            assert [stored.value for stored in peer.read_log("other")[0]] == [b"v", b"w"]
            assert peer.get("other", b"k") is not None
            peer.ask(group, m.ConsumerRegistered)
            told = peer.describe(TOPIC)["partitions"][0]["failed"]
            assert "out of service" in told
            assert "missing" in told
            handle = peer.producer(TOPIC).handle
            for request in (
                m.Get(TOPIC, b"a"),
                m.Scan(TOPIC),
                m.ConsumerRegistration([TOPIC]),
                m.Message(handle, b"v", b"k"),
                m.DeleteRecords(TOPIC, [(0, -1)]),
                m.Offsets(TOPIC, "latest"),
            ):
                with pytest.raises(StorageError, match="missing"):
                    peer.ask(request, object)
        with Consumer({"bootstrap.servers": broker.kafka, "group.id": "k", "log_level": 0}) as consumer:
            low, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition("other", 0), timeout=30)
            assert (low, high) == (0, 2)
            with pytest.raises(confluent_kafka.KafkaException) as caught:
                consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TOPIC, 0), timeout=30)
            assert caught.value.args[0].code() == confluent_kafka.KafkaError.KAFKA_STORAGE_ERROR
        assert fetched(broker, "/readyz"), "the others are to be reached"
        assert b"krappy_partitions_failed 1.0" in fetched(broker, "/metrics")
        assert b"missing" in fetched(broker, f"/api/v1/topics/{TOPIC}")
        assert broker.stop() == 0
        (tmp_path / "away.log").rename(files[2])
        broker.start()
        check_all(broker, before, len(before))
        with Peer(broker.address) as peer:
            assert (TOPIC, 0, 7) in map(tuple, peer.ask(m.Positions("g"), m.PositionsFound).offsets)


def test_a_topic_with_a_partition_that_is_out_can_be_deleted(launch: Launcher, tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", launch=launch) as broker:
        written(broker, 12, SEGMENTS)
        assert broker.stop() == 0
        min((broker.data / "topics" / f"{TOPIC}-0").glob("*.log")).unlink()
        broker.start()
        with Peer(broker.address) as peer:
            peer.ask(m.DeleteTopic(TOPIC), m.TopicDeleted)
            peer.ask(m.CreateTopic(TOPIC, 1), m.TopicCreated)
            assert publish(peer, peer.producer(TOPIC).handle, (b"new", b"event")) == 0


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_a_log_without_its_files_is_not_begun_anew(launch: Launcher, tmp_path: Path, stopped: bool) -> None:
    """Used offsets must not be used again, whether the checkpoint or the view knows of them."""
    for what in ("*.log", "*"):
        with broker_process(tmp_path / f"data{len(what)}", launch=launch) as broker:
            written(broker)
            if stopped:
                assert broker.stop() == 0
            else:
                broker.kill()
            for path in (broker.data / "topics" / f"{TOPIC}-0").glob(what):
                path.unlink()
            broker.start()
            offline = len(broker.events("partition_offline"))
            assert offline == (stopped or what == "*.log"), (
                "a kill takes the view's memory, and the folder tells nothing"
            )


@pytest.mark.parametrize("finder", ["broker", "reader"])
def test_damage_that_is_found_is_told(launch: Launcher, tmp_path: Path, finder: str) -> None:
    """The broker reports where the damage is, and still reads the rest of the log."""
    settings: dict[str, Any] = (
        {"scrub_interval_ms": 100} if finder == "broker" else {"scrub_interval_ms": 0, "retention_check_ms": 100}
    )
    with broker_process(tmp_path / "data", launch=launch, **settings) as broker:
        before = written(broker)
        data = log_file(broker).read_bytes()
        sizes = [header.size for header, _ in batch.split(data)]
        at = sum(sizes[:3]) + 70  # in the records of the fourth batch
        with log_file(broker).open("r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ 1]))
        if finder == "reader":
            with Peer(broker.address) as peer, pytest.raises(CorruptBatch):
                peer.read_log(TOPIC)
        wait_until(lambda: bool(broker.events("log_damaged")), "the damage is told")
        [told] = broker.events("log_damaged")
        assert f"{log_file(broker)} at position {sum(sizes[:3])}" in str(told["why"])
        with Peer(broker.address) as peer:
            assert peer.get(TOPIC, before[-1].key or b"") is not None


def test_a_second_broker_on_the_same_folder_is_refused(launch: Launcher, tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", launch=launch) as broker:
        written(broker)
        second = BrokerProcess(broker.data, launch=launch)
        second.log = tmp_path / "second.log"
        second.begin()
        assert second.ended() == 1
        assert str(broker.pid) in second.last_words()
        with Peer(broker.address) as peer:
            peer.ask(m.Ping(), m.Pong)
