"""A streaming query, run to its end (or for ever) while somebody is told how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import krappy.spark
from krappy.spark.patience import patiently
from krappy.spark.versions import features

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Tell = Callable[[str], None]
LOOK_SECONDS = 1  # how often progress is looked for


class Done(NamedTuple):
    """What a run of a stream has done. `late`: rows that came after their window was closed, and were left out."""

    events: int = 0
    batches: int = 0
    late: int = 0


def silent(_: str) -> None:
    """For a program that wants to be told nothing."""


def follow(writer: DataStreamWriter, every: str | None, tell: Tell) -> Done:
    """Runs what is to be written, and says of each batch how far it is.

    Args:
        every: such as "30 seconds": goes on until it is stopped, with a batch so often. None: ends when all that there
            was at the beginning is done (before PySpark 4.2, at the latest when nothing new has come).

    Raises what made the query fail.
    """
    if every is not None:
        return _run(writer.trigger(processingTime=every), Done(), tell)
    done = _run(writer.trigger(availableNow=True), Done(), tell)
    more = not features().admission_control  # then availableNow ends behind its first batch
    while more:
        before, done = done, _run(writer, done, tell)
        more = done.events > before.events
    return done


def _run(writer: DataStreamWriter, done: Done, tell: Tell) -> Done:
    """Runs a query; `done` by those before it. It goes on from its checkpoint, so it may be started again."""
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
    """Of batches behind `last`, what they did. A query that waits tells of its next batch, too, before that begins."""
    return [each for each in progress if each["batchId"] > last and "addBatch" in each["durationMs"]]


def _after(done: Done, progress: Any) -> Done:
    late = sum(state["numRowsDroppedByWatermark"] for state in progress["stateOperators"])
    return Done(done.events + progress["numInputRows"], done.batches + 1, done.late + late)


def said(done: Done, progress: Any) -> str:
    """A line on a batch: what was done until now, how fast, and what is to come where Spark tells (from 4.2 on)."""
    lag = krappy.spark.lag(progress)
    waiting = f", {sum(sum(lags.values()) for lags in lag.values()):,} to come" if lag else ""
    rate = f", {progress['processedRowsPerSecond']:,.0f}/s" if progress["processedRowsPerSecond"] else ""
    late = f", {done.late:,} late" if done.late else ""
    return f"batch {progress['batchId']}: {done.events:,} events{rate}{waiting}{late}"


def last_batch(spark: SparkSession, folder: str) -> int:
    """The number of the last batch that one of Spark's own logs has; -1: none, or nobody knows: over Spark Connect this
    program sees no files. (Spark reads no such folder as data.)"""
    if not hasattr(spark, "_jsparkSession"):
        return -1
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(folder)
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not files.exists(path):
        return -1
    names = [str(each.getPath().getName()).removesuffix(".compact") for each in files.listStatus(path)]
    return max((int(name) for name in names if name.isdigit()), default=-1)
