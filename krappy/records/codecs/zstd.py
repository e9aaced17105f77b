"""zstd: RFC 8878."""

from __future__ import annotations

import cramjam

from krappy.errors import CorruptBatch
from krappy.records.codecs.bounds import first_guess, too_large


def compress(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def _content_size(data: bytes | memoryview) -> int | None:
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


def decompress(data: bytes | memoryview, limit: int, most: int) -> bytes:
    claimed = _content_size(data)
    if claimed is not None and claimed > limit:
        raise too_large(limit)
    guess = first_guess(data)  # the claimed size may be a lie, so it is not allocated at once
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
            raise too_large(limit)
        room = min(limit, max(room * 4, 1 << 16))
