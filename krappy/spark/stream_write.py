"""df.writeStream.format("krappy"): each micro-batch is published once, however often it is replayed (`staged.py`).

The name of a micro-batch's job has the ids of the query and of the batch, which the checkpoint keeps. If Spark replays
a batch that was published before its driver died, the tasks find it published and write nothing. That holds as long as
the broker remembers the job (its setting staging_outcome_ms: a week).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from krappy.errors import ConfigError, KrappyError
from krappy.spark.connections import client
from krappy.spark.options import Options, texts
from krappy.spark.outgoing import outgoing
from krappy.spark.schema import arrow_schema
from krappy.spark.staged import SparkJob, abort_all, commit_all, runs_of, stage_all
from krappy.spark.versions import features

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # StreamExecution, MicroBatchExecution
GROUP = "spark.jobGroup.id"  # the id of a query's run
ROWS = 5_000  # of an Arrow batch that is made of single rows

_RUN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # matches no job group that the program has named
_written: dict[str, set[str]] = {}  # by run: the jobs of its last batch

_Base: Any = DataSourceStreamWriter
if features().arrow_stream_writer:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _Base


class StreamWriter(_Base):  # type: ignore[misc]
    """Spark makes one for each micro-batch, and another for its commit, which knows of staged rows only from messages.

    Before PySpark 4.1 rows come one by one instead of as Arrow batches.
    """

    def __init__(self, schema: StructType, options: Options, overwrite: bool) -> None:
        self._outgoing = outgoing(schema, options.topic)
        self._schema = schema
        self._broker = options.broker
        self._topic = options.topic
        self._ttl, self._compression = options.staging_ttl, options.compression

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        job = self._job()
        batches = iterator if features().arrow_stream_writer else _batches(iterator, self._schema)
        return stage_all(batches, self._outgoing, client(self._broker), job)

    def _job(self) -> SparkJob:
        context = TaskContext.get()
        query, batch = (context and context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        if not query or not batch:
            raise KrappyError(f"this task does not know its micro-batch: Spark gives no {QUERY_ID} and {BATCH_ID}")
        # The topic is for a checkpoint that was copied: its query has the same id, but may write to another topic.
        name = "/".join([query, batch, *([self._topic] if self._topic else [])])
        return SparkJob(name, True, self._ttl, self._compression)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        commit_all(messages, client(self._broker))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        abort_all(runs_of(messages), client(self._broker))


def batches_to(
    topic: str, *, address: str | None = None, name: str | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that writes each micro-batch to a topic once, however often it is replayed.

    For what Spark does not allow with Python sinks, above all `outputMode("update")`: the changed rows of an aggregate
    become upserts of a compacted topic.

        counts.writeStream.outputMode("update").foreachBatch(krappy.spark.batches_to("counts")).start()

    Args:
        name: identifies the query. None: its id, which its checkpoint keeps. Spark Connect does not tell the id, so a
            name is needed there, and another one if the query begins anew with another checkpoint.
        options: of a write, such as compression="zstd".

    The function writes one DataFrame of each batch; another one for the same topic needs a function with another name.
    Without such a name, the function raises ConfigError if Spark tells it the query's run (Spark Connect does not).
    """
    given = texts({"topic": topic, "address": address, **options})

    def write(batch: DataFrame, id: int) -> None:
        query = name or _property(batch, QUERY_ID)
        if query is None:
            raise ConfigError("batches_to: Spark does not say which query this is; give it a name to keep: name=…")
        job, run = f"{query}/{id}/{topic}", _property(batch, GROUP) or ""
        written = {each for each in _written.get(run, ()) if each.split("/")[-2] == str(id)}
        if job in written:
            raise ConfigError(
                f"batches_to({topic!r}): the batch {id} was written there already, and this would count as the same "
                "once more: write the union of both, or give each a name to keep: name=…"
            )
        batch.write.format("krappy").mode("append").option("jobId", job).options(**given).save()
        if _RUN.fullmatch(run):
            _written[run] = {*written, job}

    return write


def _property(batch: DataFrame, name: str) -> str | None:
    try:
        found: str | None = batch.sparkSession.sparkContext.getLocalProperty(name)
    except PySparkException:  # Spark Connect has no SparkContext
        return None
    return found


def _batches(rows: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    shape, rows = arrow_schema(schema), iter(rows)
    while some := [_plain(row) for row in islice(rows, ROWS)]:
        yield pa.RecordBatch.from_pylist(some, shape)


def _plain(row: Any) -> dict[str, Any]:
    """A row as Arrow takes it: Spark gives timestamps without a zone, in the machine's local time."""
    found: dict[str, Any] = row.asDict(recursive=True)
    if found.get("timestamp") is not None:
        found["timestamp"] = found["timestamp"].astimezone(UTC)
    return found
