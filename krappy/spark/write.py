"""df.write.format("krappy"): batch writes with exactly-once effect, by staging (`staged.py`).

A write is a staged job with an id of its own, so writing a DataFrame twice appends it twice. With the option `jobId`
the user chooses the id: it is published once, so jobs that are run again, and writes in a `foreachBatch`, are
exactly-once, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from krappy.clients.staging import StagedCommit
from krappy.errors import ConfigError
from krappy.spark.awaiting import await_tables
from krappy.spark.connections import client
from krappy.spark.options import Options
from krappy.spark.outgoing import outgoing
from krappy.spark.staged import SparkJob, abort_all, commit_all, runs_of, stage_all


class BatchWriter(DataSourceArrowWriter):
    """Made once for a write; the tasks and the driver's commit use pickled copies of it, with the same job."""

    def __init__(self, schema: StructType, options: Options, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("a topic's events are never overwritten: write with .mode('append')")
        self._outgoing = outgoing(schema, options.topic)
        self._broker = options.broker
        name, again = options.job_id or uuid.uuid4().hex, options.job_id is not None
        self._await_table = options.await_table
        self._job = SparkJob(name, again, options.staging_ttl, options.compression)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage_all(iterator, self._outgoing, client(self._broker), self._job)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        published = commit_all(messages, client(self._broker))
        self._check(published)
        if self._await_table:
            await_tables(published, client(self._broker))

    def _check(self, published: Sequence[StagedCommit]) -> None:
        """Raises ConfigError if a write to other topics has published the jobId: this one would be lost unnoticed."""
        for each in published:
            topics = sorted({part.topic for part in each.partitions})
            if self._outgoing.topic is not None and self._outgoing.topic not in topics:
                raise ConfigError(
                    f"jobId={self._job.name!r} was published already, to {' and '.join(topics)}, and nothing of it is "
                    f"for '{self._outgoing.topic}': give each write a jobId of its own"
                )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        runs = runs_of(messages) if self._job.again else [self._job.name]
        abort_all(runs, client(self._broker))
