"""Starts queries again that failed because a Python process of Spark was slow to start.

Spark starts a Python process for a stream's source. It waits 10 s for it, which no setting changes, and does not try
again: on a busy machine the query fails, though nothing is wrong with it. (Spark does try tasks again.)
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
    """Calls `work()`, again if it fails because a Python process was slow to start, and returns its result.

        patiently(lambda: writer.start().awaitTermination())    # a DataStreamWriter with a checkpointLocation

    Args:
        work: runs a query from its beginning, and may be called again after a failure. That is safe for streams with a
            checkpoint, for reads, and for writes to Krappy, which publish all rows or none.
        starts: how often `work` is called at most.
        tell: is called with a line before each further start; by default it is logged as a warning.

    Raises any other error of `work`, and after `starts` calls the last error of this kind.
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
    """Whether the error, or one that caused it, says that a Python process was slow to start."""
    while error is not None:
        if SLOW_START in str(error):
            return True
        error = error.__cause__
    return False
