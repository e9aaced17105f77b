"""Publishing by native messages: Message and Batch against a real broker."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from krappy import errors
from krappy.records import batch
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from tests.handlers.raw import Raw, read_all, records


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


@pytest.mark.parametrize("view", ["true", "false"])
def test_a_timestamp_before_1970_is_refused(raw: Raw, view: str) -> None:
    raw.call(m.CreateTopic("t", 1, {"view.enable": view}))
    handle = raw.producer("t").handle
    for wrong in (-1, -2, -(2**63)):  # in the message, no timestamp is nil
        with pytest.raises(errors.InvalidRequest, match="timestamp"):
            raw.call(m.Message(handle, b"v", b"k", wrong))
    for wrong in (-2, -(2**63)):
        with pytest.raises(errors.InvalidTimestamp, match=f"record 1 has the timestamp {wrong}") as refused:
            raw.call(m.Batch(handle, 0, batch.encode(None, [b"x", b"y", b"z"], timestamps=[-1, wrong, -1])))
        assert refused.value.index == 1
    raw.call(m.Batch(handle, 0, batch.encode(None, [b"x"], timestamps=-1)))
    assert read_all(raw, "t") == [(0, 0, None, b"x")]


def test_a_timestamp_far_from_the_brokers_clock_is_refused(raw: Raw) -> None:
    raw.call(m.CreateTopic("t", 1, {"message.timestamp.before.max.ms": 3_600_000}))
    handle, now = raw.producer("t").handle, time.time_ns() // 1_000_000
    for wrong, setting in ((now + 7_200_000, "after"), (now * 1_000_000, "after"), (0, "before")):
        for size in (1, 600_000):  # one that shares its batch, and one that does not
            with pytest.raises(errors.InvalidTimestamp, match=f"message.timestamp.{setting}.max.ms is 3600000"):
                raw.call(m.Message(handle, b"v" * size, b"k", wrong))
        with pytest.raises(errors.InvalidTimestamp, match=f"record 1 has the timestamp {wrong}"):
            raw.call(m.Batch(handle, 0, batch.encode(None, [b"x", b"y", b"z"], timestamps=[-1, wrong, now])))
    raw.call(m.Message(handle, b"v", b"k", now + 1_800_000))
    assert len(read_all(raw, "t")) == 1


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
    """Several connections increment a counter by compare-and-set: no increment is lost."""
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


@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("codec", [0, 4])
def test_a_false_max_timestamp_is_put_right(raw: Raw, view: bool, codec: int) -> None:
    """Retention and seeks go by it: a false word of a producer would keep a segment for ever."""
    raw.call(m.CreateTopic("t", config={"view.enable": view}))
    handle = raw.producer("t").handle
    lie = batch.correct_max_timestamp(records((b"a", b"1"), (b"b", b"2"), codec=codec), 2**60)
    assert batch.check(lie).max_timestamp == 2**60
    assert raw.call(m.Batch(handle, 0, lie)).timestamp == 1_000
    consumer = raw.call(m.ConsumerRegistration(["t"]))
    ((*_, stored),) = raw.call(m.Poll(consumer.handle)).parts
    assert batch.check(stored).max_timestamp == 1_000


def test_what_a_batch_may_not_claim(raw: Raw) -> None:
    handle = raw.producer("t").handle
    plain = records((b"a", b"1"))
    for claim in (records((b"a", b"1"), log_append_time=True), batch.with_delete_horizon(plain, 1)):
        with pytest.raises(errors.InvalidRecord):
            raw.call(m.Batch(handle, 0, claim))
    assert raw.call(m.Batch(handle, 0, plain)).offset == 0


def test_a_compressed_bomb_is_refused(raw: Raw) -> None:
    handle = raw.producer("t").handle
    bomb = batch.encode([b"k"] * 400, [b"\0" * 100_000] * 400, timestamps=1, codec=4)
    assert len(bomb) < 1_000_000
    with pytest.raises(errors.CorruptBatch):
        raw.call(m.Batch(handle, 0, bomb))
    assert raw.call(m.Ping()).cluster


def test_only_who_writes_is_advised_to_create_a_topic(tmp_path: Path) -> None:
    """A reader may have lost the topic to somebody who has just deleted it."""
    with run_broker(tmp_path / "data", auto_create_topics=False) as broker, Raw(broker.address) as raw:
        with pytest.raises(errors.UnknownTopic, match="create it with `krappy topic create nowhere`"):
            raw.producer("nowhere")
        reads = [
            m.Get("nowhere", b"k"),
            m.ReadLog("nowhere", 0, 0, 1),
            m.ReadLog("nowhere", 0, 0, 1, topic_id="gone"),
            m.OpenSnapshot("nowhere"),
            m.OpenSnapshot("nowhere", topic_id="gone"),
            m.DeleteTopic("nowhere"),
        ]
        for request in reads:
            with pytest.raises(errors.UnknownTopic, match=r"there is no topic 'nowhere'$|id gone was deleted$") as told:
                raw.call(request)
            assert told.value.topic == "nowhere"
