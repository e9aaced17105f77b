"""What bounds the memory and the time that any codec takes for bytes which a peer sent."""

from __future__ import annotations

from krappy.errors import CorruptBatch

WINDOW = 512  # first window, in bytes, for a member or frame behind the first
LEAST_PART = 10  # bits: a part of 1 KiB, which is snappy-java's smallest block, is always possible


def too_large(limit: int) -> CorruptBatch:
    return CorruptBatch(f"a batch that decompresses to more than {limit} bytes")


def check_parts(codec: str, count: int, most: int, held: int) -> None:
    """Raises CorruptBatch if `count` parts that hold `held` bytes are too many."""
    if count > most + (held >> LEAST_PART):
        raise CorruptBatch(f"{codec}: more than {most} parts that hold less than a KiB each")


def first_guess(data: bytes | memoryview) -> int:
    """Bytes to allocate for the output before its size is known."""
    return max(1 << 16, 16 * len(data))
