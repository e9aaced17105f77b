"""Snapshots and reads by columns over bare frames: pages, limits, clients that leave, and hostile input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy import arrow_layout
from krappy.arrow_layout import Binary
from krappy.broker.tables import splits
from krappy.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    RecordTooLarge,
    SnapshotGone,
    UnknownPartition,
    UnknownTopic,
)
from krappy.records import batch
from krappy.testing.running import run_broker
from krappy.wire import messages as m
from tests.handlers.raw import Raw

ROWS = 3000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_broker(tmp_path_factory.mktemp("broker") / "data", durability="os") as broker:
        with Raw(broker.address) as raw:
            raw.call(m.CreateTopic("t"))
            handle = raw.producer("t").handle
            keys = [b"%06d" % number for number in range(ROWS)]
            for at in range(0, ROWS, 100):
                records = batch.encode(keys[at : at + 100], keys[at : at + 100], timestamps=at)
                raw.call(m.Batch(handle, 0, records))
        yield broker.address


@pytest.fixture
def raw(address: str) -> Iterator[Raw]:
    with Raw(address) as found:
        yield found


def test_a_range_comes_in_parts_that_each_go_on_where_the_last_one_ended(raw: Raw) -> None:
    opened = raw.call(m.OpenSnapshot("t", splits=3))
    assert [(offset, end) for offset, end in opened.offsets] == [(0, ROWS)]
    assert len(opened.ranges) == 3
    keys: list[bytes | None] = []
    offsets: list[int] = []
    parts = 0
    for partition, start, end in opened.ranges:
        while True:
            read = raw.call(m.ReadSnapshot(opened.snapshot, partition, start, end, ["key", "offset"], max_bytes=5000))
            assert (read.values, read.timestamps, read.headers) == (None, None, None)
            assert read.rows * 14 <= 6000
            keys += arrow_layout.items(Binary(*read.keys))
            offsets += arrow_layout.numbers(read.offsets)
            parts += 1
            start = read.next
            if start is None:
                break
    assert keys == [b"%06d" % number for number in range(ROWS)]
    assert offsets == list(range(ROWS))
    assert parts > 10
    [nothing] = [raw.call(m.ReadSnapshot(opened.snapshot, 0, b"z", None))]
    assert (nothing.rows, nothing.next, arrow_layout.items(Binary(*nothing.keys))) == (0, None, [])
    raw.call(m.CloseSnapshot(opened.snapshot))


def test_fewer_columns_are_fewer_bytes(raw: Raw) -> None:
    opened = raw.call(m.OpenSnapshot("t", splits=1))

    def size(columns: list[str] | None) -> int:
        read = raw.call(m.ReadSnapshot(opened.snapshot, 0, columns=columns, max_bytes=8 << 20))
        assert (read.rows, read.next) == (ROWS, None)
        return len(read.body(1))

    every, keys, none = size(None), size(["key"]), size([])
    assert ROWS * 36 < every < ROWS * 37
    assert ROWS * 10 < keys < ROWS * 11
    assert none < 200
    raw.call(m.CloseSnapshot(opened.snapshot))


def test_a_snapshot_outlives_the_connection_that_took_it(address: str, raw: Raw) -> None:
    with Raw(address) as other:
        opened = other.call(m.OpenSnapshot("t", ttl_ms=600_000))
        other.send(m.ReadSnapshot(opened.snapshot, 0, max_bytes=8 << 20))  # it leaves without waiting for the answer
    assert raw.call(m.ReadSnapshot(opened.snapshot, 0)).rows
    raw.call(m.KeepSnapshot(opened.snapshot, 50_000))
    raw.call(m.KeepSnapshot(opened.snapshot))
    raw.call(m.CloseSnapshot(opened.snapshot))
    raw.call(m.CloseSnapshot(opened.snapshot))
    for request in (m.ReadSnapshot(opened.snapshot, 0), m.KeepSnapshot(opened.snapshot)):
        with pytest.raises(SnapshotGone) as caught:
            raw.call(request)
        assert not caught.value.retriable


def test_what_is_wrong_is_said(raw: Raw) -> None:
    opened = raw.call(m.OpenSnapshot("t"))
    with pytest.raises(UnknownTopic):
        raw.call(m.OpenSnapshot("nowhere"))
    with pytest.raises(UnknownPartition):
        raw.call(m.OpenSnapshot("t", partitions=[1]))
    with pytest.raises(UnknownPartition):
        raw.call(m.ReadSnapshot(opened.snapshot, 7))
    for wrong in (
        m.OpenSnapshot("t", partitions=[]),
        m.OpenSnapshot("t", prefix=b"a", start=b"b"),
        m.OpenSnapshot("t", splits=0),
        m.OpenSnapshot("t", ttl_ms=0),
        m.ReadSnapshot(opened.snapshot, 0, columns=["keys"]),
        m.ReadSnapshot(opened.snapshot, 0, max_bytes=0),
        m.ReadLog("t", 0, 5, 4),
    ):
        with pytest.raises(InvalidRequest):
            raw.call(wrong)
    for gone in ("", "x" * 100_000, "\0", "ü"):
        with pytest.raises(SnapshotGone) as caught:
            raw.call(m.ReadSnapshot(gone, 0))
        assert len(caught.value.text) < 400
    # Bounds that contradict each other, and absurd ones, are empty ranges.
    for start, end in ((b"b", b"a"), (b"", b""), (b"\xff" * 1000, None), (b"a", b"a")):
        assert raw.call(m.ReadSnapshot(opened.snapshot, 0, start, end)).rows == 0
    assert raw.call(m.ReadSnapshot(opened.snapshot, 0, b"", b"000001", max_bytes=2**31 - 1)).rows == 1
    assert len(raw.call(m.OpenSnapshot("t", splits=2**31 - 1, ttl_ms=1)).ranges) <= ROWS
    raw.call(m.CloseSnapshot(opened.snapshot))


def test_a_log_comes_in_parts(raw: Raw) -> None:
    offset, found = 250, []
    while offset < 1234:
        read = raw.call(m.ReadLog("t", 0, offset, 1234, max_bytes=3000))
        batches = list(batch.split(read.records))
        assert batches[0][0].base_offset <= offset < batches[0][0].next_offset
        found += [at for _, view in batches for at in batch.decode(view).offsets]
        assert offset < read.next_offset == batches[-1][0].next_offset
        offset = read.next_offset
    assert found == list(range(200, 1300))
    empty = raw.call(m.ReadLog("t", 0, ROWS, ROWS))
    assert (empty.next_offset, empty.records) == (ROWS, b"")
    for offset, end in ((0, ROWS + 1), (ROWS + 1, ROWS + 1)):
        with pytest.raises(OffsetOutOfRange) as caught:
            raw.call(m.ReadLog("t", 0, offset, end))
        assert caught.value.details == {"start": 0, "end": ROWS, "topic": "t", "partition": 0}
    with pytest.raises(UnknownPartition):
        raw.call(m.ReadLog("t", 1, 0, 1))


def test_a_log_whose_start_was_deleted_says_so(raw: Raw) -> None:
    raw.call(m.CreateTopic("cut"))
    handle = raw.producer("cut").handle
    raw.call(m.Batch(handle, 0, batch.encode([b"a", b"b"], [b"1", b"2"], timestamps=5)))
    raw.call(m.DeleteRecords("cut", [(0, 1)]))
    with pytest.raises(OffsetOutOfRange) as caught:
        raw.call(m.ReadLog("cut", 0, 0, 2))
    assert (caught.value.start, caught.value.end) == (1, 2)
    assert raw.call(m.ReadLog("cut", 0, 1, 2)).next_offset == 2


def test_a_topic_that_was_made_anew_is_another(raw: Raw) -> None:
    """Whoever also names the topic's id reads nothing of the new topic, whatever offsets that one has."""
    ids = []
    for value in (b"old", b"new"):
        raw.call(m.CreateTopic("anew"))
        raw.call(m.Batch(raw.producer("anew").handle, 0, batch.encode([b"k"], [value], timestamps=5)))
        [told] = raw.call(m.DescribeTopics(["anew"])).topics
        ids.append(told["id"])
        assert told["partitions"][0]["last_stable_offset"] == 1
        assert value in raw.call(m.ReadLog("anew", 0, 0, 1, topic_id=ids[-1])).records
        opened = raw.call(m.OpenSnapshot("anew", topic_id=ids[-1]))
        raw.call(m.CloseSnapshot(opened.snapshot))
        if value == b"old":
            raw.call(m.DeleteTopic("anew"))
    for asked in (m.ReadLog("anew", 0, 0, 1, topic_id=ids[0]), m.OpenSnapshot("anew", topic_id=ids[0])):
        with pytest.raises(UnknownTopic, match="was deleted; another one of that name was made since"):
            raw.call(asked)


def test_keys_that_are_no_column_are_refused(raw: Raw) -> None:
    def ask(offsets: bytes, keys: bytes) -> m.ColumnsGot:
        found: m.ColumnsGot = raw.call(m.GetColumns("t", offsets, keys))
        return found

    for offsets, keys in (
        (b"", b""),
        (b"\0", b""),
        (b"\0" * 7, b""),
        (b"\1\0\0\0", b"a"),
        (b"\0\0\0\0\2\0\0\0", b"a"),
        (b"\0\0\0\0\0\0\0\0", b"a"),
        (b"\0\0\0\0\2\0\0\0\1\0\0\0\3\0\0\0", b"abc"),
        (b"\0\0\0\0\xff\xff\xff\xff\1\0\0\0", b"a"),
    ):
        with pytest.raises(InvalidRequest, match="not a column"):
            ask(offsets, keys)
    assert ask(b"\0\0\0\0", b"").rows == 0
    empty = ask(b"\0" * 12, b"")  # an empty key, twice
    assert (empty.rows, empty.found) == (2, b"\0")
    with pytest.raises(InvalidRequest, match="at most 100000"):
        ask(b"\0" * 4 * 100_002, b"")


def test_readers_that_never_take_their_answers_hold_up_nobody(address: str, tmp_path: Path) -> None:
    """Their answers wait within the bounds of memory, and are dropped with their connections."""
    with run_broker(tmp_path / "data", durability="os", memory_bytes=4 << 20) as broker, Raw(broker.address) as raw:
        raw.call(m.CreateTopic("t"))
        handle = raw.producer("t").handle
        for at in range(0, 6000, 100):
            keys = [b"%06d" % number for number in range(at, at + 100)]
            raw.call(m.Batch(handle, 0, batch.encode(keys, [b"x" * 500] * 100, timestamps=1)))
        opened = raw.call(m.OpenSnapshot("t"))
        idle = [Raw(broker.address) for _ in range(5)]
        for each in idle:
            for _ in range(50):
                each.send(m.ReadSnapshot(opened.snapshot, 0, max_bytes=8 << 20))
        found, start = 0, None
        while True:
            read = raw.call(m.ReadSnapshot(opened.snapshot, 0, start))
            found += read.rows
            start = read.next
            if start is None:
                break
        assert found == 6000
        for each in idle:
            each.socket.close()
        raw.call(m.CloseSnapshot(opened.snapshot))
        with pytest.raises(SnapshotGone):
            raw.call(m.ReadSnapshot(opened.snapshot, 0))


def test_ranges_that_would_take_a_large_answer_are_refused(raw: Raw) -> None:
    """Each partition has a range, which repeats the bounds of the request."""
    raw.call(m.CreateTopic("wide", 400, if_absent=True))
    for request in (
        m.OpenSnapshot("wide", start=b"\0" * 50_000),
        m.OpenSnapshot("wide", end=b"z" * 50_000, splits=1000),
        m.OpenSnapshot("wide", prefix=b"z" * 50_000, splits=1000),
    ):
        with pytest.raises(RecordTooLarge, match="the ranges take more than 16777216 bytes"):
            raw.call(request)
    assert len(raw.call(m.OpenSnapshot("wide", start=b"\0" * 10_000)).ranges) == 400


def test_ranges_cut_at_large_keys_are_refused_when_there_are_too_many(
    raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = raw.producer("large").handle
    for number in range(40):
        raw.call(m.Message(handle, b"v", b"%02d" % number + bytes(500_000)))
    monkeypatch.setattr(splits, "STEP", 1)
    monkeypatch.setattr(splits, "ROOM", 40 << 20)
    monkeypatch.setattr("krappy.core.splits.LEAST", 1)
    with pytest.raises(RecordTooLarge, match="the ranges take more than 16777216 bytes"):
        raw.call(m.OpenSnapshot("large", splits=40))
    assert len(raw.call(m.OpenSnapshot("large", splits=4)).ranges) == 4
