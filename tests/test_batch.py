"""RecordBatch v2: against two other implementations in both directions, round trips, the cleaner's part."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st

from krappy.errors import CorruptBatch
from krappy.records import batch, codecs
from krappy.records import reader as record_reader
from krappy.records.batch import (
    Columns,
    check,
    decode,
    encode,
    keep,
    read_header,
    recompress,
    restamp_time,
    split,
    stamp,
    validate,
    with_delete_horizon,
)
from krappy.types import Headers
from tests.batches import (
    CODECS,
    KAFKA_PYTHON_CODECS,
    NOW,
    Row,
    encode_rows,
    expected_rows,
    others_rows,
    rows,
    rows_of,
)

with warnings.catch_warnings():  # of functions of Python's own that kafka-python still calls as it is imported
    warnings.simplefilter("ignore")
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder


# --- against others ------------------------------------------------------------------------------------------


def build(builder: Any, some: Sequence[Row], codec: int, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    made = builder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=1 << 28,
    )
    for index, row in enumerate(some):
        assert made.append(
            index, timestamp=row.timestamp, key=row.key, value=row.value, headers=[tuple(each) for each in row.headers]
        )
    return bytes(made.build())


@given(rows(), CODECS)
def test_reads_what_aiokafka_writes(some: list[Row], codec: int) -> None:
    raw = build(AiokafkaBuilder, some, codec)
    assert check(raw).count == len(some)
    validate(raw)
    assert rows_of(decode(raw)) == expected_rows(some)


@given(rows(longest=80), KAFKA_PYTHON_CODECS)
def test_reads_what_kafka_python_writes(some: list[Row], codec: int) -> None:
    raw = build(KafkaPythonBuilder, some, codec)
    assert check(raw).count == len(some)
    validate(raw)
    assert rows_of(decode(raw)) == expected_rows(some)


@given(rows(), st.sampled_from([(-1, -1, -1), (2**63 - 1, 7, 2**31 - 1)]))
def test_writes_the_very_bytes_that_aiokafka_writes(some: list[Row], producer: tuple[int, int, int]) -> None:
    raw = encode_rows(some, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2])
    # aiokafka's leader epoch for "none" is the same, so that not one byte differs
    assert raw == build(AiokafkaBuilder, some, codecs.NONE, producer)


@given(rows(), CODECS, st.sampled_from([0, 1, 10**12]))
def test_aiokafka_reads_what_is_written(some: list[Row], codec: int, base_offset: int) -> None:
    other = AiokafkaBatch(encode_rows(some, codec=codec, base_offset=base_offset))
    assert other.validate_crc()
    assert others_rows(other) == expected_rows(some, base_offset)


@given(rows(longest=80), KAFKA_PYTHON_CODECS)
def test_kafka_python_reads_what_is_written(some: list[Row], codec: int) -> None:
    other = KafkaPythonBatch(encode_rows(some, codec=codec, base_offset=77))
    assert other.validate_crc()
    assert others_rows(other) == expected_rows(some, 77)


# --- round trips ---------------------------------------------------------------------------------------------


@given(
    rows(),
    CODECS,
    st.integers(0, 2**62),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_round_trip(some: list[Row], codec: int, base_offset: int, kind: Callable[[bytes], Any]) -> None:
    raw = encode_rows(some, codec=codec, base_offset=base_offset, leader_epoch=9)
    header = check(kind(raw))
    assert header == read_header(raw)
    assert (header.size, header.codec, header.compressed) == (len(raw), codec, codec != 0)
    assert (header.base_offset, header.leader_epoch, header.count) == (base_offset, 9, len(some))
    assert (header.base_timestamp, header.max_timestamp) == (some[0].timestamp, max(row.timestamp for row in some))
    assert header.next_offset == header.last_offset + 1 == base_offset + len(some)
    assert header.dense
    columns = decode(kind(raw))
    assert isinstance(columns.offsets, range)
    assert len(columns) == len(some)
    assert rows_of(columns) == expected_rows(some, base_offset)
    validate(kind(raw))


@given(rows(longest=40), st.data())
def test_gaps_between_offsets(some: list[Row], data: st.DataObject) -> None:
    gaps = data.draw(
        st.lists(st.sampled_from([1, 1, 1, 2, 70, 9000, 3_000_000]), min_size=len(some), max_size=len(some))
    )
    offsets = [1000 + sum(gaps[: index + 1]) for index in range(len(some))]
    raw = encode_rows(some, base_offset=1000, offsets=offsets)
    header = check(raw)
    assert (header.base_offset, header.last_offset) == (1000, offsets[-1])
    validate(raw)
    wanted = [full._replace(offset=offset) for full, offset in zip(expected_rows(some), offsets, strict=True)]
    assert rows_of(decode(raw)) == wanted
    assert others_rows(AiokafkaBatch(raw)) == wanted


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 63, 64, 65, 100, 8191, 8192, 8193, 8400, 20_000])
@pytest.mark.parametrize("timestamps", ["one", "many"])
def test_runs_of_every_length(count: int, timestamps: str) -> None:
    keys = [b"%08d" % index for index in range(count)]
    values = [b"%04d" % (index % 1000) for index in range(count)]
    times = NOW if timestamps == "one" else [NOW + index // 3 for index in range(count)]
    raw = encode(keys, values, timestamps=times)
    columns = decode(raw)
    assert columns.keys == keys
    assert columns.values == values
    assert columns.timestamps == ([NOW] * count if isinstance(times, int) else times)
    assert columns.offsets == range(count)
    assert columns.headers is None
    validate(raw)


@pytest.mark.parametrize("middle", [64, 8192, 1 << 20, 1 << 27])
def test_offset_deltas_that_grow_by_a_byte(middle: int) -> None:
    offsets = range(middle - 50, middle + 50)
    raw = encode(None, [b"v"] * 100, timestamps=NOW, offsets=offsets)
    columns = decode(raw)
    assert columns.offsets == list(offsets)
    assert columns.values == [b"v"] * 100
    validate(raw)


@pytest.mark.parametrize("key_length", [None, 0, 1, 100])
@pytest.mark.parametrize("value_length", [None, 0, 1, 100])
def test_runs_with_nulls_and_empty_fields(key_length: int | None, value_length: int | None) -> None:
    keys = [None if key_length is None else random.randbytes(key_length) for _ in range(100)]
    values = [None if value_length is None else random.randbytes(value_length) for _ in range(100)]
    for times in (NOW, list(range(NOW, NOW + 100)), list(range(NOW, NOW - 1000, -10))):
        raw = encode(keys, values, timestamps=times)
        columns = decode(raw)
        assert (columns.keys, columns.values) == (keys, values)
        assert columns.timestamps == ([NOW] * 100 if isinstance(times, int) else times)
        if key_length is None:
            assert raw == encode(None, values, timestamps=times)


@given(rows(longest=30), st.sampled_from([0, 5, NOW]), CODECS)
def test_flags(some: list[Row], timestamp: int, codec: int) -> None:
    raw = encode_rows(some, codec=codec, transactional=True, control=True, log_append_time=True)
    header = check(raw)
    assert header.is_control
    assert header.is_transactional
    assert header.log_append_time
    assert header.codec == codec
    latest = max(row.timestamp for row in some)
    assert list(decode(raw).timestamps) == [latest] * len(some)
    assert others_rows(AiokafkaBatch(raw)) == rows_of(decode(raw))
    plain = check(encode_rows(some))
    assert (plain.is_control, plain.is_transactional, plain.log_append_time) == (False, False, False)


@given(rows(longest=30), st.integers(0, 2**62), CODECS)
def test_log_append_time(some: list[Row], timestamp: int, codec: int) -> None:
    before = encode_rows(some, codec=codec, transactional=True, base_offset=5)
    after = restamp_time(before, timestamp)
    header = check(after)
    assert header.log_append_time
    assert header.is_transactional
    assert header.max_timestamp == timestamp
    assert rows_of(decode(after)) == [full._replace(timestamp=timestamp) for full in expected_rows(some, 5)]
    validate(after)
    other = AiokafkaBatch(after)
    assert other.validate_crc()
    assert others_rows(other) == rows_of(decode(after))


@given(rows(longest=30), CODECS, CODECS)
def test_another_compression(some: list[Row], codec: int, wanted: int) -> None:
    before = encode_rows(some, codec=codec, transactional=True, base_offset=5, producer_id=7, base_sequence=3)
    after = recompress(before, wanted)
    header = check(after)
    changed = {"crc": 0, "length": 0, "attributes": 0}
    assert header._replace(**changed) == read_header(before)._replace(**changed)
    assert (header.codec, header.is_transactional) == (wanted, True)
    assert rows_of(decode(after)) == rows_of(decode(before))
    assert others_rows(AiokafkaBatch(after)) == rows_of(decode(before))


@given(rows(longest=10), st.integers(0, 2**63 - 1 - 1000), st.integers(-1, 2**31 - 1))
def test_a_stamp_needs_no_new_checksum(some: list[Row], base_offset: int, leader_epoch: int) -> None:
    before = encode_rows(some)
    after = stamp(read_header(before), base_offset, leader_epoch) + before[batch.STAMPED :]
    header = check(after)
    assert (header.base_offset, header.leader_epoch) == (base_offset, leader_epoch)
    assert rows_of(decode(after)) == expected_rows(some, base_offset)


@given(st.lists(rows(longest=5), max_size=4), st.integers(0, 200))
def test_split(several: list[list[Row]], cut: int) -> None:
    raws = [encode_rows(some, base_offset=100 * index) for index, some in enumerate(several)]
    whole = b"".join(raws)
    assert [(header, bytes(raw)) for header, raw in split(whole)] == [(read_header(raw), raw) for raw in raws]
    kept = whole[: max(0, len(whole) - cut)]
    fitting = [raw for index, raw in enumerate(raws) if len(b"".join(raws[: index + 1])) <= len(kept)]
    assert [bytes(raw) for _, raw in split(memoryview(kept))] == fitting


def test_split_refuses_what_is_no_batch() -> None:
    raw = encode([b"k"], [b"v"], timestamps=NOW)
    damaged = raw[:-1] + bytes([raw[-1] ^ 1])
    with pytest.raises(CorruptBatch):
        list(split(raw + damaged))
    with pytest.raises(CorruptBatch):
        list(split(raw + bytes(100)))
    with pytest.raises(CorruptBatch):
        list(split(raw[:8] + b"\xff\xff\xff\xff" + raw[12:]))


# --- the cleaner's part --------------------------------------------------------------------------------------


@given(rows(longest=40), CODECS, st.data())
def test_keep(some: list[Row], codec: int, data: st.DataObject) -> None:
    base = 500
    raw = encode_rows(some, codec=codec, base_offset=base, producer_id=4, producer_epoch=1, base_sequence=17)
    wanted = data.draw(st.sets(st.integers(base, base + len(some) - 1)))
    left = keep(raw, wanted)
    if len(wanted) == len(some):
        assert left is raw
    before, after = read_header(raw), check(left)
    assert after.count == len(wanted)
    stays = ("base_offset", "last_offset_delta", "leader_epoch", "base_timestamp", "max_timestamp")
    for name in (*stays, "producer_id", "producer_epoch", "base_sequence"):
        assert getattr(after, name) == getattr(before, name), name
    assert after.codec == (codec if wanted else 0)
    full = [row for row in expected_rows(some, base) if row.offset in wanted]
    assert rows_of(decode(left)) == full
    assert list(batch.offsets(left)) == [row.offset for row in full]
    validate(left)
    if wanted:
        assert others_rows(AiokafkaBatch(left)) == full
        fewer = {offset for offset in wanted if offset % 2}
        again = keep(left, fewer)
        assert rows_of(decode(again)) == [row for row in full if row.offset in fewer]
    else:
        assert len(left) == batch.HEADER_SIZE
        assert keep(left, set()) == left


@given(rows(longest=40), CODECS, st.integers(0, 2**62), st.booleans(), st.data())
def test_a_delete_horizon_changes_no_record(
    some: list[Row], codec: int, horizon: int, append_time: bool, data: st.DataObject
) -> None:
    raw = encode_rows(some, codec=codec, base_offset=500, producer_id=4, producer_epoch=1, base_sequence=17)
    if append_time:
        raw = batch.restamp_time(raw, 77)
    wanted = data.draw(st.sets(st.integers(500, 499 + len(some)), min_size=1))
    raw = keep(raw, wanted)
    assert read_header(raw).delete_horizon is None
    marked = with_delete_horizon(raw, horizon)
    before, after = read_header(raw), check(marked)
    assert after.delete_horizon == after.base_timestamp == horizon
    assert after.attributes == before.attributes | 0x40
    assert (after.base_offset, *after[6:7], *after[8:]) == (before.base_offset, *before[6:7], *before[8:])
    assert rows_of(decode(marked)) == rows_of(decode(raw)) == others_rows(AiokafkaBatch(marked))
    validate(marked)
    fewer = {offset for offset in wanted if offset % 2}
    assert rows_of(decode(keep(marked, fewer))) == rows_of(decode(keep(raw, fewer)))


I64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), -1, 0, NOW, 2**63 - 1]))


@given(st.lists(I64, min_size=1, max_size=20))
def test_any_timestamps_fit_in_one_batch(times: list[int]) -> None:
    """The broker can build a batch anew with any timestamps that the protocol lets producers send."""
    raw = encode(None, [b"v"] * len(times), timestamps=times)
    header = check(raw)
    assert header.max_timestamp == max(times)
    assert list(decode(raw).timestamps) == times
    assert [row.timestamp for row in others_rows(AiokafkaBatch(raw))] == times
    assert validate(raw).latest == max(times)


def test_a_timestamp_that_no_delta_reaches() -> None:
    raw = encode([b"a"], [None], timestamps=-(2**63))
    with pytest.raises(ValueError, match="too far"):
        with_delete_horizon(raw, 1)


@given(
    st.one_of(
        st.lists(st.integers(-70, 70), min_size=1, max_size=60),
        st.lists(st.integers(-9000, 9000), min_size=1, max_size=60),
        st.lists(st.integers(100, 8000), min_size=20, max_size=60),
        st.lists(st.integers(-8000, -100), min_size=20, max_size=60),
        st.lists(st.integers(2**14, 2**26), min_size=20, max_size=60),
    ),
    st.sampled_from([0, 2**27 - 4000, NOW, 2**62 + 1, -NOW, -(2**62) - 1]),
    st.booleans(),
)
def test_validate_finds_the_largest_timestamp_and_the_smallest(deltas: list[int], base: int, uniform: bool) -> None:
    times = [base, *(base + delta for delta in deltas)]
    values = [b"v" * (4 if uniform else index % 5) for index in range(len(times))]
    raw = batch.correct_max_timestamp(encode(None, values, timestamps=times), 2**60)
    assert validate(raw).latest == max(times)
    assert validate(raw).negative == min(0, *times)
    assert validate(batch.restamp_time(raw, 77))[:2] == (77, 0)


def test_keep_gives_the_same_bytes_when_nothing_goes() -> None:
    raw = encode([b"a", b"b"], [b"1", b"2"], timestamps=NOW, codec=codecs.GZIP)
    assert keep(raw, range(2)) is raw
    assert keep(memoryview(raw), range(2)) == raw


def test_headers_of_some() -> None:
    headers: list[Headers] = [(), (("a", b"1"),), ()]
    columns = decode(encode(None, [b"x", b"y", b"z"], timestamps=NOW, headers=headers))
    assert columns.headers == headers
    none: list[Headers] = [(), (), ()]
    assert decode(encode(None, [b"x", b"y", b"z"], timestamps=NOW, headers=none)).headers is None


def test_columns_have_the_length_of_their_records() -> None:
    assert len(Columns(range(3), [1, 2, 3], [None] * 3, [None] * 3, None)) == 3
    assert record_reader.Columns is Columns
