"""lz4 frames."""

from __future__ import annotations

import lz4.frame

from krappy.errors import CorruptBatch
from krappy.records.codecs.bounds import WINDOW, check_parts, first_guess, too_large


def compress(data: bytes) -> bytes:
    framed: bytes = lz4.frame.compress(data, block_linked=False, store_size=False)  # Kafka reads no others (KIP-57)
    return framed


def decompress(data: bytes | memoryview, limit: int, most: int) -> bytes:
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
                step = max(step, 16 * len(chunk) if count else first_guess(chunk))
            try:
                part = engine.decompress(chunk, min(step, room + 1))
            except (RuntimeError, EOFError) as error:
                raise CorruptBatch(f"lz4: {error}") from None
            room -= len(part)
            if room < 0:
                raise too_large(limit)
            parts.append(part)
            step *= 4
        position -= len(engine.unused_data or b"")
        count += 1
        check_parts("lz4", count, most, limit - room)
        window = WINDOW
    if not parts:
        raise CorruptBatch("lz4: empty")
    return parts[0] if len(parts) == 1 else b"".join(parts)
