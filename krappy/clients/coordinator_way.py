"""The way to the broker that coordinates a group or a staged job: any broker tells which one that is."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from krappy.clients.backoff import Backoff
from krappy.clients.link import Link
from krappy.clients.router import PATIENCE, SURPRISES, Router
from krappy.errors import ConnectionLost, KrappyError, NotCoordinator, UnknownGroup
from krappy.wire.messages import Answer, Request

A = TypeVar("A", bound=Answer)
HOPS = 2  # so many brokers may name each other without a pause


class CoordinatorWay:
    """`link`: to the broker that coordinates it, as far as is known."""

    def __init__(self, router: Router) -> None:
        self.link: Link = router.home
        self._router = router
        self._hops = 0
        self._backoff = Backoff()

    async def ask(self, request: Request, answer: type[A], timeout: float, *, again: bool = True) -> A:
        """The answer of the broker that coordinates what the request names. `again` and what it raises: as for
        `Link.ask`."""
        deadline = self._router.runtime.now() + timeout
        while True:
            generation: int | None = None
            try:
                if self._router.known.several:  # another broker may coordinate it once this connection is lost
                    generation = await self.link.ready(min(deadline, self._router.runtime.now() + PATIENCE))
            except ConnectionLost as error:
                await self.look(error, deadline)
                continue
            try:
                left = max(0.0, deadline - self._router.runtime.now())
                found = await self.link.ask(request, answer, again=again, generation=generation, timeout=left)
            except (NotCoordinator, ConnectionLost) as error:
                if isinstance(error, ConnectionLost) and not again:
                    raise
                await self.look(error, deadline)
                continue
            self.found()
            return found

    def found(self) -> None:
        """The broker at `link` coordinates it."""
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


async def ask_coordinator(router: Router, request: Request, answer: type[A], *, again: bool = True) -> A:
    """The answer of the broker that coordinates the group which the request names. A group that the coordinator of
    native groups does not know may be one of Kafka's, which another broker has. `again` and what it raises: as for
    `Link.ask`."""
    deadline = router.runtime.now() + router.timeout
    way, refused = CoordinatorWay(router), 0
    while True:
        try:
            return await way.ask(request, answer, max(0.0, deadline - router.runtime.now()), again=again)
        except UnknownGroup:
            name = getattr(request, "group", None)
            listed = await router.groups(deadline, name) if router.known.several and name is not None else []
            holder = next((each for each, found in listed if found), None)
            refused += 1
            if refused > SURPRISES or holder is None:
                raise
            way.link = holder
