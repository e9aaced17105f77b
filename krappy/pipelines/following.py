"""Runs a streaming query to its end (or for ever), and reports its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

import krappy.spark
from krappy.errors import ConfigError
from krappy.spark.patience import patiently
from krappy.spark.versions import features

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Tell = Callable[[str], None]
LOOK_SECONDS = 1  # between two looks at the query's progress


class Done(NamedTuple):
    """What a run of a stream has done. `events`: rows that it read; `late`: rows that were left out, since they came
    after their window was closed."""

    events: int = 0
    batches: int = 0
    late: int = 0


def silent(_: str) -> None:
    """A `tell` that ignores progress."""


def follow(writer: DataStreamWriter, every: str | None, tell: Tell) -> Done:
    """Runs a query; calls `tell` with a line for each batch.

    Args:
        every: such as "30 seconds": the time between two batches; runs until it is stopped. None: ends with the last
            event that existed at the beginning (before PySpark 4.2: ends when nothing new comes).

    Raises the query's error.
    """
    if every is not None:
        return _run(writer.trigger(processingTime=every), Done(), tell)
    done = _run(writer.trigger(availableNow=True), Done(), tell)
    more = not features().admission_control  # then availableNow ends after its first batch
    while more:
        before, done = done, _run(writer, done, tell)
        more = done.events > before.events
    return done


def _run(writer: DataStreamWriter, done: Done, tell: Tell) -> Done:
    """Runs a query; returns `done` (by earlier runs) plus what it did. It has a checkpoint, so it may run again."""
    return patiently(lambda: _once(writer, done, tell), tell=tell)


def _once(writer: DataStreamWriter, done: Done, tell: Tell) -> Done:
    query, last = writer.start(), -1
    try:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(LOOK_SECONDS))
            for progress in worked(query.recentProgress, last):
                last = progress["batchId"]
                done = _after(done, progress)
                if progress["numInputRows"]:
                    tell(said(done, progress))
    finally:
        query.stop()
    return done


def worked(progress: Iterable[Any], last: int) -> list[Any]:
    """The progress of batches after `last` that have run. (A query that waits reports its next batch, too.)"""
    return [each for each in progress if each["batchId"] > last and "addBatch" in each["durationMs"]]


def _after(done: Done, progress: Any) -> Done:
    late = sum(state["numRowsDroppedByWatermark"] for state in progress["stateOperators"])
    return Done(done.events + progress["numInputRows"], done.batches + 1, done.late + late)


def said(done: Done, progress: Any) -> str:
    """A line on a batch: the events so far, the rate, and from PySpark 4.2 on how many are still to come."""
    lag = krappy.spark.lag(progress)
    waiting = f", {sum(sum(lags.values()) for lags in lag.values()):,} to come" if lag else ""
    rate = f", {progress['processedRowsPerSecond']:,.0f}/s" if progress["processedRowsPerSecond"] else ""
    late = f", {done.late:,} late" if done.late else ""
    return f"batch {progress['batchId']}: {done.events:,} events{rate}{waiting}{late}"


def last_batch(spark: SparkSession, folder: str) -> int:
    """The number of the last batch in one of Spark's own logs (a folder, which Spark can't read as data). -1: it has
    none; or it is unknown, since over Spark Connect this program sees no files."""
    numbers = [name.removesuffix(".compact") for name in names(spark, folder)]
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def names(spark: SparkSession, folder: str) -> list[str]:
    """The names of what is in a folder; none if it does not exist, or over Spark Connect."""
    if not hasattr(spark, "_jsparkSession"):
        return []
    files, path = place(spark, folder)
    return [str(each.getPath().getName()) for each in files.listStatus(path)] if files.exists(path) else []


def make_folder(spark: SparkSession, folder: str) -> None:
    """Makes a folder that a query will write to, unless it is there. Without this call a query that can't make it would
    fail later, after Spark has started Python processes, and with a text that is harder to understand. Over Spark
    Connect this does nothing.

    Raises ConfigError."""
    if not hasattr(spark, "_jsparkSession"):
        return
    try:
        files, path = place(spark, folder)
        why = None if files.mkdirs(path) else "its file system refuses that"
    except Py4JJavaError as error:
        why = str(error.java_exception.getMessage())
    if why is not None:
        raise ConfigError(
            f"the folder {folder} can't be made ({why}): give another one, or let the user of Spark write there"
        )


def place(spark: SparkSession, folder: str) -> tuple[Any, Any]:
    """The file system of a folder, and its path there."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(folder)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path
