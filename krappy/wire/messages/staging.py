"""Staged writes: a job's tasks publish unseen, and all of it appears at once.

For writers whose work is done in parts, by tasks that are retried, run twice at a time, or killed (Spark is one): what
a task sends is **staged** beside the log, and one commit publishes the work of all tasks, to any number of topics and
partitions, as a whole and once.

- A **job** is one such whole. Its name is the client's choice; no other job may ever have had it. An **attempt** is
  one try of one of its tasks at one topic.
- An attempt registers with Stage and sends by Batch (5), under the handle that it was given. What is sent is checked
  as every publish is, except that the records' offsets in BatchStored only count what the attempt has staged for that
  partition, and that `expect` is refused. It is not durable before SealStaged has been answered; what is not sealed is
  never published, and ends with the broker.
- CommitStaged names one token for each task and topic. When it answers `done`, everything is in the logs, durably,
  each batch once, and readers see all of a partition's part at once: it goes there in a transaction, which holds up
  the readers of committed events only while it is published. A broker that is killed in the middle goes on when it is
  started again.
- The first commit decides. A job that is committed is never published again: CommitStaged then answers what has been
  published before, whatever tokens it names, Stage and AbortStaged are refused with STAGING_COMMITTED. So a job that
  is run again, because nobody knows how it ended, does no harm. The broker remembers this for a week
  (`staging_outcome_ms`), and at most for the last million jobs; after that the job's name is as good as new, and would
  be published again. So it is once all topics that it was published to are deleted: one that is made anew has nothing
  of it. While some of them are there, Stage for one that was deleted is refused with UNKNOWN_TOPIC, and once that is
  made anew Stage for any of them.
- AbortStaged drops what a job has staged, and whatever still comes of it is refused with STAGING_FENCED; also when it
  comes before anything else of the job does.
- A job of which nothing comes for as long as its `ttl_ms` (the longest that its attempts gave) is dropped, and its
  tokens with it: STAGING_EXPIRED. It may begin again. A start of the broker begins that time anew.

All of it may be asked again after a lost connection. What can't be published as a whole, because a staged file was
damaged or the topic takes smaller batches now, is not published: the job is aborted, and the error says why. A topic
that is deleted while the job is published is left out.

A job that may be run again under its name, as a stream does with a batch after a failure, is better not aborted:
another run stages anew, commits its own tokens, and whatever was left is dropped by that commit, or when the ttl is
over.
"""

from __future__ import annotations

from typing import Any

from krappy.wire.schema import U32, Answer, Millis, Offset, Positive, Request


class Stage(Request, kind=50):
    """Begins an attempt, or with `stage` goes on with it over a new connection. The producer id and epoch are for the
    batches, as with ProducerRegistration: a batch that is sent again is staged once. A topic that does not exist is
    made, as with ProducerRegistration. May be refused by STAGING_FENCED, STAGING_COMMITTED, UNKNOWN_STAGING.
    """

    topic: str
    job: str  # the job, 1 to 1,000 characters
    task: str  # the task, as long at most
    attempt: str  # for people: which of its tries this is
    ttl_ms: Positive = 3_600_000  # the job is dropped when nothing comes of it for so long; at most 30 days
    stage: str | None = None  # goes on with this attempt


class Staged(Answer, kind=50):
    handle: U32  # for Batch, until the connection ends
    stage: str  # the attempt's own name, chosen by the broker
    partitions: U32  # how many the topic has
    producer_id: int  # for record batches
    producer_epoch: int  # for record batches
    max_message_bytes: int  # bytes of the largest record batch


class SealStaged(Request, kind=51):
    """Makes an attempt durable, once every one of its batches was answered. It is refused with INVALID_REQUEST when the
    broker has another number of records than the sender: then something of it was refused.
    """

    job: str
    stage: str  # the attempt, as Staged names it
    records: Offset  # how many records were sent


class StagedSealed(Answer, kind=51):
    token: str  # for CommitStaged


class CommitStaged(Request, kind=52):
    """Publishes. The answer comes when all is published, or after `max_wait` with `done` false: then ask again, with
    the same tokens or with none. UNKNOWN_STAGING for a token that this job does not have, UNKNOWN_TOPIC when a topic
    was deleted, INVALID_REQUEST for two tokens of one task and topic, or for what is not sealed: nothing is decided
    by these. Tokens of no attempt at all are a commit as well, of nothing.
    """

    job: str
    tokens: list[str]  # one of each task and topic; it is published in this order
    max_wait: Millis = 0  # how long the answer may take; more than 600000 counts as that


class StagedCommitted(Answer, kind=52):
    done: bool  # whether all is published
    bytes_done: int  # bytes that are published, while it is not done
    bytes_total: int  # of so many
    # [[topic, partition, first, last, records], …]: when it is done; events of others may
    # stand between the first and the last
    published: list[tuple[str, int, int, int, int]]


class AbortStaged(Request, kind=53):
    """Drops what a job has staged and fences it. With `stage` it drops that attempt alone."""

    job: str
    stage: str | None = None  # only this attempt


class StagedAborted(Answer, kind=53):
    pass


class StagedJobs(Request, kind=54):
    """The jobs that are neither committed nor aborted. Each is a map: `job`, `state` ("Open", or "Publishing" and
    "Marking" while it is published), `attempts`, `sealed` (how many of them are), `size` in bytes, and `expires_ms`,
    when it is dropped (milliseconds since the epoch; -1 while it is published).
    """


class StagedJobsFound(Answer, kind=54):
    jobs: list[dict[str, Any]]  # the jobs, by name
