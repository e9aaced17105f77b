"""File descriptors that are kept free for the storage. When RocksDB can't open a file, it takes no more writes until it
is opened again.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress

KEPT = 256  # descriptors kept free, at most
SHARE = 8  # one in so many of those that the process may have is kept free, at most


def allowed() -> int:
    """How many descriptors the process may have (RLIMIT_NOFILE)."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def raise_limit() -> None:
    """Raises the limit to what the system allows: each partition and each connection holds one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def few_left(given: int) -> bool:
    """Whether a descriptor that was just opened is one of those to keep free. The system always gives the lowest free
    number (POSIX), so the number tells how many are open."""
    return given >= _to_be_used()


def room() -> int:
    """How many more descriptors may be opened, so that those to keep free stay free."""
    try:
        return _to_be_used() - len(os.listdir("/dev/fd"))
    except OSError:  # not every system has this folder
        return sys.maxsize


def _to_be_used() -> int:
    most = allowed()
    return most - min(KEPT, most // SHARE)
