"""Reading logs by native messages, without a group, against a real broker."""

from __future__ import annotations

import time

import pytest

from krappy import errors
from krappy.records import batch
from krappy.wire import messages as m
from tests.handlers.raw import Raw, read_all, records


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


def test_a_seek_wakes_the_poll_that_waits(raw: Raw) -> None:
    raw.call(m.Batch(raw.producer("t").handle, 0, records((b"a", b"1"), (b"b", b"2"))))
    consumer = raw.call(m.ConsumerRegistration(["t"], start="latest"))
    waiting = raw.send(m.Poll(consumer.handle, max_wait=60_000))
    assert raw.call(m.Get("t", b"a")).entry  # the poll has begun to wait
    assert raw.call(m.Seek(consumer.handle, "t", 0, "offset", 0)).offset == 0
    assert raw.receive(waiting).parts[0][2] == 0


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
