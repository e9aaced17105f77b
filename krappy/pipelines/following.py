"""A streaming query, run to its end (or for ever) while somebody is told how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import krappy.spark

if TYPE_CHECKING:
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
            was at the beginning is done.

    Raises what made the query fail.
    """
    query = (writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)).start()
    done, last = Done(), -1
    try:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(LOOK_SECONDS))
            for progress in worked(query.recentProgress, last):
                last = progress["batchId"]
                done = _after(done, progress)
                if progress["numInputRows"]:
                    tell(_said(done, progress))
    finally:
        query.stop()
    return done


def worked(progress: Iterable[Any], last: int) -> list[Any]:
    """Of batches behind `last`, what they did. A query that waits tells of its next batch, too, before that begins."""
    return [each for each in progress if each["batchId"] > last and "addBatch" in each["durationMs"]]


def _after(done: Done, progress: Any) -> Done:
    late = sum(state["numRowsDroppedByWatermark"] for state in progress["stateOperators"])
    return Done(done.events + progress["numInputRows"], done.batches + 1, done.late + late)


def _said(done: Done, progress: Any) -> str:
    waiting = sum(sum(lags.values()) for lags in krappy.spark.lag(progress).values())
    rate = f", {progress['processedRowsPerSecond']:,.0f}/s" if progress["processedRowsPerSecond"] else ""
    late = f", {done.late:,} late" if done.late else ""
    return f"batch {progress['batchId']}: {done.events:,} events{rate}, {waiting:,} to come{late}"
