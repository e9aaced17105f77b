"""RecordBatch v2: what is refused, and what is unusual but accepted."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from krappy.errors import CorruptBatch, UnsupportedCompression
from krappy.records import batch, codecs, varint
from krappy.records import runs as record_runs
from krappy.records.batch import Columns, check, decode, encode, keep, read_header, restamp_time, validate
from krappy.types import Headers
from tests.batches import (
    NOW,
    accepts,
    rows_of,
    with_crc,
)
from tests.long import some

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
            if position < 8 or 12 <= position < 16:  # base offset and leader epoch: the broker sets them
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
        for position in some(range(batch.HEADER_SIZE, len(raw)), 5)  # which is another place in each record
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
    for function in (decode, validate):  # small records take more memory once they are decoded than as bytes
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
