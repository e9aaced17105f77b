"""Staged writes: what tasks send (`attempt.py`) waits at the broker until their job is committed, and is published then
as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from krappy.clients.link import Link
from krappy.wire import messages

WAIT = 10.0  # seconds that one request waits for the end of a publication


class StagedPartition(NamedTuple):
    """What a job has published to one partition: events of others may stand between the first and the last."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int


class StagedCommit(NamedTuple):
    """What a job has published, the same however often it is asked."""

    job: str
    partitions: list[StagedPartition]

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)


class StagedJob(NamedTuple):
    """A job that is neither committed nor aborted. `size` in bytes; `expires_ms` -1: it is being published."""

    job: str
    state: str = ""
    attempts: int = 0
    sealed: int = 0
    size: int = 0
    expires_ms: int = -1


Progress = Callable[[int, int], None]  # bytes published so far, of how many


async def commit(
    link: Link, job: str, tokens: Sequence[str], timeout: float | None, progress: Progress | None
) -> StagedCommit:
    """Asks until it is done. Each request is bounded by the link's own timeout, all of them by `timeout` seconds."""
    end = None if timeout is None else link.runtime.now() + timeout
    while True:
        left = link.timeout if end is None else max(0.0, min(link.timeout, end - link.runtime.now()))
        wait = min(WAIT, left / 3)
        request = messages.CommitStaged(job, list(tokens), round(wait * 1000))
        answer = await link.ask(request, messages.StagedCommitted, timeout=left)
        if progress is not None:
            progress(answer.bytes_done, answer.bytes_total)
        if answer.done:
            return StagedCommit(job, [StagedPartition(*each) for each in answer.published])


async def abort(link: Link, job: str) -> None:
    await link.ask(messages.AbortStaged(job), messages.StagedAborted)


async def jobs(link: Link) -> list[StagedJob]:
    found = await link.ask(messages.StagedJobs(), messages.StagedJobsFound)
    return [_job(each) for each in found.jobs]


def _job(values: dict[str, Any]) -> StagedJob:
    known = {"job": "", **{name: values[name] for name in StagedJob._fields if name in values}}
    return StagedJob(**known)
