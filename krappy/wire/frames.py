"""Frames of the native protocol: `u32 size`, `u32 type`, `size - 4` bytes of one msgpack map. Big-endian.

Rules of this file: it never blocks, never copies a frame more than once, and whatever the bytes only
`ProtocolError` leaves it. A length is checked against the limit before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from krappy.errors import FrameTooLarge, ProtocolError

HEADER = struct.Struct(">II")
ANSWER = 0x80000000  # set in the type of every answer
ERROR = 0xFFFFFFFF  # the type of an error answer
DEFAULT_LIMIT = 64 << 20  # bytes of one frame, its type included


def frame(kind: int, body: bytes) -> bytes:
    """One frame as bytes. `body` is a packed msgpack map."""
    return HEADER.pack(len(body) + 4, kind) + body


class FrameReader:
    """Cuts a byte stream into frames, for peers that hand over chunks as they come.

    A small frame is sliced out of the chunk it arrived in; a large one is gathered in a buffer of its own size,
    once the first chunk has named that size.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._rest += data

    @property
    def pending(self) -> int:
        """Bytes held that do not make a whole frame yet."""
        return len(self._rest)

    def wanted(self) -> int:
        """How many more bytes the next frame needs, as far as is known: at least 1 unless one is ready."""
        if len(self._rest) < 8:
            return 8 - len(self._rest)
        return max(0, check_size(int.from_bytes(self._rest[:4], "big"), self._limit) + 4 - len(self._rest))

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Every whole frame held, as (type, body). Raises ProtocolError for a size that cannot be."""
        rest = self._rest
        position, held = 0, len(rest)
        try:
            while held - position >= 4:
                size = check_size(int.from_bytes(rest[position : position + 4], "big"), self._limit)
                if held - position < size + 4:
                    break
                kind = int.from_bytes(rest[position + 4 : position + 8], "big")
                with memoryview(rest) as view:
                    body = bytes(view[position + 8 : position + 4 + size])
                position += size + 4
                yield kind, body
        finally:
            if position:
                del rest[:position]


def check_size(size: int, limit: int) -> int:
    """The size field of a frame, refused when it cannot hold a type or passes the limit."""
    if size < 4:
        raise ProtocolError(f"a frame of size {size}: at least 4 bytes for its type are needed")
    if size > limit:
        raise FrameTooLarge(f"a frame of {size} bytes; the limit is {limit}", limit=limit)
    return size
