"""The Python processes in which Spark runs tasks and plans queries."""

from __future__ import annotations

import gc
import sys
from functools import cache


@cache
def settle(after: str) -> None:
    """Exempts all objects that are in memory now from garbage collection, once for each value of `after`. Does nothing
    if this is not such a process.

    Spark collects garbage after each piece of work of such a process. With the modules of PySpark, Arrow and this
    package in memory that took 20 ms and more, several times as long as a small task's work.
    """
    if is_worker():
        gc.freeze()


def is_worker() -> bool:
    """Whether this is a Python process that Spark started."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name.startswith("pyspark.")


def is_task() -> bool:
    """Whether this is a Python process in which Spark runs tasks."""
    return is_worker() and sys.argv[1:2] == ["pyspark.worker"]
