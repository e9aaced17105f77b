"""The Python processes in which Spark runs tasks and plans queries."""

from __future__ import annotations

import gc
import sys
from functools import cache


@cache
def settle(after: str) -> None:
    """In such a process, and once for each of `after`: spares the garbage collector what is in memory by now.

    Spark collects garbage after whatever it has such a process do, however little that was. With the modules of
    PySpark, Arrow and this package in memory that took 20 ms and more, several times as long as a small task's work.
    """
    if is_worker():
        gc.freeze()


def is_worker() -> bool:
    """Whether this is such a process."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name.startswith("pyspark.")


def is_task() -> bool:
    """Whether this is one that runs tasks."""
    return is_worker() and sys.argv[1:2] == ["pyspark.worker"]
