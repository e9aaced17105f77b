"""The keys of the views database. VIEWS.md describes them.

A view belongs to a partition, which the catalog gives a dense number (u32, at least 1, never given again). An
entry's key is that number, big-endian, followed by the record's key, so that a view is one range in the order of
its record keys. Number 0 is reserved for what is known about the views themselves.
"""

from __future__ import annotations

PREFIX_SIZE = 4
MAX_NUMBER = 2**32 - 2  # so that the next prefix, the end of a view's range, always exists


def view_prefix(number: int) -> bytes:
    """What every key of this partition's view begins with. Raises ValueError for a number no partition has."""
    if not 1 <= number <= MAX_NUMBER:
        raise ValueError(f"{number} is not the number of a partition")
    return number.to_bytes(4, "big")


def view_end(number: int) -> bytes:
    """The first key behind this partition's view."""
    return (number + 1).to_bytes(4, "big")


def number_in(stored: bytes) -> int:
    """The number of the partition that a stored key belongs to."""
    return int.from_bytes(stored[:PREFIX_SIZE], "big")


def applied_key(number: int) -> bytes:
    """The key of this view's applied offset."""
    return b"\0\0\0\0" + number.to_bytes(4, "big")


def floor_key(number: int) -> bytes:
    """The key of this view's floor: the offset below which its entries are absent for good."""
    return applied_key(number) + b"f"


def begun_key(number: int) -> bytes:
    """The key of how far the log had been cleaned when this view was begun at the log's start."""
    return applied_key(number) + b"b"


def strays_key(number: int) -> bytes:
    """The key of whether any key of this view belongs to another partition."""
    return applied_key(number) + b"s"


def key_range(
    number: int, start: bytes | None = None, end: bytes | None = None, prefix: bytes | None = None
) -> tuple[bytes, bytes]:
    """The stored keys `first <= key < last` of the record keys at `start` or later, before `end`, with `prefix`.

    None leaves a side open. A contradiction gives an empty range, never an error.
    """
    view = view_prefix(number)
    first = view + max(start or b"", prefix or b"")
    last = view_end(number) if end is None else view + end
    if prefix:
        last = min(last, after_prefix(view + prefix))
    return first, max(first, last)


def after_prefix(prefix: bytes) -> bytes:
    """The first key, in byte order, behind all keys that begin with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])
