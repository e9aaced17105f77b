"""The four compressions of a RecordBatch (gzip, snappy, lz4, zstd), as Kafka's clients write and read them.

Rules of this folder: for any bytes `decompress` raises only CorruptBatch and UnsupportedCompression, and its `limit` is
checked before memory is allocated for the output. The time is linear in input and output: members or frames of a stream
behind the first are passed to the library in growing windows, because the library copies the input that it leaves over.

A codec's module, and with it its library, is loaded by the first batch that has it: most brokers see one at most, and
cramjam takes 1.6 MB.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Protocol, cast

from krappy.errors import UnsupportedCompression
from krappy.records.codecs.bounds import too_large

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
DEFAULT_LIMIT = 256 << 20  # bytes that one batch may decompress to, unless the caller says otherwise
ANY = 1 << 62


class _Codec(Protocol):
    """A module of this folder."""

    def compress(self, data: bytes) -> bytes: ...

    def decompress(self, data: bytes | memoryview, limit: int, most: int) -> bytes:
        """`most`: parts that are allowed, beyond one for each KiB of output. Raises CorruptBatch."""


@cache
def _loaded(codec: int) -> _Codec:
    """Raises UnsupportedCompression."""
    if not GZIP <= codec <= ZSTD:
        raise UnsupportedCompression(f"compression codec {codec}")
    return cast(_Codec, import_module(f"{__name__}.{NAMES[codec]}"))


def compress(codec: int, data: bytes) -> bytes:
    """`data` compressed by `codec` (1 to 4; 0 returns it as it is)."""
    return data if codec == NONE else _loaded(codec).compress(data)


def decompress(codec: int, data: bytes | memoryview, limit: int = DEFAULT_LIMIT, parts: int = ANY) -> bytes:
    """`data` decompressed, at most `limit` bytes. `parts`: the most members (gzip), frames (lz4) or blocks (snappy)
    that are allowed, beyond one for each KiB of output.

    Raises CorruptBatch for bytes that are not a whole `codec` stream or that hold more than `limit`,
    UnsupportedCompression for a codec that does not exist.
    """
    if codec == NONE:
        if len(data) > limit:
            raise too_large(limit)
        return bytes(data)
    return _loaded(codec).decompress(data, limit, parts)
