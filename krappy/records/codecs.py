"""The four compressions of a RecordBatch (gzip, snappy, lz4, zstd), as Kafka's clients write and read them.

Rules of this file: for any bytes `decompress` raises only CorruptBatch and UnsupportedCompression, and its `limit` is
checked before memory is allocated for the output. The time is linear in input and output: members or frames of a stream
behind the first are passed to the library in growing windows, because the library copies the input that it leaves over.
"""

from __future__ import annotations

import zlib

import cramjam
import lz4.frame

from krappy.errors import CorruptBatch, UnsupportedCompression

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
DEFAULT_LIMIT = 256 << 20  # bytes that one batch may decompress to, unless the caller says otherwise

# Java's snappy-java stream: 8 magic bytes, version, lowest compatible version, then u32-sized raw blocks.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK = 32 << 10
_WINDOW = 512  # first window, in bytes, for a member or frame behind the first
ANY = 1 << 62
_LEAST_PART = 10  # bits: a part of 1 KiB, which is snappy-java's smallest block, is always possible
_SNAPPY_RATIO = 22  # a 3-byte copy element yields at most 64 bytes


def compress(codec: int, data: bytes) -> bytes:
    """`data` compressed by `codec` (1 to 4; 0 returns it as it is)."""
    if codec == NONE:
        return data
    if codec == GZIP:
        engine = zlib.compressobj(wbits=31)
        return engine.compress(data) + engine.flush()
    if codec == SNAPPY:
        return _write_xerial(data)
    if codec == LZ4:  # Kafka reads independent blocks only (KIP-57)
        framed: bytes = lz4.frame.compress(data, block_linked=False, store_size=False)
        return framed
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    raise UnsupportedCompression(f"compression codec {codec}")


def decompress(codec: int, data: bytes | memoryview, limit: int = DEFAULT_LIMIT, parts: int = ANY) -> bytes:
    """`data` decompressed, at most `limit` bytes. `parts`: the most members (gzip), frames (lz4) or blocks (snappy)
    that are allowed, beyond one for each KiB of output.

    Raises CorruptBatch for bytes that are not a whole `codec` stream or that hold more than `limit`,
    UnsupportedCompression for a codec that does not exist.
    """
    if codec == NONE:
        if len(data) > limit:
            raise _too_large(limit)
        return bytes(data)
    if codec == GZIP:
        return _read_gzip(data, limit, parts)
    if codec == SNAPPY:
        return _read_snappy(data, limit, parts)
    if codec == LZ4:
        return _read_lz4(data, limit, parts)
    if codec == ZSTD:
        return _read_zstd(data, limit)
    raise UnsupportedCompression(f"compression codec {codec}")


def _too_large(limit: int) -> CorruptBatch:
    return CorruptBatch(f"a batch that decompresses to more than {limit} bytes")


def _check_parts(codec: str, count: int, most: int, held: int) -> None:
    """Raises CorruptBatch if `count` parts that hold `held` bytes are too many."""
    if count > most + (held >> _LEAST_PART):
        raise CorruptBatch(f"{codec}: more than {most} parts that hold less than a KiB each")


def _first_guess(data: bytes | memoryview) -> int:
    """Bytes to allocate for the output before its size is known."""
    return max(1 << 16, 16 * len(data))


def _read_gzip(data: bytes | memoryview, limit: int, most: int) -> bytes:
    parts: list[bytes] = []
    view = memoryview(data)
    position, size, room, count = 0, len(view), limit, 0
    window = size
    while True:  # one turn a member: RFC 1952 allows several
        engine = zlib.decompressobj(wbits=31)
        while not engine.eof:
            if position == size:
                raise CorruptBatch("gzip: cut short")
            chunk = view[position : position + window]
            try:
                part = engine.decompress(chunk, room + 1)
            except zlib.error as error:
                raise CorruptBatch(f"gzip: {error}") from None
            room -= len(part)
            if room < 0:
                raise _too_large(limit)
            position += len(chunk)
            window *= 2
            parts.append(part)
        position -= len(engine.unused_data)
        if position == size:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        count += 1
        _check_parts("gzip", count, most, limit - room)
        window = _WINDOW


def _write_xerial(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, max(1, len(data)), _XERIAL_BLOCK):  # no data: an empty block, since some readers want one
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _read_snappy(data: bytes | memoryview, limit: int, most: int) -> bytes:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _read_snappy_block(data, limit)
    parts: list[bytes] = []
    view = memoryview(data)
    position, size, room = len(_XERIAL_HEADER), len(data), limit
    if size < position:
        raise CorruptBatch("snappy: cut short")
    while position < size:
        length = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if length > size - position:
            raise CorruptBatch("snappy: a block that passes the end")
        part = _read_snappy_block(view[position : position + length], room)
        position += length
        room -= len(part)
        parts.append(part)
        _check_parts("snappy", len(parts), most, limit - room)
    return b"".join(parts)


def _read_snappy_block(data: bytes | memoryview, limit: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > limit:
            raise _too_large(limit)
        if size > _SNAPPY_RATIO * len(data):  # before the library allocates what the block claims
            raise CorruptBatch(f"snappy: {len(data)} bytes that claim to hold {size}")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None


def _read_lz4(data: bytes | memoryview, limit: int, most: int) -> bytes:
    parts: list[bytes] = []
    view = memoryview(data)
    position, size, room, count = 0, len(view), limit, 0
    window = size
    while position < size:  # several frames may follow each other
        engine = lz4.frame.LZ4FrameDecompressor()
        step = 0
        while not engine.eof:
            chunk = view[:0]
            if engine.needs_input:
                if position == size:
                    raise CorruptBatch("lz4: cut short")
                chunk = view[position : position + window]
                position += len(chunk)
                window *= 2
                # The library allocates as much as the size limit that it is given.
                step = max(step, 16 * len(chunk) if count else _first_guess(chunk))
            try:
                part = engine.decompress(chunk, min(step, room + 1))
            except (RuntimeError, EOFError) as error:
                raise CorruptBatch(f"lz4: {error}") from None
            room -= len(part)
            if room < 0:
                raise _too_large(limit)
            parts.append(part)
            step *= 4
        position -= len(engine.unused_data or b"")
        count += 1
        _check_parts("lz4", count, most, limit - room)
        window = _WINDOW
    if not parts:
        raise CorruptBatch("lz4: empty")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd_content_size(data: bytes | memoryview) -> int | None:
    """The size that the first frame claims (RFC 8878, 3.1.1.1), None when it does not say."""
    if len(data) < 6 or bytes(data[:4]) != b"\x28\xb5\x2f\xfd":
        return None
    descriptor = data[4]
    single = descriptor >> 5 & 1
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    if not width or len(data) < start + width:
        return None
    return int.from_bytes(data[start : start + width], "little") + (256 if width == 2 else 0)


def _read_zstd(data: bytes | memoryview, limit: int) -> bytes:
    claimed = _zstd_content_size(data)
    if claimed is not None and claimed > limit:
        raise _too_large(limit)
    guess = _first_guess(data)  # the claimed size may be a lie, so it is not allocated at once
    room = min(limit, guess if claimed is None else min(claimed, guess))
    while True:
        out = bytearray(room)
        try:
            size = cramjam.zstd.decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise CorruptBatch(f"zstd: {error}") from None
        else:
            if claimed is not None and size < claimed:  # libzstd does not always check this
                raise CorruptBatch(f"zstd: {size} bytes in a frame that claims {claimed}")
            return bytes(memoryview(out)[:size])
        if room >= limit:
            raise _too_large(limit)
        room = min(limit, max(room * 4, 1 << 16))
