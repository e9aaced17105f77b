"""RecordBatch v2: against two other implementations, in both directions; and what it refuses."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from crc32c import crc32c
from hypothesis import assume, given
from hypothesis import strategies as st

from krappy import batch, codecs, record_reader, record_runs, varint
from krappy.batch import Columns, check, decode, encode, keep, read_header, restamp_time, split, stamp, validate
from krappy.errors import CorruptBatch, UnsupportedCompression
from krappy.types import Headers

with warnings.catch_warnings():  # of functions of Python's own that kafka-python still calls as it is imported
    warnings.simplefilter("ignore")
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

NOW = 1_700_000_000_000


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int = NOW
    headers: Headers = ()


class FullRow(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def encode_rows(rows: Sequence[Row], **settings: Any) -> bytes:
    return encode(
        [row.key for row in rows],
        [row.value for row in rows],
        timestamps=[row.timestamp for row in rows],
        headers=[row.headers for row in rows] if any(row.headers for row in rows) else None,
        **settings,
    )


def rows_of(columns: Columns) -> list[FullRow]:
    headers: Sequence[Headers] = columns.headers if columns.headers is not None else [()] * len(columns)
    return [
        FullRow(*row)
        for row in zip(columns.offsets, columns.timestamps, columns.keys, columns.values, headers, strict=True)
    ]


def expected_rows(rows: Sequence[Row], base_offset: int = 0) -> list[FullRow]:
    return [
        FullRow(base_offset + index, row.timestamp, row.key, row.value, row.headers) for index, row in enumerate(rows)
    ]


def others_rows(records: Any) -> list[FullRow]:
    return [
        FullRow(record.offset, record.timestamp, record.key, record.value, tuple(map(tuple, record.headers)))
        for record in records
    ]


def with_crc(raw: bytes) -> bytes:
    """The batch with the checksum and the length that its bytes ask for."""
    raw = raw[:8] + struct.pack(">i", len(raw) - 12) + raw[12:]
    return raw[:17] + struct.pack(">I", crc32c(raw[21:])) + raw[21:]


def accepts(function: Callable[[bytes], Any], raw: bytes) -> bool:
    try:
        function(raw)
    except (CorruptBatch, UnsupportedCompression):
        return False
    return True


# --- strategies ----------------------------------------------------------------------------------------------

# Lengths around the places where a varint grows, and where the writer's tables end.
LENGTHS = st.one_of(
    st.none(), st.integers(0, 20), st.sampled_from([62, 63, 64, 65, 127, 128, 129, 300]), st.sampled_from([8191, 8192])
)
NAMES = st.one_of(st.sampled_from(["", "trace", "ü", "名" * 30]), st.text("aü名\0", max_size=5))
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=5) | st.just(b"v" * 70)), max_size=3).map(tuple)
STEPS = st.one_of(
    st.just(0),
    st.integers(-3, 3),
    st.sampled_from([-70, 70, 9000, -9000, 2**20, -(2**20), 2**27, 2**33, -(2**40), NOW]),
)


@st.composite
def rows(draw: st.DrawFn, longest: int = 150, headers: bool = True) -> list[Row]:
    """Runs of like records, as producers make them, broken by others."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    found: list[Row] = []
    timestamp = draw(st.sampled_from([0, NOW, NOW + 1]))
    for _ in range(draw(st.integers(1, 4))):
        key_length, value_length = draw(LENGTHS), draw(LENGTHS)
        step = draw(STEPS)
        some = draw(HEADERS) if headers and draw(st.booleans()) else ()
        large = (key_length or 0) + (value_length or 0) > 1000
        for _ in range(draw(st.integers(1, 12 if large else longest))):
            key = None if key_length is None else chance.randbytes(key_length)
            value = None if value_length is None else chance.randbytes(value_length)
            found.append(Row(key, value, timestamp, some))
            timestamp += step
    return found


CODECS = st.integers(0, 4)
# kafka-python needs python-snappy and zstandard for the other two, which nothing else here does.
KAFKA_PYTHON_CODECS = st.sampled_from([codecs.NONE, codecs.GZIP, codecs.LZ4])


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
    assert left is not None
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
        assert again is not None
        assert rows_of(decode(again)) == [row for row in full if row.offset in fewer]
    else:
        assert len(left) == batch.HEADER_SIZE
        assert keep(left, set()) == left


def test_keep_gives_the_same_bytes_when_nothing_goes() -> None:
    raw = encode([b"a", b"b"], [b"1", b"2"], timestamps=NOW, codec=codecs.GZIP)
    assert keep(raw, range(2)) is raw
    assert keep(memoryview(raw), range(2)) == raw


# --- what is refused -----------------------------------------------------------------------------------------

SAMPLES = {
    "runs": encode([b"%04d" % i for i in range(80)], [b"v"] * 80, timestamps=NOW),
    "runs with times": encode([b"%02d" % i for i in range(70)], [b"v"] * 70, timestamps=list(range(NOW, NOW + 70))),
    "mixed": encode(
        [b"a", None, b"", b"k" * 70],
        [b"1" * 65, b"", None, b"2"],
        timestamps=[NOW, NOW - 1, NOW + 100, NOW],
        headers=[(), (("h", b"x"), ("g", None)), (("", b""), ("ü", b"y" * 70)), ()],
    ),
    "gaps": encode([b"a", b"b"], [b"1", b"2"], timestamps=NOW, offsets=[3, 90]),
    **{
        codecs.NAMES[codec]: encode([b"key"] * 3, [b"value" * 5] * 3, timestamps=NOW, codec=codec)
        for codec in range(1, 5)
    },
}
sample = pytest.mark.parametrize("raw", SAMPLES.values(), ids=SAMPLES.keys())


@sample
def test_every_truncation_is_refused(raw: bytes) -> None:
    for size in range(len(raw)):
        with pytest.raises(CorruptBatch):
            check(raw[:size])
        for function in (decode, validate):
            with pytest.raises(CorruptBatch):
                function(raw[:size])


@sample
def test_every_truncation_with_a_new_checksum_is_refused(raw: bytes) -> None:
    for size in range(batch.HEADER_SIZE, len(raw)):
        cut = with_crc(raw[:size])
        check(cut)
        for function in (decode, validate):
            with pytest.raises(CorruptBatch):
                function(cut)


@sample
def test_trailing_bytes_are_refused(raw: bytes) -> None:
    for extra in (b"\0", raw):
        check(raw + extra)  # there may be another behind it
        for function in (decode, validate):
            with pytest.raises(CorruptBatch):
                function(raw + extra)
            with pytest.raises(CorruptBatch):
                function(with_crc(raw + extra))


@sample
def test_every_flipped_bit_is_noticed(raw: bytes) -> None:
    for position in range(len(raw)):
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[position] ^= 1 << bit
            if position < 8 or 12 <= position < 16:  # base offset and leader epoch: the broker's to give
                if accepts(check, bytes(flipped)):
                    assert (
                        read_header(flipped)[1:2] + read_header(flipped)[3:]
                        == read_header(raw)[1:2] + read_header(raw)[3:]
                    )
            else:
                with pytest.raises(CorruptBatch):
                    check(flipped)


@sample
def test_every_flipped_bit_with_a_new_checksum(raw: bytes) -> None:
    """Whatever it makes of the batch: readers agree on it, and only the declared errors come."""
    for position in range(16, len(raw)):
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[position] ^= 1 << bit
            again = with_crc(bytes(flipped))
            assert accepts(decode, again) == accepts(validate, again) == accepts(lambda it: keep(it, ()), again)


def record(*fields: bytes, size: int | None = None) -> bytes:
    body = b"".join(fields)
    return varint.encode(len(body) if size is None else size) + body


def by_hand(*records: bytes, count: int | None = None, last_delta: int | None = None, base_time: int = NOW) -> bytes:
    """A batch of these record bytes."""
    count = len(records) if count is None else count
    covered = struct.pack(
        ">hiqqqhii", 0, count - 1 if last_delta is None else last_delta, base_time, base_time, -1, -1, -1, count
    )
    return with_crc(struct.pack(">qiibI", 0, 0, -1, 2, 0) + covered + b"".join(records))


PLAIN = record(b"\0", b"\0", b"\0", b"\2k", b"\2v", b"\0")


def test_by_hand() -> None:
    assert by_hand(PLAIN) == encode([b"k"], [b"v"], timestamps=NOW)


@pytest.mark.parametrize(
    "raw",
    [
        by_hand(PLAIN, count=2, last_delta=1),
        by_hand(PLAIN, PLAIN),  # the same offset twice
        by_hand(PLAIN, PLAIN, count=1),
        by_hand(record(b"\0", b"\0", b"\2", b"\2k", b"\2v", b"\0")),  # a delta past the last
        by_hand(record(b"\0", b"\0", b"\1", b"\2k", b"\2v", b"\0")),  # a delta of -1
        by_hand(record(b"\0", b"\0", b"\1", b"\2k", b"\2v", b"\0"), last_delta=3),
        by_hand(record(b"\0", b"\0", b"\x0a", b"\2k", b"\2v", b"\0"), last_delta=4 - 0 - 1),
        by_hand(record(b"\0", b"\0", b"\0", b"\3k", b"\2v", b"\0")),  # a key of -2 bytes
        by_hand(record(b"\0", b"\0", b"\0", b"\2k", b"\3v", b"\0")),
        by_hand(record(b"\0", b"\0", b"\0", b"\4k", b"\2v", b"\0")),
        by_hand(record(b"\0", b"\0", b"\0", b"\xfe\xff\xff\xff\x0fk", b"\2v", b"\0")),  # of 2 GiB
        by_hand(record(b"\0", b"\0", b"\0", b"\2k", b"\2v", b"\0", size=7)),
        by_hand(record(b"\0", b"\0", b"\0", b"\2k", b"\2v", b"\0", size=9)),
        by_hand(record(b"\0", b"\0", b"\0", b"\2k", b"\2v", b"\0", size=-8)),
        by_hand(record(b"\0", b"\0", b"\0", b"\2k", b"\2v", b"\1")),  # -1 headers
        by_hand(record(b"\0", b"\0", b"\0", b"\2k", b"\2v", b"\xfe\xff\xff\xff\x0f")),
        by_hand(record(b"\0", b"\0", b"\0", b"\2k", b"\2v", b"\2", b"\1", b"\0")),  # a header without a name
        by_hand(record(b"\0", b"\0", b"\0", b"\2k", b"\2v", b"\2", b"\0", b"\3")),
        by_hand(record(b"\0", b"\0", b"\0", b"\2k", b"\2v", b"\2", b"\0", b"\2")),
        by_hand(record(b"\0", b"\0", b"\x80\x80\x80\x80\x80\x00", b"\2k", b"\2v", b"\0")),  # 6 bytes for a number
        by_hand(record(b"\0", b"\0", b"\x80\x80\x80\x80\x10", b"\2k", b"\2v", b"\0")),  # 33 bits
        by_hand(record(b"\0", b"\xff" * 10 + b"\0", b"\0", b"\2k", b"\2v", b"\0")),
        by_hand(record(b"\0", b"\xff" * 9 + b"\2", b"\0", b"\2k", b"\2v", b"\0")),  # 65 bits
        by_hand(record(b"\0", b"\2", b"\0", b"\2k", b"\2v", b"\0"), base_time=2**63 - 1),
        by_hand(record(b"\0", b"\1", b"\0", b"\2k", b"\2v", b"\0"), base_time=-(2**63)),
        by_hand(record(b"\0", varint.encode(2**63 - 1), b"\0", b"\2k", b"\2v", b"\0")),
        by_hand(PLAIN, count=-1, last_delta=0),
        by_hand(PLAIN, count=0, last_delta=0),
        by_hand(PLAIN, count=2**31 - 1, last_delta=2**31 - 1),
        by_hand(count=0, last_delta=-1),
        by_hand(),
    ],
)
def test_malformed(raw: bytes) -> None:
    for function in (decode, validate, lambda it: keep(it, ())):
        with pytest.raises(CorruptBatch):
            function(raw)


@pytest.mark.parametrize(
    ("raw", "rows"),
    [
        # Java reads a varint that is longer than it need be
        (by_hand(record(b"\0", b"\x80\0", b"\x80\0", b"\x82\x80\0k", b"\x82\0v", b"\x80\0")), [(NOW, b"k", b"v", ())]),
        # and record attributes, of which none are defined
        (by_hand(record(b"\x55", b"\0", b"\0", b"\1", b"\1", b"\0")), [(NOW, None, None, ())]),
        # and names that are not UTF-8
        (
            by_hand(record(b"\0", b"\0", b"\0", b"\1", b"\1", b"\2", b"\4\xffa", b"\1")),
            [(NOW, None, None, (("�a", None),))],
        ),
        (
            by_hand(record(b"\0", varint.encode(2**63 - 1), b"\0", b"\1", b"\1", b"\0"), base_time=0),
            [(2**63 - 1, None, None, ())],
        ),
        (
            by_hand(record(b"\0", varint.encode(-(2**63)), b"\0", b"\1", b"\1", b"\0"), base_time=0),
            [(-(2**63), None, None, ())],
        ),
        (by_hand(count=0, last_delta=5), []),
    ],
)
def test_unusual(raw: bytes, rows: list[tuple[int, bytes | None, bytes | None, Headers]]) -> None:
    check(raw)
    validate(raw)
    assert [row[1:] for row in rows_of(decode(raw))] == rows


RISING = list(range(NOW, NOW + 120))


@pytest.mark.parametrize(
    "raw",
    [
        encode([b"%03d" % index for index in range(120)], [b"v" * 9] * 120, timestamps=RISING),
        encode(None, [b"v" * 70] * 20, timestamps=NOW, offsets=range(8150, 8170)),
        encode(None, [b"v"] * 60, timestamps=NOW, offsets=range(16_350, 16_410)),
    ],
)
def test_runs_are_checked_like_the_rest(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong byte, at each place of a run: as if its records were read one by one."""
    changed = [
        with_crc(raw[:position] + bytes([byte]) + raw[position + 1 :])
        for position in range(batch.HEADER_SIZE, len(raw))
        for byte in {0, 0x7F, 0x80, raw[position] ^ 2}
    ]
    assert record_runs.find(raw, batch.HEADER_SIZE, 60) is not None

    def outcomes() -> list[tuple[Columns | None, bool]]:
        return [(decode(each) if accepts(decode, each) else None, accepts(validate, each)) for each in changed]

    by_runs = outcomes()
    monkeypatch.setattr(record_runs, "SHORTEST", 1_000_000)
    assert record_runs.find(raw, batch.HEADER_SIZE, 60) is None
    assert outcomes() == by_runs


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ((b"\0", b"\0", b"", b"\2k", b"\2v", b"\2"), None),  # one header, and none there
        ((b"\0", b"\0", b"", b"\2k", b"\2v", b"\1"), None),
        ((b"\0", b"\0", b"", b"\2k", b"\2v", b"\0", b"\0"), None),
        ((b"\0", b"\0", b"", b"\2k", b"\2v", b"\0"), 7),
        ((b"\0", b"\0", b"", b"\2k", b"\2v", b"\0"), 9),
        ((b"\0", b"\0", b"", b"\2k", b"\2v", b"\0"), -8),
        ((b"\0", b"\0", b"", b"\3", b"\2v", b"\0"), None),
        ((b"\0", b"\0", b"", b"\2k", b"\3", b"\0"), None),
        ((b"\0", b"\0", b"", b"\2k", b"\4v", b"\0"), None),
        ((b"\0", b"\xff" * 9 + b"\2", b"", b"\2k", b"\2v", b"\0"), None),
        ((b"\0", varint.encode(2**63 - 1), b"", b"\2k", b"\2v", b"\0"), None),
    ],
)
def test_runs_of_malformed_records(fields: tuple[bytes, ...], size: int | None) -> None:
    raw = by_hand(*(record(*fields[:2], varint.encode(delta), *fields[3:], size=size) for delta in range(40)))
    for function in (decode, validate, lambda it: keep(it, ())):
        with pytest.raises(CorruptBatch):
            function(raw)


def plain_at(deltas: Sequence[int]) -> list[bytes]:
    return [record(b"\0", b"\0", varint.encode(delta), b"\2k", b"\2v", b"\0") for delta in deltas]


@pytest.mark.parametrize(
    ("deltas", "last"),
    [
        ([*range(1, 41)], 39),  # dense by its header, but shifted
        ([*range(-1, 39)], 39),
        ([*range(20), *range(30, 50), *range(40, 60)], 100),  # each run behind where the last ended
        ([50, *range(20)], 100),
        ([*range(20), *range(19, 40)], 100),
        ([*range(20), *range(30, 60)], 58),
        ([*range(20), 19, *range(20, 40)], 100),
        ([*range(20), *range(21, 40)], 38),
    ],
)
def test_runs_whose_offsets_do_not_ascend(deltas: list[int], last: int) -> None:
    raw = by_hand(*plain_at(deltas), last_delta=last)
    for function in (decode, validate, lambda it: keep(it, ())):
        with pytest.raises(CorruptBatch):
            function(raw)


def test_runs_with_gaps_between() -> None:
    deltas = [*range(20), *range(30, 60), 61, 70, *range(80, 100)]
    raw = by_hand(*plain_at(deltas), last_delta=120)
    assert decode(raw).offsets == deltas
    validate(raw)


def test_runs_of_unusual_records() -> None:
    """More than the run search knows, so that it must leave them to the plain loop."""
    extreme = [record(b"\0", varint.encode(-(2**63)), varint.encode(delta), b"\1", b"\1", b"\0") for delta in range(40)]
    raw = by_hand(*extreme, base_time=0)
    assert decode(raw).timestamps == [-(2**63)] * 40
    validate(raw)
    raw = by_hand(*extreme, base_time=-1)
    for function in (decode, validate):
        with pytest.raises(CorruptBatch):
            function(raw)
    steep = by_hand(*(record(b"\0", b"\2", varint.encode(delta), b"\1", b"\1", b"\0") for delta in range(40)))
    assert decode(with_crc(steep[:27] + struct.pack(">q", 2**63 - 2) + steep[35:])).timestamps == [2**63 - 1] * 40
    beyond = with_crc(steep[:27] + struct.pack(">q", 2**63 - 1) + steep[35:])
    for function in (decode, validate):
        with pytest.raises(CorruptBatch):
            function(beyond)
    appended = with_crc(beyond[:22] + b"\x08" + beyond[23:])  # LogAppendTime: what the deltas say does not count
    validate(appended)
    assert decode(appended).timestamps == [NOW] * 40
    single = by_hand(record(b"\0", b"\2", b"\0", b"\1", b"\1", b"\0"), base_time=2**63 - 1)
    appended = with_crc(single[:22] + b"\x08" + single[23:])
    validate(appended)
    assert decode(appended).timestamps == [2**63 - 1]


def test_headers_that_are_absurd() -> None:
    raw = encode([b"k"], [b"v"], timestamps=NOW)
    for position, form, value in (
        (0, ">q", -1),
        (0, ">q", 2**63 - 1),
        (8, ">i", -1),
        (8, ">i", 48),
        (16, ">b", 1),
        (16, ">b", 3),
        (23, ">i", -1),
        (57, ">i", -1),
        (57, ">i", 2),
    ):
        changed = bytearray(raw)
        struct.pack_into(form, changed, position, value)
        with pytest.raises(CorruptBatch):
            read_header(changed)
    for size in range(batch.HEADER_SIZE):
        with pytest.raises(CorruptBatch):
            read_header(raw[:size])
    with pytest.raises(CorruptBatch):
        read_header(raw, len(raw) - 60)
    assert read_header(b"xy" + raw, 2) == check(b"xy" + raw, 2) == check(raw)
    with pytest.raises(CorruptBatch):
        restamp_time(raw + b"x", 1)
    for length in (len(raw) - 13, len(raw) - 11):  # all is well but for the length
        wrong = raw[:8] + struct.pack(">i", length) + raw[12:]
        for function in (decode, validate):
            with pytest.raises(CorruptBatch):
                function(wrong)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs(codec: int) -> None:
    raw = bytearray(encode([b"k"], [b"v"], timestamps=NOW))
    raw[22] |= codec
    again = with_crc(bytes(raw))
    check(again)
    for function in (decode, validate, lambda it: keep(it, ())):
        with pytest.raises(UnsupportedCompression):
            function(again)
    with pytest.raises(UnsupportedCompression):
        encode([b"k"], [b"v"], timestamps=NOW, codec=codec)


@pytest.mark.parametrize("codec", range(5))
def test_limits(codec: int) -> None:
    raw = encode(None, [bytes(100_000)], timestamps=NOW, codec=codec)
    for function in (decode, validate):
        function(raw, limit=200_000)
        if codec:
            with pytest.raises(CorruptBatch):
                function(raw, limit=99_999)
    many = encode(None, [None] * 10_000, timestamps=NOW, codec=codec)
    decode(many, limit=1_000_000)
    for function in (decode, validate):  # small records take more memory read than they do as bytes
        with pytest.raises(CorruptBatch):
            function(many, limit=100_000)


@pytest.mark.parametrize("codec", range(5))
def test_limits_of_headers(codec: int) -> None:
    header = ("", None)
    in_one = encode(None, [b"v"], timestamps=NOW, headers=[(header,) * 2000], codec=codec)
    in_many = encode(None, [b"v"] * 100, timestamps=NOW, headers=[(header,) * 20] * 100, codec=codec)
    for raw in (in_one, in_many):
        for function in (decode, validate):
            function(raw, limit=2000 * batch.RECORD_COST)
            with pytest.raises(CorruptBatch):
                function(raw, limit=1999 * batch.RECORD_COST)


def test_columns_that_do_not_fit_together() -> None:
    cases: list[dict[str, Any]] = [
        {"keys": [b"k"], "values": [b"v", b"w"], "timestamps": NOW},
        {"keys": None, "values": [b"v"], "timestamps": [NOW, NOW]},
        {"keys": None, "values": [b"v"], "timestamps": []},
        {"keys": None, "values": [b"v"], "timestamps": NOW, "headers": []},
        {"keys": None, "values": [b"v"], "timestamps": NOW, "offsets": [0, 1]},
        {"keys": None, "values": [b"v", b"w"], "timestamps": NOW, "offsets": [1, 1]},
        {"keys": None, "values": [b"v", b"w"], "timestamps": NOW, "offsets": [5, 6], "base_offset": 6},
        {"keys": None, "values": [], "timestamps": NOW},
        {"keys": [], "values": [], "timestamps": []},
        {"keys": None, "values": [b"v"], "timestamps": 2**63},
        {"keys": None, "values": [b"v", b"w"], "timestamps": [-(2**63), 2**63 - 1]},
        {"keys": None, "values": [b"v"], "timestamps": NOW, "base_sequence": 2**31},
        {"keys": None, "values": [b"v"], "timestamps": NOW, "base_offset": -1},
        {"keys": None, "values": [b"v", b"w"], "timestamps": NOW, "offsets": [0, 2**31]},
    ]
    for bad in cases:
        with pytest.raises(ValueError, match=r"."):
            encode(**bad)


@given(st.binary(max_size=200), st.integers(0, 20), st.integers(0, 30))
def test_random_records(raw: bytes, count: int, last_delta: int) -> None:
    assume(count <= last_delta + 1)
    made = by_hand(raw, count=count, last_delta=last_delta)
    assert accepts(decode, made) == accepts(validate, made) == accepts(lambda it: keep(it, ()), made)


def test_headers_of_some() -> None:
    headers: list[Headers] = [(), (("a", b"1"),), ()]
    columns = decode(encode(None, [b"x", b"y", b"z"], timestamps=NOW, headers=headers))
    assert columns.headers == headers
    none: list[Headers] = [(), (), ()]
    assert decode(encode(None, [b"x", b"y", b"z"], timestamps=NOW, headers=none)).headers is None


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(number: int) -> None:
    raw = varint.encode(number)
    assert raw == varint.encoded(number)
    assert varint.decode(raw, 0, 10) == (number, len(raw))
    assert varint.delta_of(raw) == number
    for size in range(len(raw)):
        with pytest.raises(IndexError):
            varint.decode(raw[:size], 0, 10)


@pytest.mark.parametrize(
    ("raw", "widest"),
    [
        (b"\x80\x80\x80\x80\x10", 5),  # 33 bits
        (b"\xff\xff\xff\xff\x7f", 5),
        (b"\x80\x80\x80\x80\x80\x00", 5),
        (b"\x80" * 9 + b"\2", 10),  # 65 bits
        (b"\x80" * 10 + b"\0", 10),
    ],
)
def test_varints_that_do_not_fit(raw: bytes, widest: int) -> None:
    with pytest.raises(CorruptBatch):
        varint.decode(raw, 0, widest)


def test_columns_have_the_length_of_their_records() -> None:
    assert len(Columns(range(3), [1, 2, 3], [None] * 3, [None] * 3, None)) == 3
    assert record_reader.Columns is Columns
