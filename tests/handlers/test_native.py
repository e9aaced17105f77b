"""Each native message against a real broker over a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from krappy import batch, errors
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from tests.handlers.raw import Raw


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with run_broker(tmp_path / "data", durability="os") as running:
        yield running


@pytest.fixture
def raw(broker: RunningBroker) -> Iterator[Raw]:
    with Raw(broker.address) as client:
        yield client


def records(*pairs: tuple[bytes | None, bytes | None], **more: Any) -> bytes:
    return batch.encode([key for key, _ in pairs], [value for _, value in pairs], timestamps=1_000, **more)


def read_all(raw: Raw, topic: str, **more: Any) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """(partition, offset, key, value) of everything a reader is given until it is at the high watermarks."""
    registered = raw.call(m.ConsumerRegistration([topic], **more))
    left = {(t, p): end for t, p, end in registered.ends}
    for t, p, position in registered.positions:
        if position >= left[t, p]:
            del left[t, p]
    found = []
    while left:
        for t, p, first, _, data in raw.call(m.Poll(registered.handle)).parts:
            for header, view in batch.split(data):
                columns = batch.decode(view)
                for offset, key, value in zip(columns.offsets, columns.keys, columns.values, strict=True):
                    if offset >= first:
                        found.append((p, offset, key, value))
                if header.next_offset >= left.get((t, p), 0):
                    left.pop((t, p), None)
    raw.call(m.Unregister(registered.handle))
    return sorted(found)


def test_ping_says_who_answers(raw: Raw) -> None:
    pong = raw.call(m.Ping())
    assert len(pong.cluster) == 22
    assert pong.max_frame > 1 << 20


def test_a_topic_is_created_described_altered_and_deleted(raw: Raw) -> None:
    assert raw.call(m.CreateTopic("t", 2, {"retention.ms": 5000})).created
    with pytest.raises(errors.TopicExists):
        raw.call(m.CreateTopic("t"))
    assert not raw.call(m.CreateTopic("t", if_absent=True)).created
    raw.call(m.AlterTopic("t", {"retention.ms": None, "segment.bytes": 10_000}, partitions=3))
    (described,) = raw.call(m.DescribeTopics(["t"])).topics
    assert described["config"] == {"segment.bytes": "10000"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    with pytest.raises(errors.InvalidPartitions):
        raw.call(m.AlterTopic("t", partitions=2))
    with pytest.raises(errors.InvalidConfig, match=r"retention\.ms"):
        raw.call(m.AlterTopic("t", {"retention.m": 1}))
    raw.call(m.DeleteTopic("t"))
    with pytest.raises(errors.UnknownTopic):
        raw.call(m.DescribeTopics(["t"]))
    assert raw.call(m.CreateTopic("t")).partitions == 1


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "x" * 250])
def test_a_topic_with_an_impossible_name_is_refused(raw: Raw, name: str) -> None:
    with pytest.raises(errors.InvalidTopic):
        raw.call(m.CreateTopic(name))


def test_messages_are_stored_in_the_order_sent(raw: Raw) -> None:
    handle = raw.producer("t").handle
    ids = [raw.send(m.Message(handle, b"%d" % n, b"k%d" % (n % 7))) for n in range(500)]
    assert [raw.receive(id).offset for id in ids] == list(range(500))
    assert [value for *_, value in read_all(raw, "t")] == [b"%d" % n for n in range(500)]


def test_many_registrations_share_a_connection(raw: Raw) -> None:
    handles = {name: raw.producer(name).handle for name in ("a", "b", "c")}
    for n in range(30):
        for name, handle in handles.items():
            raw.call(m.Message(handle, f"{name}{n}".encode()))
    for name in handles:
        assert [value for *_, value in read_all(raw, name)] == [f"{name}{n}".encode() for n in range(30)]


def test_keys_choose_the_partition_as_kafka_does(raw: Raw) -> None:
    raw.call(m.CreateTopic("t", 3))
    handle = raw.producer("t").handle
    stored = {key: raw.call(m.Message(handle, b"v", key)).partition for key in (b"u1", b"a", b"b", b"foobar")}
    # murmur2("foobar") from Kafka's UtilsTest is -790332482
    assert stored[b"foobar"] == (-790332482 & 0x7FFFFFFF) % 3
    for key, partition in stored.items():
        assert raw.call(m.Get("t", key)).partition == partition
    keyless = {raw.call(m.Message(handle, b"v")).partition for _ in range(3)}
    assert keyless == {0, 1, 2}


def test_a_retried_batch_is_stored_once(raw: Raw) -> None:
    producer = raw.producer("t", idempotent=True)
    data = records((b"a", b"1"), (b"b", b"2"), producer_id=producer.producer_id, producer_epoch=0, base_sequence=0)
    assert raw.call(m.Batch(producer.handle, 0, data)).offset == 0
    assert raw.call(m.Batch(producer.handle, 0, data)).offset == 0
    ahead = records((b"c", b"3"), producer_id=producer.producer_id, producer_epoch=0, base_sequence=7)
    with pytest.raises(errors.OutOfOrderSequence):
        raw.call(m.Batch(producer.handle, 0, ahead))
    assert len(read_all(raw, "t")) == 2


def test_a_retry_is_recognised_after_a_restart(tmp_path: Path) -> None:
    with run_broker(tmp_path / "data") as broker, Raw(broker.address) as raw:
        producer = raw.producer("t", idempotent=True)
        data = records((b"a", b"1"), producer_id=producer.producer_id, producer_epoch=0, base_sequence=0)
        raw.call(m.Batch(producer.handle, 0, data))
    with run_broker(tmp_path / "data") as broker, Raw(broker.address) as raw:
        again = raw.producer("t", idempotent=True, producer_id=producer.producer_id, producer_epoch=0)
        assert again.producer_id == producer.producer_id
        assert raw.call(m.Batch(again.handle, 0, data)).offset == 0
        assert raw.producer("t", idempotent=True).producer_id != producer.producer_id
        assert len(read_all(raw, "t")) == 1


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: data[:-1], errors.CorruptBatch),
        (lambda data: data + b"\0", errors.CorruptBatch),
        (lambda data: data[:70] + bytes([data[70] ^ 1]) + data[71:], errors.CorruptBatch),
        (lambda data: b"", errors.CorruptBatch),
        (lambda data: b"\xff" * 100, errors.CorruptBatch),
        (lambda data: records((b"k", b"v"), control=True), errors.InvalidRecord),
        (lambda data: records((b"k", b"x" * 2_000_000)), errors.RecordTooLarge),
        (lambda data: records((None, b"v")), errors.InvalidRecord),
    ],
)
def test_a_bad_batch_costs_only_itself(raw: Raw, damage: Any, error: type[Exception]) -> None:
    raw.call(m.CreateTopic("t", config={"cleanup.policy": "compact"}))
    handle = raw.producer("t").handle
    good = records((b"k", b"v"), (b"l", b"w"))
    with pytest.raises(error):
        raw.call(m.Batch(handle, 0, damage(good)))
    assert raw.call(m.Batch(handle, 0, good)).offset == 0


def test_a_lookup_tells_absent_deleted_and_value_apart(raw: Raw) -> None:
    handle = raw.producer("t").handle
    raw.call(m.Message(handle, b"1", b"a", timestamp=5, headers=[("h", b"x"), ("n", None)]))
    raw.call(m.Message(handle, b"2", b"b"))
    raw.call(m.Message(handle, None, b"b", timestamp=7))
    assert raw.call(m.Get("t", b"a")).entry == [[0, 5, b"1", [["h", b"x"], ["n", None]]]]
    assert raw.call(m.Get("t", b"b")).entry == [[2, 7, None, None]]
    assert raw.call(m.Get("t", b"c")).entry == [None]
    found = raw.call(m.MultiGet("t", [b"c", b"a", b"b", b"a"]))
    assert [entry and entry[0] for entry in found.entries] == [None, 0, 2, 0]


def test_a_read_sees_the_write_before_it(raw: Raw) -> None:
    handle = raw.producer("t").handle
    for n in range(300):
        raw.call(m.Message(handle, b"%d" % n, b"k"))
        assert raw.call(m.Get("t", b"k")).entry[0][2] == b"%d" % n


def test_conditions_hold_or_the_write_is_refused_with_the_current_offset(raw: Raw) -> None:
    handle = raw.producer("t").handle
    assert raw.call(m.Message(handle, b"1", b"k", expect=-1)).offset == 0
    for wrong in (-1, 5):
        with pytest.raises(errors.OffsetMismatch) as refused:
            raw.call(m.Message(handle, b"2", b"k", expect=wrong))
        assert refused.value.current == 0
    assert raw.call(m.Message(handle, None, b"k", expect=0)).offset == 1
    with pytest.raises(errors.OffsetMismatch) as refused:
        raw.call(m.Message(handle, b"3", b"k", expect=0))
    assert refused.value.current is None
    assert raw.call(m.Message(handle, b"3", b"k", expect=-1)).offset == 2
    data = records((b"x", b"1"), (b"k", b"4"))
    with pytest.raises(errors.OffsetMismatch) as refused:
        raw.call(m.Batch(handle, 0, data, expect=[(0, -1), (1, 1)]))
    assert (refused.value.current, refused.value.index) == (2, 1)
    assert raw.call(m.Batch(handle, 0, data, expect=[(0, -1), (1, 2)])).offset == 3


def test_of_many_conditional_writers_one_wins_each_round(broker: RunningBroker) -> None:
    """A counter incremented by compare-and-set from several connections loses no increment."""
    workers, rounds = 4, 25

    def increment() -> None:
        with Raw(broker.address) as raw:
            handle = raw.producer("counter").handle
            done = 0
            while done < rounds:
                (entry,) = raw.call(m.Get("counter", b"n")).entry
                now, at = (0, -1) if entry is None else (int(entry[2]), entry[0])
                try:
                    raw.call(m.Message(handle, b"%d" % (now + 1), b"n", expect=at))
                    done += 1
                except errors.OffsetMismatch:
                    continue

    with Raw(broker.address) as raw:
        raw.call(m.CreateTopic("counter"))
        threads = [threading.Thread(target=increment) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert int(raw.call(m.Get("counter", b"n")).entry[0][2]) == workers * rounds


def test_a_waiting_poll_holds_up_nobody_and_ends_with_an_event(raw: Raw) -> None:
    handle = raw.producer("t").handle
    consumer = raw.call(m.ConsumerRegistration(["t"]))
    waiting = raw.send(m.Poll(consumer.handle, max_wait=20_000))
    assert raw.call(m.Get("t", b"x")).entry == [None]
    raw.call(m.Message(handle, b"hello"))
    ((topic, partition, first, end, data),) = raw.receive(waiting).parts
    assert (topic, partition, first, end) == ("t", 0, 0, 1)
    assert batch.decode(data).values == [b"hello"]
    assert raw.call(m.Poll(consumer.handle)).parts == []
    begun = time.monotonic()
    assert raw.call(m.Poll(consumer.handle, max_wait=50)).parts == []
    assert time.monotonic() - begun >= 0.05


def test_readers_start_where_they_say(raw: Raw) -> None:
    handle = raw.producer("t").handle
    for n in range(10):
        raw.call(m.Message(handle, b"%d" % n, timestamp=1000 + n * 10))
    assert [o for _, o, *_ in read_all(raw, "t", start="offset", start_at=4)] == [4, 5, 6, 7, 8, 9]
    assert [o for _, o, *_ in read_all(raw, "t", start="timestamp", start_at=1055)] == [6, 7, 8, 9]
    assert read_all(raw, "t", start="latest") == []
    assert read_all(raw, "t", start="timestamp", start_at=9999) == []
    assert raw.call(m.Offsets("t", "timestamp", 1031)).offsets == [[0, 4]]
    with pytest.raises(errors.OffsetOutOfRange) as refused:
        read_all(raw, "t", start="offset", start_at=11)
    assert (refused.value.start, refused.value.end) == (0, 10)
    with pytest.raises(errors.InvalidRequest):
        read_all(raw, "t", start="sometime")


def test_two_readers_do_not_disturb_each_other(raw: Raw) -> None:
    handle = raw.producer("t").handle
    raw.call(m.Batch(handle, 0, records(*((b"k%d" % n, b"v") for n in range(50)))))
    one = raw.call(m.ConsumerRegistration(["t"]))
    two = raw.call(m.ConsumerRegistration(["t"]))
    assert raw.call(m.Poll(one.handle)).parts
    assert raw.call(m.Poll(one.handle)).parts == []
    assert raw.call(m.Poll(two.handle)).parts[0][2] == 0
    assert raw.call(m.Seek(one.handle, "t", 0, "offset", 20)).offset == 20
    assert raw.call(m.Poll(one.handle)).parts[0][2] == 20


def test_max_records_ends_an_answer_behind_a_whole_batch(raw: Raw) -> None:
    handle = raw.producer("t").handle
    for _ in range(5):
        raw.call(m.Batch(handle, 0, records((b"a", b"1"), (b"b", b"2"))))
    consumer = raw.call(m.ConsumerRegistration(["t"]))
    counts = []
    while parts := raw.call(m.Poll(consumer.handle, max_records=3)).parts:
        counts.append(sum(header.count for header, _ in batch.split(parts[0][4])))
    assert counts == [4, 4, 2]


def scan(raw: Raw, **what: Any) -> tuple[list[tuple[int, bytes, Any]], list[list[int]]]:
    page = raw.call(m.Scan(**what))
    found = []
    while True:
        found += [(page.partition, page.entries[i], page.entries[i + 1]) for i in range(0, len(page.entries), 2)]
        if page.cursor is None:
            return found, page.offsets
        page = raw.call(m.Scan(cursor=page.cursor, max_entries=what.get("max_entries", 1000)))


def test_a_scan_pages_through_one_snapshot(raw: Raw) -> None:
    handle = raw.producer("t").handle
    raw.call(m.Batch(handle, 0, records(*((b"k%03d" % n, b"old") for n in range(100)))))
    page = raw.call(m.Scan("t", max_entries=30))
    raw.call(m.Batch(handle, 0, records(*((b"k%03d" % n, b"new") for n in range(120)))))
    entries = list(page.entries)
    while page.cursor is not None:
        page = raw.call(m.Scan(cursor=page.cursor, max_entries=30))
        entries += page.entries
    assert entries[0::2] == [b"k%03d" % n for n in range(100)]
    assert {entry[2] for entry in entries[1::2]} == {b"old"}
    assert page.offsets == [[0, 100]]


def test_a_scan_takes_a_prefix_or_a_range(raw: Raw) -> None:
    raw.call(m.CreateTopic("t", 2))
    handle = raw.producer("t").handle
    for key in (b"a", b"a1", b"a2", b"b", b"b\xff", b"c", b"\xff\xff"):
        raw.call(m.Message(handle, b"v", key))
    raw.call(m.Message(handle, None, b"a2"))

    def keys(**what: Any) -> list[bytes]:
        return sorted(key for _, key, _ in scan(raw, topic="t", **what)[0])

    assert keys() == [b"a", b"a1", b"b", b"b\xff", b"c", b"\xff\xff"]
    assert keys(prefix=b"a") == [b"a", b"a1"]
    assert keys(prefix=b"a", tombstones=True) == [b"a", b"a1", b"a2"]
    assert keys(prefix=b"\xff") == [b"\xff\xff"]
    assert keys(start=b"a1", end=b"c") == [b"a1", b"b", b"b\xff"]
    assert keys(end=b"b") == [b"a", b"a1"]
    assert keys(prefix=b"zzz") == []
    assert sorted(scan(raw, topic="t", max_entries=1)[0]) == sorted(scan(raw, topic="t")[0])
    with pytest.raises(errors.InvalidRequest):
        keys(prefix=b"a", start=b"b")
    with pytest.raises(errors.UnknownHandle):
        raw.call(m.Scan(cursor=999))


def test_a_watch_has_no_gap_and_no_duplicate(broker: RunningBroker) -> None:
    """While a writer is busy: the snapshot and the changes together are every key's whole story from there on."""
    count = 3000
    with Raw(broker.address) as raw:
        raw.call(m.CreateTopic("t", 2))

        def write() -> None:
            with Raw(broker.address) as writer:
                handle = writer.producer("t").handle
                ids = []
                for n in range(count):
                    ids.append(writer.send(m.Message(handle, b"%d" % n, b"k%d" % (n % 50))))
                for id in ids:
                    writer.receive(id)

        thread = threading.Thread(target=write)
        thread.start()
        watch = raw.send(m.Watch("t"))
        exact: dict[int, int] = {}
        latest: dict[bytes, int] = {}
        seen: dict[int, list[int]] = {0: [], 1: []}
        expected = {b"k%d" % (n % 50): n for n in range(count)}
        while not exact or latest != expected:  # one partition may be ahead of the other
            answer = raw.receive(watch)
            pairs = list(zip(answer.entries[0::2], answer.entries[1::2], strict=True))
            if answer.event == "end_of_snapshot":
                exact = dict(answer.offsets)
            for key, entry in pairs:
                latest[key] = int(entry[2])
                if answer.event == "changes":
                    assert exact, "a change before the end of the snapshot"
                    seen[answer.partition].append(entry[0])
                else:
                    assert not exact, "a snapshot entry after its end"
        thread.join()
        raw.call(m.Unregister(answer.handle))
        for partition, offsets in seen.items():
            first = exact[partition]
            assert offsets == list(range(first, first + len(offsets)))
        assert raw.receive(watch).more is False


def test_a_watch_goes_on_to_partitions_that_come_later(broker: RunningBroker, raw: Raw) -> None:
    """Each event once, from the beginning of the new ones; also for who resumes and does not know them."""

    def publish(partition: int, *values: bytes) -> None:
        for value in values:
            writer.call(m.Message(handle, value, b"k" + value, partition=partition))

    def take(watch: int, count: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            answer = raw.receive(watch)
            assert answer.event == "changes"
            found += [(answer.partition, entry[2]) for entry in answer.entries[1::2]]
            offsets[answer.partition] = answer.next_offset
        return found

    with Raw(broker.address) as writer:
        writer.call(m.CreateTopic("t", 1))
        handle = writer.producer("t").handle
        publish(0, b"0")
        watch, some = raw.send(m.Watch("t")), raw.send(m.Watch("t", partitions=[0]))
        offsets: dict[int, int] = {}
        while not offsets:
            answer = raw.receive(watch)
            offsets = dict(answer.offsets or ())
        assert offsets == {0: 1}
        writer.call(m.AlterTopic("t", partitions=3))
        publish(2, b"1", b"2")
        publish(0, b"3")
        publish(1, b"4")
        assert sorted(take(watch, 4)) == [(0, b"3"), (1, b"4"), (2, b"1"), (2, b"2")]
        assert offsets == {0: 2, 1: 1, 2: 2}
        raw.call(m.Unregister(answer.handle))
        assert raw.receive(watch).more is False
        publish(1, b"5")
        del offsets[2]
        watch = raw.send(m.Watch("t", offsets=list(offsets.items())))
        assert sorted(take(watch, 3)) == [(1, b"5"), (2, b"1"), (2, b"2")]
        publish(0, b"6")
        told = [raw.receive(some) for _ in range(4)]  # a snapshot, its end, and its own partition's changes
        assert {each.partition for each in told} == {0}
        with pytest.raises(errors.InvalidRequest):
            raw.call(m.Watch("t", offsets=[(0, 1)], partitions=[0, 1]))


def test_a_watch_tells_how_far_it_is_where_nothing_matches(raw: Raw) -> None:
    handle = raw.producer("t").handle
    watch = raw.send(m.Watch("t", prefix=b"other"))
    assert raw.receive(watch).event == "end_of_snapshot"
    for n in range(5):
        raw.call(m.Message(handle, b"%d" % n, b"k"))
    reached = 0
    while reached < 5:
        answer = raw.receive(watch)
        assert (answer.event, answer.entries) == ("changes", [])
        assert answer.next_offset > reached
        reached = answer.next_offset
    assert reached == 5
    raw.call(m.Message(handle, b"5", b"other-key"))
    answer = raw.receive(watch)
    assert (answer.next_offset, answer.entries[0]) == (6, b"other-key")


def test_a_watch_goes_on_from_offsets(raw: Raw) -> None:
    handle = raw.producer("t").handle
    for n in range(5):
        raw.call(m.Message(handle, b"%d" % n, b"k"))
    watch = raw.send(m.Watch("t", offsets=[(0, 3)]))
    answer = raw.receive(watch)
    assert (answer.event, answer.next_offset) == ("changes", 5)
    assert [entry[2] for entry in answer.entries[1::2]] == [b"3", b"4"]
    with pytest.raises(errors.InvalidRequest):
        raw.call(m.Watch("t", offsets=[(1, 3)]))


def test_history_is_every_event_of_a_key(raw: Raw) -> None:
    handle = raw.producer("t").handle
    for n in range(100):
        raw.call(m.Batch(handle, 0, records((b"k%d" % (n % 3), b"%d" % n), (None, b"k1"))))
    found = []
    offset: int | None = 0
    while offset is not None:
        page = raw.call(m.History("t", b"k1", offset=offset, max_records=10))
        assert len(page.entries) <= 10
        found += page.entries
        offset = page.next_offset
    assert [entry[2] for entry in found] == [b"%d" % n for n in range(1, 100, 3)]


def test_without_a_view_lookups_are_refused_and_the_log_works(raw: Raw) -> None:
    raw.call(m.CreateTopic("t", config={"view.enable": "false"}))
    handle = raw.producer("t").handle
    raw.call(m.Message(handle, b"v", b"k"))
    for request in (m.Get("t", b"k"), m.MultiGet("t", [b"k"]), m.Scan("t"), m.Watch("t")):
        with pytest.raises(errors.ViewDisabled):
            raw.call(request)
    assert len(read_all(raw, "t")) == 1
    raw.call(m.AlterTopic("t", {"view.enable": "true"}))
    assert raw.call(m.Get("t", b"k")).entry[0][2] == b"v"
    raw.call(m.AlterTopic("t", {"view.enable": "false"}))
    raw.call(m.Message(handle, b"w", b"k"))
    raw.call(m.AlterTopic("t", {"view.enable": None}))
    assert raw.call(m.Get("t", b"k")).entry[0][2] == b"w"


def test_deleting_a_topic_ends_what_waits_on_it(broker: RunningBroker, raw: Raw) -> None:
    producer = raw.producer("t")
    consumer = raw.call(m.ConsumerRegistration(["t"]))
    waiting = raw.send(m.Poll(consumer.handle, max_wait=20_000))
    watch = raw.send(m.Watch("t"))
    assert raw.receive(watch).event == "end_of_snapshot"
    with Raw(broker.address) as other:
        other.call(m.DeleteTopic("t"))
    for id in (waiting, watch):
        with pytest.raises(errors.UnknownTopic):
            raw.receive(id)
    with pytest.raises(errors.UnknownTopic):
        raw.call(m.Message(producer.handle, b"v"))


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with run_broker(tmp_path / "data") as broker, Raw(broker.address) as raw:
        raw.call(m.CreateTopic("t", 2, {"cleanup.policy": "compact"}))
        handle = raw.producer("t").handle
        for n in range(200):
            raw.call(m.Message(handle, b"%d" % n, b"k%d" % (n % 20)))
        log, table = read_all(raw, "t"), scan(raw, topic="t")
        (described,) = raw.call(m.DescribeTopics(["t"])).topics
    with run_broker(tmp_path / "data") as broker, Raw(broker.address) as raw:
        assert read_all(raw, "t") == log
        assert scan(raw, topic="t") == table
        assert raw.call(m.DescribeTopics(["t"])).topics == [described]


def test_log_append_time_is_the_brokers(raw: Raw) -> None:
    raw.call(m.CreateTopic("t", config={"message.timestamp.type": "LogAppendTime"}))
    handle = raw.producer("t").handle
    before = int(time.time() * 1000) - 1
    assert raw.call(m.Message(handle, b"v", b"k", timestamp=5)).timestamp >= before
    assert raw.call(m.Batch(handle, 0, records((b"a", b"1"), (b"b", b"2")))).timestamp >= before
    for key in (b"k", b"a", b"b"):
        assert raw.call(m.Get("t", key)).entry[0][1] >= before


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_stay_compressed_and_are_looked_up(raw: Raw, codec: int) -> None:
    handle = raw.producer("t").handle
    data = records(*((b"k%d" % n, b"v" * 100) for n in range(100)), codec=codec)
    raw.call(m.Batch(handle, 0, data))
    assert raw.call(m.Get("t", b"k7")).entry[0][:3:2] == [7, b"v" * 100]
    consumer = raw.call(m.ConsumerRegistration(["t"]))
    ((*_, stored),) = raw.call(m.Poll(consumer.handle)).parts
    assert stored[16:] == data[16:]


def test_a_false_max_timestamp_is_put_right(raw: Raw) -> None:
    """Retention and seeks go by it: a producer's wrong word would keep a segment for ever."""
    handle = raw.producer("t").handle
    lie = batch.correct_max_timestamp(records((b"a", b"1"), (b"b", b"2")), 2**60)
    assert batch.check(lie).max_timestamp == 2**60
    assert raw.call(m.Batch(handle, 0, lie)).timestamp == 1_000
    consumer = raw.call(m.ConsumerRegistration(["t"]))
    ((*_, stored),) = raw.call(m.Poll(consumer.handle)).parts
    assert batch.check(stored).max_timestamp == 1_000


def test_append_time_is_not_a_producers_to_claim(raw: Raw) -> None:
    handle = raw.producer("t").handle
    with pytest.raises(errors.InvalidRecord):
        raw.call(m.Batch(handle, 0, records((b"a", b"1"), log_append_time=True)))


def test_a_compressed_bomb_is_refused(raw: Raw) -> None:
    handle = raw.producer("t").handle
    bomb = batch.encode([b"k"] * 400, [b"\0" * 100_000] * 400, timestamps=1, codec=4)
    assert len(bomb) < 1_000_000
    with pytest.raises(errors.CorruptBatch):
        raw.call(m.Batch(handle, 0, bomb))
    assert raw.call(m.Ping()).cluster
