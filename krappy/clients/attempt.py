"""The producer of one attempt of a task: the broker stages its batches until the job is committed."""

from __future__ import annotations

from typing import NamedTuple

from krappy.clients.accumulator import Limits
from krappy.clients.coordinator_way import CoordinatorWay
from krappy.clients.link import Link
from krappy.clients.producing import Producing
from krappy.clients.router import PATIENCE, Router
from krappy.clients.routes import Route
from krappy.clients.sending import Registered
from krappy.clients.values import seconds
from krappy.errors import ConnectionLost, InvalidRequest, KrappyError, NotCoordinator, UnknownStaging
from krappy.wire import messages


class Attempt(NamedTuple):
    """Names the attempt of a task of a job. `ttl`: seconds after which the broker drops a job that it hears nothing
    of."""

    job: str
    task: str
    attempt: str
    ttl: float


class StagingProducing(Producing):
    """A producer whose events are staged for one topic, at the broker that coordinates the job. Raises ConfigError
    for a wrong `attempt.ttl`."""

    _leads_anywhere = False

    def __init__(self, router: Router, topic: str, attempt: Attempt, limits: Limits) -> None:
        super().__init__(router, topic, limits)
        self._attempt = attempt
        self._way = CoordinatorWay(router)
        self._refusal: KrappyError | None = None  # of the last registration, where another broker coordinates the job
        self._id: str | None = None
        self._rows = 0
        self.token: str | None = None
        seconds(attempt.ttl, "ttl")

    async def _register(self, deadline: float) -> bool:
        if not self._router.known.several:
            return await super()._register(deadline)
        self._refusal = None
        try:
            await self._link.ready(min(deadline, self._runtime.now() + PATIENCE))
        except ConnectionLost as error:
            if self._router.closed:
                raise
            self._refusal = error
        else:
            if await super()._register(deadline):
                self._way.found()
                return True
        if self._refusal is not None:
            await self._way.look(self._refusal, deadline)
            self._move(self._way.link)
        return False

    def _move(self, link: Link) -> None:
        """From now on this broker is taken for the one that coordinates the job."""
        with self._lock:
            self._link.told_of_closing.discard(self._awake)
            self._link = link
            if not self._closing:
                link.told_of_closing.add(self._awake)

    async def _ask(self, id: int, epoch: int, link: Link, generation: int, seconds: float) -> Registered:
        if self._id is not None and id < 0:
            raise UnknownStaging("an event of this attempt was refused, so the attempt is incomplete: stage it again")
        job, task, attempt, ttl = self._attempt
        request = messages.Stage(self.topic, job, task, attempt, max(1, round(ttl * 1000)), self._id)
        new = self._id is None

        def abandoned(answer: messages.Staged) -> None:
            self._unregister(Route(link, generation, answer.handle))
            if new:
                self._forget(answer.stage, link, generation)

        try:
            answer = await link.ask(
                request, messages.Staged, generation=generation, timeout=seconds, abandoned=abandoned
            )
        except NotCoordinator as error:
            self._refusal = error
            raise
        self._id = answer.stage
        return answer

    def check(self) -> None:
        """Raises InvalidRequest when the attempt is sealed."""
        if self.token is not None:
            raise InvalidRequest("this attempt is sealed: nothing more can be staged in it")

    def count(self, rows: int) -> None:
        """Counts rows that were sent: `seal` tells the broker their number."""
        with self._lock:
            self._rows += rows

    async def seal(self) -> str:
        """Seals the attempt and returns its token for the commit. Everything must have been flushed."""
        if self.token is None:
            assert self._id is not None
            request = messages.SealStaged(self._attempt.job, self._id, self._rows)
            self._way.link = self._link
            self.token = (await self._way.ask(request, messages.StagedSealed, self._router.timeout)).token
        return self.token

    def give_up(self) -> None:
        """Tells the broker to drop an attempt that was not sealed. If that fails, the attempt ends with its job."""
        if self.token is None and self._id is not None:
            self._forget(self._id, self._main.link, self._main.generation)

    def _forget(self, stage: str, link: Link, generation: int) -> None:
        link.tell(messages.AbortStaged(self._attempt.job, stage), messages.StagedAborted, generation)
