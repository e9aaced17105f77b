"""Staged writes: the broker keeps what tasks send (`attempt.py`) until their job is committed, then publishes it as a
whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from krappy.clients.coordinator_way import CoordinatorWay
from krappy.clients.router import Router
from krappy.wire import messages

WAIT = 10.0  # seconds that one request waits at most for a publication to end


class StagedPartition(NamedTuple):
    """What a job has published to one partition. Events of others may stand between its first and its last."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int


class StagedCommit(NamedTuple):
    """What a job has published. It stays the same however often it is asked for."""

    job: str
    partitions: list[StagedPartition]

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)


class StagedJob(NamedTuple):
    """A job that is neither committed nor aborted. `size` in bytes. `expires_ms`: ms since the epoch, when it will be
    dropped if nothing more comes; -1: it is being published."""

    job: str
    state: str = ""
    attempts: int = 0
    sealed: int = 0
    size: int = 0
    expires_ms: int = -1


Progress = Callable[[int, int], None]  # bytes published so far, and bytes to publish in all


async def commit(
    router: Router, job: str, tokens: Sequence[str], timeout: float | None, progress: Progress | None
) -> StagedCommit:
    """Commits, and asks again until all is published. Each request takes at most the client's own timeout, all together
    take at most `timeout` seconds (None: no limit). Raises RequestTimeout."""
    end = None if timeout is None else router.runtime.now() + timeout
    way = CoordinatorWay(router)
    while True:
        left = router.timeout if end is None else max(0.0, min(router.timeout, end - router.runtime.now()))
        wait = min(WAIT, left / 3)
        request = messages.CommitStaged(job, list(tokens), round(wait * 1000))
        answer = await way.ask(request, messages.StagedCommitted, left)
        if progress is not None:
            progress(answer.bytes_done, answer.bytes_total)
        if answer.done:
            published = [StagedPartition(*each) for each in answer.published]
            for each in published:
                router.session.saw(each.topic, [(each.partition, each.last_offset)])
            return StagedCommit(job, published)


async def abort(router: Router, job: str) -> None:
    """Drops a job, and makes the broker refuse what its tasks still send."""
    await CoordinatorWay(router).ask(messages.AbortStaged(job), messages.StagedAborted, router.timeout)


async def jobs(router: Router) -> list[StagedJob]:
    """The jobs that are neither committed nor aborted, of all brokers that can be reached."""
    if not router.known.several:
        found = await router.home.ask(messages.StagedJobs(), messages.StagedJobsFound)
        return [_job(each) for each in found.jobs]
    deadline = router.runtime.now() + router.timeout
    asked = [(link, messages.StagedJobs()) for link in await router.each(deadline)]
    answers = await router.ask_each(asked, messages.StagedJobsFound, deadline)
    told = [each for each in answers if isinstance(each, messages.StagedJobsFound)]
    return sorted(_job(each) for answer in told for each in answer.jobs)


def _job(values: dict[str, Any]) -> StagedJob:
    known = {"job": "", **{name: values[name] for name in StagedJob._fields if name in values}}
    return StagedJob(**known)
