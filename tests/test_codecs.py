"""Compression: against what aiokafka and kafka-python write and read, and against bombs and damage."""

from __future__ import annotations

import contextlib
import gzip
import random
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import aiokafka.codec
import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.errors import CorruptBatch, UnsupportedCompression
from krappy.records import codecs
from krappy.records.codecs import GZIP, LZ4, NAMES, NONE, SNAPPY, ZSTD, bounds, compress, decompress, snappy

with warnings.catch_warnings():  # of functions of Python's own that kafka-python still calls as it is imported
    warnings.simplefilter("ignore")
    import kafka.codec

COMPRESSED = [GZIP, SNAPPY, LZ4, ZSTD]
each_codec = pytest.mark.parametrize("codec", COMPRESSED, ids=NAMES[1:])

TEXT = b"what is true now for this key " * 40
SAMPLES = [b"", b"a", TEXT, bytes(100_000), random.Random(1).randbytes(70_000), TEXT * 100]


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    pieces = draw(st.lists(st.binary(max_size=30), max_size=5))
    return b"".join(piece * draw(st.sampled_from([1, 3, 1000, 3000])) for piece in pieces)


@given(payloads(), st.sampled_from([NONE, *COMPRESSED]), st.sampled_from([bytes, memoryview]))
def test_round_trip(data: bytes, codec: int, kind: Callable[[bytes], bytes | memoryview]) -> None:
    packed = compress(codec, data)
    assert decompress(codec, kind(packed)) == data
    assert decompress(codec, kind(packed), len(data)) == data
    if data:
        with pytest.raises(CorruptBatch):
            decompress(codec, packed, len(data) - 1)


OTHERS: dict[str, tuple[int, Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "aiokafka gzip": (GZIP, aiokafka.codec.gzip_encode, aiokafka.codec.gzip_decode),
    "aiokafka snappy": (SNAPPY, aiokafka.codec.snappy_encode, aiokafka.codec.snappy_decode),
    "aiokafka lz4": (LZ4, aiokafka.codec.lz4_encode, aiokafka.codec.lz4_decode),
    "aiokafka zstd": (ZSTD, aiokafka.codec.zstd_encode, aiokafka.codec.zstd_decode),
    "kafka-python gzip": (GZIP, kafka.codec.gzip_encode, kafka.codec.gzip_decode),
    "kafka-python lz4": (LZ4, kafka.codec.lz4_encode, kafka.codec.lz4_decode),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("data", SAMPLES, ids=map(len, SAMPLES))
def test_others(other: tuple[int, Callable[[bytes], bytes], Callable[[bytes], bytes]], data: bytes) -> None:
    codec, encode, decode = other
    assert decompress(codec, encode(data)) == data
    assert decode(compress(codec, data)) == data


def xerial(header: bytes, *blocks: bytes) -> bytes:
    return header + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


JAVA = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
LITTLE_ENDIAN = b"\x82SNAPPY\0\1\0\0\0\1\0\0\0"  # as some brokers write it


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def streamed_zstd(data: bytes) -> bytes:
    engine = cramjam.zstd.Compressor()
    engine.compress(data)
    return bytes(engine.finish())


def streamed_lz4(data: bytes) -> bytes:
    with lz4.frame.LZ4FrameCompressor(block_linked=True, content_checksum=True, block_checksum=True) as engine:
        pieces: list[bytes] = [engine.begin()]
        pieces += [engine.compress(data[start : start + 500]) for start in range(0, len(data), 500)]
        pieces.append(engine.flush())
    return b"".join(pieces)


ODD = gzip.compress(TEXT, 9)
FORMS = {
    "gzip members": (GZIP, ODD + zlib.compress(b"", wbits=31) + gzip.compress(b"more"), TEXT + b"more"),
    "gzip stored": (GZIP, gzip.compress(TEXT, 0), TEXT),
    "snappy raw": (SNAPPY, raw_snappy(TEXT), TEXT),
    "snappy raw, empty": (SNAPPY, raw_snappy(b""), b""),
    "snappy, one block": (SNAPPY, xerial(JAVA, raw_snappy(TEXT)), TEXT),
    "snappy, three blocks": (SNAPPY, xerial(JAVA, raw_snappy(TEXT), raw_snappy(b""), raw_snappy(b"x")), TEXT + b"x"),
    "snappy, no block": (SNAPPY, JAVA, b""),
    "snappy, little-endian": (SNAPPY, xerial(LITTLE_ENDIAN, raw_snappy(TEXT)), TEXT),
    "lz4 without size": (LZ4, lz4.frame.compress(TEXT, store_size=False), TEXT),
    "lz4 with size": (LZ4, lz4.frame.compress(TEXT, store_size=True, block_linked=False), TEXT),
    "lz4 with checksums": (LZ4, lz4.frame.compress(TEXT, content_checksum=True, block_checksum=True), TEXT),
    "lz4 streamed": (LZ4, streamed_lz4(TEXT * 100), TEXT * 100),
    "lz4 in large blocks": (LZ4, lz4.frame.compress(TEXT * 3000, block_size=lz4.frame.BLOCKSIZE_MAX4MB), TEXT * 3000),
    "lz4 frames": (LZ4, lz4.frame.compress(TEXT) + lz4.frame.compress(b"") + lz4.frame.compress(b"x"), TEXT + b"x"),
    "zstd without size": (ZSTD, streamed_zstd(TEXT), TEXT),
    "zstd without size, large": (ZSTD, streamed_zstd(TEXT * 3000), TEXT * 3000),
    "zstd frames": (ZSTD, compress(ZSTD, TEXT) + streamed_zstd(b"x") + compress(ZSTD, TEXT), TEXT + b"x" + TEXT),
    "zstd, empty frame first": (ZSTD, compress(ZSTD, b"") + compress(ZSTD, TEXT * 100), TEXT * 100),
    "zstd, nothing": (ZSTD, streamed_zstd(b""), b""),
}
form = pytest.mark.parametrize(("codec", "packed", "data"), FORMS.values(), ids=FORMS.keys())


@form
def test_forms(codec: int, packed: bytes, data: bytes) -> None:
    assert decompress(codec, packed) == data
    assert decompress(codec, memoryview(packed), len(data)) == data
    if data:
        with pytest.raises(CorruptBatch):
            decompress(codec, packed, len(data) - 1)


# Decompression can't notice that whole blocks or frames are missing: what counts the records notices it.
@pytest.mark.parametrize(
    ("codec", "packed", "data"),
    [form for name, form in FORMS.items() if len(form[1]) < 1000 and name not in ("snappy, three blocks",)],
)
def test_truncations(codec: int, packed: bytes, data: bytes) -> None:
    for size in range(len(packed)):
        try:
            got = decompress(codec, packed[:size])
        except CorruptBatch:
            continue
        assert got != data or not data
        assert data.startswith(got)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_every_truncation_of_what_is_written(codec: int) -> None:
    packed = compress(codec, TEXT)
    header = 16 if codec == SNAPPY else -1  # a stream of no block
    for size in range(len(packed)):
        if size != header:
            with pytest.raises(CorruptBatch):
                decompress(codec, packed[:size])


@form
def test_damage_raises_nothing_else(codec: int, packed: bytes, data: bytes) -> None:
    chance = random.Random(5)
    for _ in range(300):
        changed = bytearray(packed)
        for _ in range(chance.choice([1, 1, 3])):
            position = (
                chance.randrange(min(len(changed), 40)) if chance.random() < 0.5 else chance.randrange(len(changed))
            )
            changed[position] = chance.choice([changed[position] ^ 1 << chance.randrange(8), 0, 0xFF])
        with contextlib.suppress(CorruptBatch):
            decompress(codec, bytes(changed), 1 << 20)


@given(st.binary(max_size=100), st.sampled_from(COMPRESSED))
def test_random_bytes(raw: bytes, codec: int) -> None:
    starts = {GZIP: b"\x1f\x8b\x08\0", SNAPPY: JAVA, LZ4: b"\x04\x22\x4d\x18", ZSTD: b"\x28\xb5\x2f\xfd"}
    for data in (raw, starts[codec] + raw):
        with contextlib.suppress(CorruptBatch):
            decompress(codec, data, 1 << 20)


@each_codec
def test_trailing_bytes(codec: int) -> None:
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, TEXT) + b"\1\2\3\4\5")


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD, SNAPPY])
def test_nothing_is_no_stream(codec: int) -> None:
    with pytest.raises(CorruptBatch):
        decompress(codec, b"")


BOMB = bytes(64 << 20)
# Each is made by its test: that takes a tenth of a second, and every worker of the suite reads this file.
BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    **{NAMES[codec]: (codec, partial(compress, codec, BOMB)) for codec in COMPRESSED},
    "snappy raw": (SNAPPY, lambda: raw_snappy(BOMB)),
    "zstd without size": (ZSTD, lambda: streamed_zstd(BOMB)),
    "gzip members": (GZIP, lambda: compress(GZIP, bytes(1 << 20)) * 64),
    "lz4 frames": (LZ4, lambda: compress(LZ4, bytes(1 << 20)) * 64),
    "zstd frames": (ZSTD, lambda: compress(ZSTD, bytes(1 << 20)) * 64),
    # claims of 1 GiB and more with nothing behind them
    "snappy claim": (SNAPPY, lambda: b"\xff\xff\xff\xff\x07" + b"\0" * 20),
    "snappy claim in a block": (SNAPPY, lambda: xerial(JAVA, b"\xff\xff\xff\xff\x07" + b"\0" * 20)),
    "snappy claim below the limit": (SNAPPY, lambda: b"\xff\xff\x1f" + b"\0" * 20),
    "zstd claim": (ZSTD, lambda: b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\1\0\0"),
    "zstd claim below the limit": (ZSTD, lambda: b"\x28\xb5\x2f\xfd\xe0" + (1 << 20).to_bytes(8, "little") + b"\1\0\0"),
}


@pytest.mark.parametrize(("codec", "made"), BOMBS.values(), ids=BOMBS.keys())
def test_bombs_cost_no_more_than_their_limit(codec: int, made: Callable[[], bytes]) -> None:
    packed, limit = made(), 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(codec, packed, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * limit + 17 * len(packed)


def test_a_small_batch_gets_little_memory_whatever_it_claims() -> None:
    claim = b"\x28\xb5\x2f\xfd\xe0" + (200 << 20).to_bytes(8, "little") + b"\1\0\0"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(ZSTD, claim)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("codec", [-1, 5, 6, 7])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(UnsupportedCompression):
        compress(codec, b"x")
    with pytest.raises(UnsupportedCompression):
        decompress(codec, b"x")


def test_what_is_written_is_what_java_reads() -> None:
    assert compress(SNAPPY, TEXT).startswith(JAVA)
    blocks = compress(SNAPPY, bytes(100_000))
    position, sizes = len(JAVA), []
    while position < len(blocks):
        size = int.from_bytes(blocks[position : position + 4], "big")
        sizes.append(cramjam.snappy.decompress_raw_len(blocks[position + 4 : position + 4 + size]))
        position += 4 + size
    assert sizes == [32768, 32768, 32768, 100_000 - 3 * 32768]
    flags = lz4.frame.get_frame_info(compress(LZ4, TEXT))
    assert flags["block_linked"] is False  # Kafka's own reader knows independent blocks only
    assert compress(GZIP, TEXT)[:3] == b"\x1f\x8b\x08"
    assert codecs.NAMES == ("none", "gzip", "snappy", "lz4", "zstd")


EMPTY = {
    codecs.GZIP: gzip.compress(b"", mtime=0),
    codecs.SNAPPY: b"\0\0\0\1\0",
    codecs.LZ4: lz4.frame.compress(b"", store_size=False),
}


def many(codec: int, count: int, last: bytes) -> bytes:
    """`count` members, frames or blocks without content, and one with it."""
    head = snappy.HEADER if codec == codecs.SNAPPY else b""
    found: bytes = head + EMPTY[codec] * count + codecs.compress(codec, last)[len(head) :]
    return found


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.LZ4])
def test_many_parts_are_read_in_linear_time(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the bytes that go into the library: each call may leave almost all of them over."""
    fed = 0

    class Counting:
        def __init__(self, *arguments: Any, **named: Any) -> None:
            self._engine = make(*arguments, **named)

        def decompress(self, data: memoryview, most: int) -> bytes:
            nonlocal fed
            fed += len(data)
            return bytes(self._engine.decompress(data, most))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._engine, name)

    owner, name = (zlib, "decompressobj") if codec == codecs.GZIP else (lz4.frame, "LZ4FrameDecompressor")
    make = getattr(owner, name)
    monkeypatch.setattr(owner, name, Counting)
    for count in (1_000, 10_000):
        fed = 0
        data = many(codec, count, b"content" * 1000)
        assert codecs.decompress(codec, data) == b"content" * 1000
        assert fed <= 2 * len(data) + count * bounds.WINDOW


@pytest.mark.parametrize("codec", list(EMPTY))
def test_parts_may_be_bounded(codec: int) -> None:
    """One part for each KiB of content is always allowed, beside `parts`: what honest writers make is never refused."""
    assert codecs.decompress(codec, many(codec, 9, b"content"), parts=10) == b"content"
    with pytest.raises(CorruptBatch, match="more than 10 parts"):
        codecs.decompress(codec, many(codec, 12, b"content"), parts=10)
    head = snappy.HEADER if codec == codecs.SNAPPY else b""
    whole = head + codecs.compress(codec, bytes(1024))[len(head) :] * 500
    assert codecs.decompress(codec, whole, parts=1) == bytes(1024 * 500)


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.LZ4])
@pytest.mark.parametrize("sizes", [(0, 5_000_000), (5_000_000, 0, 1), (100, 200_000, 3, 700, 1_000_000)])
def test_members_of_all_sizes_follow_each_other(codec: int, sizes: tuple[int, ...]) -> None:
    contents = [random.Random(size).randbytes(size) for size in sizes]
    data = b"".join(codecs.compress(codec, content) for content in contents)
    assert codecs.decompress(codec, data) == b"".join(contents)
    for cut in (1, 2, 9, len(data) // 2):
        with pytest.raises(CorruptBatch):
            codecs.decompress(codec, data[:-cut])
    with pytest.raises(CorruptBatch, match="decompresses to more"):
        codecs.decompress(codec, data, limit=sum(sizes) - 1)
