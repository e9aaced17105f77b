"""Queries that are started again when a Python process of Spark was not there in time.

Spark starts a Python process of its own for a stream's source. It waits 10 s for it, which no setting changes, and does
not try again: on a busy machine the query fails, though nothing is wrong with it. (Tasks it does try again.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SLOW_START = "Python worker failed to connect back"
STARTS = 10
log = logging.getLogger(__name__)


def patiently(work: Callable[[], T], *, starts: int = STARTS, tell: Callable[[str], None] = log.warning) -> T:
    """What `work()` returns, which is called again as long as it fails because a Python process was slow to start.

        patiently(lambda: writer.start().awaitTermination())    # a DataStreamWriter with a checkpointLocation

    Args:
        work: runs a query from its beginning; it must not matter that it has begun before. That is so for
            streams with a checkpoint, for reads, and for writes to Krappy, of which nothing is published unless all is.
        starts: how often at most.
        tell: is told in a line that it is called again; by default the log is.

    Raises whatever else `work` raises, and the last error of this kind.
    """
    for left in reversed(range(starts)):
        try:
            return work()
        except Exception as error:
            if not left or not slow_start(error):
                raise
            tell("Spark's Python process was not there within 10 s: this machine is busy, starting the query again")
    raise ValueError(f"starts={starts}: at least once")


def slow_start(error: BaseException | None) -> bool:
    """Whether that is why a query failed."""
    while error is not None:
        if SLOW_START in str(error):
            return True
        error = error.__cause__
    return False
