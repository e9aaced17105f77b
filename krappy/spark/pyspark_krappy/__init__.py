"""How PySpark finds the data source `krappy` by itself: it imports every top-level module named pyspark_*, and takes
its `DefaultSource`.

One such module that fails to import makes Spark forget all of them, so this one imports nothing at its top; and where
krappy[spark] is not whole, it says so and has no DefaultSource.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from krappy.spark.source import KrappyDataSource
    except ImportError as error:
        import sys

        sys.stderr.write(f"the data source 'krappy' is not registered: {error} (pip install 'krappy[spark]')\n")
        raise AttributeError(f"the data source 'krappy' can't be imported: {error}") from error
    return KrappyDataSource
