"""The writes of a Spark job: each task attempt stages its rows, and the driver commits those of the attempts that won.

The broker keeps staged rows beside the log. A failed, speculative or zombie attempt leaves nothing that anyone can
read; a commit that is sent again publishes nothing more; no task can stage for a job that was aborted. So whatever
Spark or the user retries, the log has each row once, or has none of the job.

A job that may be run again under its own name (a replayed micro-batch, the user's `jobId`) has several runs, each a
staged job of its own for the broker: "name#0", "name#1", … A run that was aborted, or that expired, takes nothing any
more: its rows are staged again in the next run. A run that was committed is the last: a later attempt finds the job
done. All tasks find the same run, because they try the runs in order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from krappy.blocking import Client
from krappy.clients.staging import StagedCommit
from krappy.errors import KrappyError, StagingCommitted, StagingExpired, StagingFenced
from krappy.spark.outgoing import Outgoing, OutgoingRows
from krappy.types import Compression

if TYPE_CHECKING:
    from krappy.blocking import Stage

MOST_RUNS = 10_000
ASKING_TTL = 60.0  # seconds; of a run that is opened only to see whether the job is published
log = logging.getLogger(__name__)


class SparkJob(NamedTuple):
    """`again`: it may have several runs. `ttl`: seconds after its last staged rows when the broker drops a run."""

    name: str
    again: bool
    ttl: float
    compression: Compression | None = None


class StagedWrite(WriterCommitMessage):
    """What one task attempt has staged, and in which run. `done`: it staged nothing, the run is committed already."""

    def __init__(self, run: str, tokens: Sequence[str] = (), done: bool = False) -> None:
        self.run = run
        self.tokens = tuple(tokens)
        self.done = done


class TaskAttempt:
    """The stages of one task attempt, one for each topic, all in the same run. Leaving it drops unsealed stages."""

    def __init__(self, to: Client, job: SparkJob, task: str | None = None) -> None:
        self._to = to
        self._job = job
        self._stages: dict[str, Stage] = {}
        self._stack = ExitStack()
        context = TaskContext.get()
        number, self._attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        self._task = number if task is None else task
        self.run = job.name

    def __enter__(self) -> TaskAttempt:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def stage(self, topic: str) -> Stage:
        """The stage of a topic, opened on first use.

        Raises StagingCommitted if the job is published already; StagingFenced, StagingExpired if its run is over.
        """
        found = self._stages.get(topic)
        if found is None:
            found = self._open(topic, self.run) if self._stages or not self._job.again else self._first(topic)
            self._stages[topic] = found
        return found

    def _first(self, topic: str) -> Stage:
        for number in range(MOST_RUNS):
            self.run = f"{self._job.name}#{number}"
            try:
                return self._open(topic, self.run)
            except (StagingFenced, StagingExpired):
                continue
        raise KrappyError(f"{MOST_RUNS} runs of the job '{self._job.name}' were given up: give it another name")

    def _open(self, topic: str, run: str) -> Stage:
        job = self._job
        stage = self._to.stage(
            topic, job=run, task=self._task, attempt=self._attempt, ttl=job.ttl, compression=job.compression
        )
        return self._stack.enter_context(stage)

    def seal(self) -> list[str]:
        return [stage.seal() for stage in self._stages.values()]


def stage_all(batches: Iterable[pa.RecordBatch], outgoing: Outgoing, to: Client, job: SparkJob) -> StagedWrite:
    """A task's work: stages every row. Raises the broker's errors, such as RecordTooLarge."""
    with TaskAttempt(to, job) as attempt:
        try:
            for rows in _rows(batches, outgoing, lambda topic: attempt.stage(topic).partitions):
                attempt.stage(rows.topic).send_columns(
                    rows.keys,
                    rows.values,
                    headers=rows.headers,
                    timestamps=rows.timestamps,
                    partition=rows.partition,
                )
            return StagedWrite(attempt.run, attempt.seal())
        except StagingCommitted:  # a replay of a published job
            return StagedWrite(attempt.run, done=True)


def _rows(
    batches: Iterable[pa.RecordBatch], outgoing: Outgoing, partitions: Callable[[str], int]
) -> Iterator[OutgoingRows]:
    for batch in batches:
        yield from outgoing.rows(batch, time.time_ns() // 1_000_000, partitions)


def commit_all(messages: Iterable[WriterCommitMessage | None], to: Client) -> list[StagedCommit]:
    """The driver's work: publishes all that the tasks have staged, once. Returns the offsets that it got.

    Raises KrappyError if that is not possible; then nothing is published. The exception is a
    retriable error: after it the broker may have decided to publish the job, and may still do so. Another commit or an
    abort of the job tells then.
    """
    staged = _staged(messages)
    done = {each.run for each in staged if each.done}
    if done:
        return [to.commit_staged(run, ()) for run in sorted(done)]
    runs = sorted({each.run for each in staged if each.tokens})
    if len(runs) > 1:
        raise KrappyError(
            f"the job was given up while its tasks wrote ({' and '.join(runs)}), by another driver or because it was "
            "silent for longer than stagingTtl: nothing of it is published, run it again"
        )
    return [to.commit_staged(run, [token for each in staged for token in each.tokens]) for run in runs]


def abort_all(runs: Iterable[str], to: Client) -> None:
    """Drops the staged rows of these runs; late tasks can stage nothing more in them."""
    for run in sorted(set(runs)):
        try:
            to.abort_staged(run)
        except StagingCommitted:  # the answer to the commit was lost, not the commit
            log.warning("the job %s is published, although Spark counts it as failed", run)


def published(name: str, topic: str, to: Client) -> StagedCommit | None:
    """What a job that may have several runs has published; None if it is not published (yet).

    Raises UnknownTopic if `topic`, one of its topics, does not exist.
    """
    with TaskAttempt(to, SparkJob(name, True, ASKING_TTL), task="asking") as attempt:
        try:
            attempt.stage(topic)
        except StagingCommitted:
            return to.commit_staged(attempt.run, ())
    return None


def runs_of(messages: Iterable[WriterCommitMessage | None]) -> list[str]:
    """The runs in which something was staged."""
    return [each.run for each in _staged(messages) if each.tokens]


def _staged(messages: Iterable[WriterCommitMessage | None]) -> list[StagedWrite]:
    return [each for each in messages if isinstance(each, StagedWrite)]
