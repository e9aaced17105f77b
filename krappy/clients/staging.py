"""Staged writes: what tasks send waits at the broker until their job is committed, and is published then as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from krappy.clients.accumulator import Limits
from krappy.clients.link import Link
from krappy.clients.producing import Producing, Registered
from krappy.errors import ConfigError, InvalidRequest, KrappyError, UnknownStaging
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


class Attempt(NamedTuple):
    """Who stages: a task's attempt, of a job. `ttl` in seconds."""

    job: str
    task: str
    attempt: str
    ttl: float


class Staging(Producing):
    """Sends to one topic's staging; otherwise as a producer."""

    def __init__(self, link: Link, topic: str, attempt: Attempt, limits: Limits) -> None:
        super().__init__(link, topic, limits)
        self._attempt = attempt
        self._id: str | None = None
        self._rows = 0
        self.token: str | None = None
        if attempt.ttl <= 0:
            raise ConfigError(f"ttl={attempt.ttl!r}: seconds, more than 0")

    async def _ask(self, id: int, epoch: int, generation: int, seconds: float) -> Registered:
        if self._id is not None and id < 0:
            raise UnknownStaging("something of this attempt was refused, so it can't be whole: stage it again")
        job, task, attempt, ttl = self._attempt
        request = messages.Stage(self.topic, job, task, attempt, max(1, round(ttl * 1000)), self._id)
        answer = await self._link.ask(request, messages.Staged, generation=generation, timeout=seconds)
        self._id = answer.stage
        return answer

    def check(self) -> None:
        """Raises InvalidRequest when it is sealed."""
        if self.token is not None:
            raise InvalidRequest("this attempt is sealed: nothing more is staged in it")

    def count(self, rows: int) -> None:
        """So many more were given to it."""
        with self._lock:
            self._rows += rows

    async def seal(self) -> str:
        """The token. Everything must have been flushed."""
        if self.token is None:
            assert self._id is not None
            request = messages.SealStaged(self._attempt.job, self._id, self._rows)
            self.token = (await self._link.ask(request, messages.StagedSealed)).token
        return self.token

    def give_up(self) -> None:
        """Lets the broker forget an attempt that was not sealed, if it can be told; else it ends with its job."""
        if self.token is None and self._id is not None:
            try:
                request = messages.AbortStaged(self._attempt.job, self._id)
                self._link.post(request, messages.StagedAborted, lambda _: None, self._generation)
            except KrappyError:
                pass


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
