"""File descriptors that are left to the storage, which can't do without: once RocksDB could not open a file, it takes
no more writes until it is opened again.
"""

from __future__ import annotations

import os
import resource
import sys

KEPT = 256  # so many, or
SHARE = 8  # this part of all that the process may have, if that is less


def allowed() -> int:
    """How many descriptors the process may have (RLIMIT_NOFILE)."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def few_left(given: int) -> bool:
    """Whether this descriptor, which has just been given, is one of those to be left. The lowest one that is free is
    given (POSIX), so it tells how many there are."""
    return given >= _to_be_used()


def room() -> int:
    """How many more there may be beside those to be left."""
    try:
        return _to_be_used() - len(os.listdir("/dev/fd"))
    except OSError:  # not every system tells
        return sys.maxsize


def _to_be_used() -> int:
    most = allowed()
    return most - min(KEPT, most // SHARE)
