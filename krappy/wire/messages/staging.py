"""Staged writes: a job's tasks publish unseen, and all of it appears at once."""

from __future__ import annotations

from typing import Any

from krappy.wire.schema import U32, Answer, Millis, Offset, Positive, Request


class Stage(Request, kind=50):
    """An attempt of a job's task begins to stage for a topic: Batch then names its handle."""

    topic: str
    job: str
    task: str
    attempt: str
    ttl_ms: Positive = 3_600_000  # the job's: so long may nothing come from it
    stage: str | None = None  # goes on with this attempt, over another connection


class Staged(Answer, kind=50):
    handle: U32
    stage: str
    partitions: U32
    producer_id: int
    producer_epoch: int
    max_message_bytes: int  # of one record batch


class SealStaged(Request, kind=51):
    job: str
    stage: str
    records: Offset  # how many the sender counts


class StagedSealed(Answer, kind=51):
    token: str


class CommitStaged(Request, kind=52):
    job: str
    tokens: list[str]
    max_wait: Millis = 0  # how long to wait for the end of the publication


class StagedCommitted(Answer, kind=52):
    """`done` false: it goes on; ask again. `published`: (topic, partition, first offset, last offset, records)."""

    done: bool
    bytes_done: int
    bytes_total: int
    published: list[tuple[str, int, int, int, int]]


class AbortStaged(Request, kind=53):
    job: str
    stage: str | None = None  # drops this attempt alone, and fences nothing


class StagedAborted(Answer, kind=53):
    pass


class StagedJobs(Request, kind=54):
    pass


class StagedJobsFound(Answer, kind=54):
    """Each: job, state, attempts, sealed, size (bytes), expires_ms (-1: it is being published)."""

    jobs: list[dict[str, Any]]
