"""What one attempt of a task stages for one topic: a producer whose batches wait at the broker for a commit."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from krappy.clients.accumulator import Limits
from krappy.clients.link import Link
from krappy.clients.producing import Producing, Registered
from krappy.errors import ConfigError, InvalidRequest, KrappyError, UnknownStaging
from krappy.wire import messages


class Attempt(NamedTuple):
    """Who stages: a task's attempt, of a job. `ttl` in seconds."""

    job: str
    task: str
    attempt: str
    ttl: float


class StagingProducing(Producing):
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
        new = self._id is None

        def abandoned(answer: messages.Staged) -> None:
            self._unregister(answer.handle, generation)
            if new:
                self._forget(answer.stage, generation)

        answer = await self._link.ask(
            request, messages.Staged, generation=generation, timeout=seconds, abandoned=abandoned
        )
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
            self._forget(self._id, self._generation)

    def _forget(self, stage: str, generation: int) -> None:
        with suppress(KrappyError):
            request = messages.AbortStaged(self._attempt.job, stage)
            self._link.post(request, messages.StagedAborted, lambda _: None, generation)
