"""Staged writes: the tasks of a job write events that nobody sees, and one commit publishes all of them.

They are for work that is done in parts, by tasks that may be retried, run twice at a time, or killed, as in Spark. The
events of a task are **staged** beside the log. One commit publishes the events of all tasks, to any number of topics
and partitions, all or none, and once.

- A **job** is the whole work. The client chooses its name, which no other job may ever have had. An **attempt** is one
  try of one of its tasks, for one topic.
- An attempt registers by Stage and sends by Batch (5), under the handle of the answer. Batches are checked like any
  publish. But the offset in BatchStored only counts the records that the attempt has staged for that partition, and
  `expect` is refused. Staged events are durable only once SealStaged was answered. Events that are not sealed are never
  published; they are dropped when the broker stops.
- In a cluster one broker coordinates a job, by its name; others answer NOT_COORDINATOR, which names it. When it dies,
  another one goes on with all that is sealed, and with a commit that was begun; events that are not sealed are dropped
  then. StagedJobs lists those of the broker that is asked.
- CommitStaged names one token for each task and topic. When it answers `done`, everything is in the logs, durably, each
  batch once. Each partition's events come in a transaction, so readers see all of them at once; the transaction delays
  other events only while it is published. A broker that is killed meanwhile goes on when it is started again.
- The first commit decides. A committed job is never published again: CommitStaged then answers what was published,
  whatever tokens it names; Stage and AbortStaged are refused with STAGING_COMMITTED. So it does no harm to run a job
  again when nobody knows how it ended.
- The broker remembers a committed job for a week (`staging_outcome_ms`); a broker that is alone remembers the last
  million jobs at most. After that a job of this name is new, and is published again. The same holds when all topics
  that it was published to are deleted: a new topic of the same name has nothing of the job. If only some are deleted,
  Stage for one of these is refused with UNKNOWN_TOPIC; once one of these is created again, Stage for any of the job's
  topics is refused so.
- AbortStaged drops what a job has staged. Later requests of the job are refused with STAGING_FENCED. It may come before
  any other request of the job.
- A job that sends no request for its `ttl_ms` (the longest that its attempts gave) is dropped with its tokens:
  STAGING_EXPIRED. It may begin again. When the broker starts, this time starts anew.

All of these requests may be repeated after a lost connection. If a job can't be published as a whole, because a staged
file is damaged or a topic takes smaller batches now, it is aborted, and the error says why. A topic that is deleted
while the job is published is left out.

Do not abort a job that may run again under its name, as a stream does with a batch after a failure. The next run
stages its events and commits its own tokens; that commit, or the end of the ttl, drops what the earlier run has staged.
"""

from __future__ import annotations

from typing import Any

from krappy.wire.schema import U32, Answer, Millis, Offset, Positive, Request


class Stage(Request, kind=50):
    """Begins an attempt; or, with `stage`, continues one over a new connection. The producer id and epoch are for the
    batches, as in ProducerRegistered: a batch that is sent again is staged once. A topic that does not exist is
    created, as by ProducerRegistration. May be refused with STAGING_FENCED, STAGING_COMMITTED, UNKNOWN_STAGING.
    """

    topic: str
    job: str  # the name of the job, 1 to 1,000 characters
    task: str  # the name of the task, 1,000 characters at most
    attempt: str  # a name of the attempt, for people
    ttl_ms: Positive = 3_600_000  # after this time without a request the job is dropped; at most 30 days
    stage: str | None = None  # continues this attempt


class Staged(Answer, kind=50):
    handle: U32  # for Batch, until the connection ends
    stage: str  # the attempt's id, chosen by the broker
    partitions: U32  # how many the topic has
    producer_id: int  # for record batches
    producer_epoch: int  # for record batches
    max_message_bytes: int  # bytes of the largest record batch


class SealStaged(Request, kind=51):
    """Makes an attempt durable, once all its batches were answered. It is refused with INVALID_REQUEST if the broker
    has another number of records than `records`: then a batch was refused.
    """

    job: str
    stage: str  # the attempt, as Staged names it
    records: Offset  # how many records were sent


class StagedSealed(Answer, kind=51):
    token: str  # for CommitStaged


class CommitStaged(Request, kind=52):
    """Publishes a job. The answer comes when all is published, or after `max_wait` with `done` false: then ask again,
    with the same tokens or none. The request changes nothing if it is refused: with UNKNOWN_STAGING for a token that
    the job does not have, UNKNOWN_TOPIC when a topic was deleted, INVALID_REQUEST for two tokens of one task and topic,
    or for an attempt that is not sealed. A commit without tokens, of a job that is not committed, publishes nothing,
    and is the commit that decides.
    """

    job: str
    tokens: list[str]  # one for each task and topic; they are published in this order
    max_wait: Millis = 0  # how long the answer may take; more than 600000 counts as that


class StagedCommitted(Answer, kind=52):
    done: bool  # whether all is published
    bytes_done: int  # how many bytes are published so far
    bytes_total: int  # how many bytes there are to publish
    # [[topic, partition, first, last, records], …]: what was published, when it is done. Events of other producers
    # may be between the offsets `first` and `last`
    published: list[tuple[str, int, int, int, int]]


class AbortStaged(Request, kind=53):
    """Drops what a job has staged, and fences the job. With `stage` it only drops that attempt."""

    job: str
    stage: str | None = None  # only this attempt


class StagedAborted(Answer, kind=53):
    pass


class StagedJobs(Request, kind=54):
    """Lists the jobs that are neither committed nor aborted. Each is a map: `job`; `state` ("Open", or "Publishing" and
    "Marking" while it is published); `attempts`, how many; `sealed`, how many of them are sealed; `size` in bytes; and
    `expires_ms`, when it is dropped (milliseconds since the epoch; -1 while it is published).
    """


class StagedJobsFound(Answer, kind=54):
    jobs: list[dict[str, Any]]  # the jobs, by name
