"""Writes a folder of Parquet files that is there as a whole or not at all, wherever the program is killed.

Spark's own overwrite removes the old files before it has new ones. And a job that is killed while it gives its files
their names leaves some of them, which are then read as if they were all. So the files go to a folder beside:

1. If an earlier run has moved the old folder away and died, it is put back.
2. The new files are written to the folder `_NAME.new`.
3. The old folder is renamed `_NAME.old`, and `_NAME.new` gets its name.
4. `_NAME.old` is removed.

Between the two renames no folder has the name, but both are whole. In an object store a rename is a copy, and no single
step. Over Spark Connect this program can't rename: there Spark's own overwrite has to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from krappy.errors import ConfigError
from krappy.pipelines.following import place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_whole(rows: DataFrame, to: str, *, overwrite: bool) -> None:
    """Without `overwrite` an existing folder is an error of Spark's. Raises ConfigError if the file system refuses to
    rename."""
    spark, mode = rows.sparkSession, "overwrite" if overwrite else "errorifexists"
    if not hasattr(spark, "_jsparkSession"):
        rows.write.mode(mode).parquet(to)
        return
    files, path = place(spark, to)
    beside = path.getParent()
    if beside is None:  # the root of a bucket has no name
        rows.write.mode(mode).parquet(to)
        return
    new, old = (place(spark, f"{beside}/_{path.getName()}.{end}")[1] for end in ("new", "old"))
    if files.exists(old) and not files.exists(path):
        _rename(files, old, path)
    files.delete(old, True)
    if files.exists(path) and not overwrite:
        rows.write.mode(mode).parquet(to)
    rows.write.mode("overwrite").parquet(str(new))
    if files.exists(path):
        _rename(files, path, old)
    _rename(files, new, path)
    files.delete(old, True)


def _rename(files: Any, source: Any, to: Any) -> None:
    try:
        why = None if files.rename(source, to) else "its file system refuses that"
    except Py4JJavaError as error:
        why = str(error.java_exception.getMessage())
    if why is not None:
        raise ConfigError(
            f"{source} can't be renamed {to} ({why}): let the user of Spark write in the folder above it, and run this "
            "again"
        )
