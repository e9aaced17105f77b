"""Lets PySpark find the data source `krappy` by itself: PySpark imports every top-level module named pyspark_*, and
takes its `DefaultSource`.

If one such module fails to import, Spark forgets all of them. So this one imports nothing at its top; if a package of
krappy[spark] is missing, it says so on stderr and has no DefaultSource.
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
