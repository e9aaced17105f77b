"""Settings of the C library's memory, for processes that handle many batches.

Krappy's own programs call `keep_freed_memory`. `krappy.connect` does not: a library must not decide this for its
program. A program that reads or writes much can call it once, at its start; it halved the time of reading 1 KB events.
"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

KEPT_FREE = 16 << 20  # bytes of freed memory that the process keeps for itself
ARENAS = 2  # threads get their memory from so many: one for the main thread, one for all others
_MALLINFO = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h


def keep_freed_memory() -> None:
    """Tells glibc not to give batch-sized buffers back to the system each time they are freed: to get them again,
    zeroed page by page, took more than half of the time of encoding a 1 MB batch.

    Each arena keeps such buffers, and by default there may be eight arenas for each processor. Only `ARENAS` are
    allowed: with more, a broker under a mixed load grew by 3 MiB a minute for as long as it was watched; with two it
    settled. Does nothing with other C libraries."""
    mallopt = _of_library("mallopt")
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, KEPT_FREE)
    mallopt(_M_TRIM_THRESHOLD, KEPT_FREE)
    mallopt(_M_ARENA_MAX, ARENAS)


def give_back() -> None:
    """Gives the pages of freed memory back to the system, wherever they lie (malloc_trim(3)). Takes some ms, in which
    other threads that need memory wait. Does nothing with other C libraries."""
    trim = _of_library("malloc_trim")
    if trim is not None:
        trim(0)


def allocated() -> int:
    """Bytes that the C library has given out and that were not freed (mallinfo2(3)); 0 if it does not tell."""
    ask = _of_library("mallinfo2")
    if ask is None:
        return 0
    ask.restype = _Mallinfo
    told = ask()
    return int(told.uordblks + told.hblkhd)


class _Mallinfo(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in _MALLINFO]


def _of_library(name: str) -> Any:
    """A function of the C library; None: it has none of this name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
