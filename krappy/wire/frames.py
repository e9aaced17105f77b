"""Frames of the native protocol: `u32 size`, `u32 type`, `size - 4` bytes of one msgpack map. Big-endian.

Rules of this file: it never blocks, copies each byte of a frame at most once, and raises only `ProtocolError`, whatever
the bytes. It checks a size against the limit as soon as the size has come. It allocates memory only for bytes that have
come, not for bytes that a size announces.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from krappy.errors import FrameTooLarge, ProtocolError
from krappy.wire import mistaken

HEADER = struct.Struct(">II")
SIZE = struct.Struct(">I")  # unsigned: a negative one is too large
ANSWER = 0x80000000  # set in the type of every answer
ERROR = 0xFFFFFFFF  # the type of an error answer
DEFAULT_LIMIT = 64 << 20  # bytes of one frame, its type included
SMALL = 8 << 10  # a body of up to this size is copied out as bytes, which is faster than a view of it


def frame(kind: int, *body: bytes | memoryview) -> bytes:
    """One frame as bytes. `body` is a packed msgpack map, in one part or several."""
    if len(body) == 1:
        return HEADER.pack(len(body[0]) + 4, kind) + body[0]
    return b"".join((HEADER.pack(sum(map(len, body)) + 4, kind), *body))


class FrameReader:
    """Cuts a byte stream, fed in chunks, into frames.

    A frame within one chunk is cut out of that chunk. A frame that spans chunks is gathered in a buffer of its own,
    without bytes of the next frame, so that its body can be a view of the buffer.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._gathered = bytearray()  # the beginning of an incomplete frame
        self._chunk: bytes = b""  # the bytes that came after it
        self._position = 0  # of the first unused byte of the chunk

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Takes the next bytes of the stream. Keeps `bytes` without a copy; copies anything else."""
        if self._position < len(self._chunk):
            data = self._chunk[self._position :] + bytes(data)
        self._chunk = data if type(data) is bytes else bytes(data)
        self._position = 0

    @property
    def pending(self) -> int:
        """How many bytes it holds that were not given out as frames."""
        return len(self._gathered) + len(self._chunk) - self._position

    def frames(self) -> Iterator[tuple[int, bytes | memoryview]]:
        """Every whole frame held, as (type, body). Raises ProtocolError for an impossible size.

        A body that is a memoryview stays valid, and keeps its chunk in memory as long as it exists.
        """
        while True:
            if self._gathered:
                whole = self._gather()
                if whole is None:
                    return
                yield int.from_bytes(whole[4:8], "big"), memoryview(whole)[8:]
            chunk, position = self._chunk, self._position
            held = len(chunk)
            while held - position >= 8:
                size, kind = HEADER.unpack_from(chunk, position)
                end = position + 4 + check_size(size, self.limit)
                if end > held:
                    break
                body = chunk[position + 8 : end] if size <= SMALL else memoryview(chunk)[position + 8 : end]
                self._position = position = end
                yield kind, body
                if self._chunk is not chunk:
                    break
            if self._chunk is chunk:  # otherwise the caller has fed more meanwhile
                self._gathered += memoryview(chunk)[position:]
                self._chunk, self._position = b"", 0
                if len(self._gathered) >= 4:
                    check_size(int.from_bytes(self._gathered[:4], "big"), self.limit)
                return

    def _gather(self) -> bytearray | None:
        """Moves bytes of the chunk to the incomplete frame. Returns that frame when it is whole, otherwise None."""
        gathered = self._gathered
        if len(gathered) < 4:
            self._move(4 - len(gathered))
            if len(gathered) < 4:
                return None
        size = check_size(int.from_bytes(gathered[:4], "big"), self.limit)
        self._move(size + 4 - len(gathered))
        if len(gathered) < size + 4:
            return None
        self._gathered = bytearray()
        return gathered

    def _move(self, count: int) -> None:
        end = min(len(self._chunk), self._position + count)
        self._gathered += memoryview(self._chunk)[self._position : end]
        self._position = end
        if end == len(self._chunk):
            self._chunk, self._position = b"", 0


def check_size(size: int, limit: int) -> int:
    """The size. Raises ProtocolError when it is too small for a type, FrameTooLarge when it is over the limit."""
    if not 4 <= size <= limit:
        raise refusal(size, 4, limit)
    return size


def refusal(size: int, least: int, limit: int) -> ProtocolError | FrameTooLarge:
    """The error for the size of a frame, of any protocol, that is not between `least` and `limit`."""
    if size < least:
        return ProtocolError(f"a frame of size {size}: at least {least} bytes are needed")
    spoken = mistaken.spoken(SIZE.pack(size))
    more = {"spoken": spoken} if spoken else {}
    return FrameTooLarge(f"a frame of {size} bytes; the limit is {limit}{mistaken.told(spoken)}", limit=limit, **more)
