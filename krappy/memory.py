"""Settings of the C library's memory, for processes that handle many batches.

Krappy's own programs call `keep_freed_memory`. `krappy.connect` does not: a library must not decide this for its
program. A program that reads or writes much can call it once, at its start; it halved the time of reading 1 KB events.
"""

from __future__ import annotations

import ctypes

KEPT_FREE = 16 << 20  # bytes of freed memory that the process keeps for itself
ARENAS = 2  # from which threads get their memory: one for the main thread, one for all others
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h


def keep_freed_memory() -> None:
    """Tells glibc not to give batch-sized buffers back to the system each time they are freed: to get them again,
    zeroed page by page, took more than half of the time of encoding a 1 MB batch.

    Each arena keeps them, and by default there may be eight for each processor. So few are allowed: under a mixed load
    a broker grew by 3 MiB a minute for as long as it was watched, and settled once there were two. Does nothing with
    other C libraries."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, KEPT_FREE)
    mallopt(_M_TRIM_THRESHOLD, KEPT_FREE)
    mallopt(_M_ARENA_MAX, ARENAS)
