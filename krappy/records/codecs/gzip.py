"""gzip: RFC 1952."""

from __future__ import annotations

import zlib

from krappy.errors import CorruptBatch
from krappy.records.codecs.bounds import WINDOW, check_parts, too_large


def compress(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=31)
    return engine.compress(data) + engine.flush()


def decompress(data: bytes | memoryview, limit: int, most: int) -> bytes:
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
                raise too_large(limit)
            position += len(chunk)
            window *= 2
            parts.append(part)
        position -= len(engine.unused_data)
        if position == size:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        count += 1
        check_parts("gzip", count, most, limit - room)
        window = WINDOW
