"""The way to the broker that coordinates a staged job: any broker tells which one that is."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from krappy.clients.backoff import Backoff
from krappy.clients.link import Link
from krappy.clients.router import PATIENCE, Router
from krappy.errors import ConnectionLost, KrappyError, NotCoordinator
from krappy.wire.messages import Answer, Request

A = TypeVar("A", bound=Answer)
HOPS = 2  # so many brokers may name each other without a pause


class JobWay:
    """`link`: to the broker that coordinates it, as far as is known."""

    def __init__(self, router: Router) -> None:
        self.link: Link = router.home
        self._router = router
        self._hops = 0
        self._backoff: Backoff = router.backoff()

    async def ask(self, request: Request, answer: type[A], timeout: float) -> A:
        """The answer of the broker that coordinates the job which the request names. The request may be sent twice.
        Raises as `Link.ask`."""
        deadline = self._router.runtime.now() + timeout
        while True:
            try:
                return await self._ask(request, answer, deadline)
            except (NotCoordinator, ConnectionLost) as error:
                await self.look(error, deadline)

    async def _ask(self, request: Request, answer: type[A], deadline: float) -> A:
        now, link = self._router.runtime.now(), self.link
        generation = None
        if self._router.several:  # another broker may coordinate it once this connection is lost
            generation = await link.ready(min(deadline, now + PATIENCE))
        left = max(0.0, deadline - self._router.runtime.now())
        found = await link.ask(request, answer, generation=generation, timeout=left)
        self.found()
        return found

    def found(self) -> None:
        """The broker at `link` coordinates the job."""
        self._hops = 0
        self._backoff.reset()

    async def look(self, error: KrappyError, deadline: float) -> None:
        """After a refusal, or a lost connection: looks for another broker. Raises the error when the time is over, or
        the client is closed."""
        router, runtime = self._router, self._router.runtime
        self._hops += 1
        if isinstance(error, NotCoordinator) and error.details.get("coordinator", -1) >= 0 and self._hops <= HOPS:
            with suppress(NotCoordinator, ConnectionLost):
                self.link = await router.coordinator(error, min(deadline, runtime.now() + PATIENCE))
                return
        pause = self._backoff.pause()  # it is away, or brokers do not agree yet
        if router.closed or runtime.now() + pause >= deadline:
            raise error
        await runtime.sleep(pause)
        self._hops = 0
        self.link = router.any_now()
