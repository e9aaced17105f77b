"""Snappy: blocks in the stream of snappy-java, as Java's clients write it, or one block alone."""

from __future__ import annotations

import cramjam

from krappy.errors import CorruptBatch
from krappy.records.codecs.bounds import check_parts, too_large

# The stream: 8 magic bytes, version, lowest compatible version, then u32-sized raw blocks.
_MAGIC = b"\x82SNAPPY\x00"
HEADER = _MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_BLOCK = 32 << 10
_RATIO = 22  # a 3-byte copy element yields at most 64 bytes


def compress(data: bytes) -> bytes:
    parts = [HEADER]
    view = memoryview(data)
    for start in range(0, max(1, len(data)), _BLOCK):  # no data: an empty block, since some readers want one
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _BLOCK]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def decompress(data: bytes | memoryview, limit: int, most: int) -> bytes:
    if bytes(data[:8]) != _MAGIC:
        return _block(data, limit)
    parts: list[bytes] = []
    view = memoryview(data)
    position, size, room = len(HEADER), len(data), limit
    if size < position:
        raise CorruptBatch("snappy: cut short")
    while position < size:
        length = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if length > size - position:
            raise CorruptBatch("snappy: a block that passes the end")
        part = _block(view[position : position + length], room)
        position += length
        room -= len(part)
        parts.append(part)
        check_parts("snappy", len(parts), most, limit - room)
    return b"".join(parts)


def _block(data: bytes | memoryview, limit: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > limit:
            raise too_large(limit)
        if size > _RATIO * len(data):  # before the library allocates what the block claims
            raise CorruptBatch(f"snappy: {len(data)} bytes that claim to hold {size}")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None
