"""The ways of a producer's batches: for each partition, the registration at its leader.

A partition gets another route only while none of its batches is in flight: so its batches stay in their order, and a
lost connection concerns the batches of just those partitions whose route it was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from krappy.clients.link import Link
from krappy.clients.router import Router
from krappy.errors import ConnectionLost, KrappyError, NotLeader


class Route:
    """A registration of a producer. `handle`: None once it has ended; `generation`: of the link's connection."""

    __slots__ = ("generation", "handle", "link")

    def __init__(self, link: Link, generation: int = 0, handle: int | None = None) -> None:
        self.link = link
        self.generation = generation
        self.handle = handle

    @property
    def lives(self) -> bool:
        return self.handle is not None and self.link.lives(self.generation)


class LeaderRoutes:
    """`routes`: those that there are at the beginning. To be used under the client's lock, but for `find`."""

    def __init__(self, router: Router, topic: str, routes: dict[int, Route]) -> None:
        self._router = router
        self._topic = topic
        self._routes = routes
        self._left: dict[int, Link | None] = {}  # partitions whose leader is another one now, and who said so

    def of(self, partition: int) -> Route:
        return self._routes[partition]

    def ready(self, partition: int) -> bool:
        """Whether batches of the partition may be sent."""
        route = self._routes.get(partition)
        return route is not None and route.lives and partition not in self._left

    def refused(self, partition: int, error: KrappyError) -> None:
        """The leader has refused a batch because it does not lead the partition any more."""
        self._router.note(error)
        self._left[partition] = self._routes[partition].link

    def by(self, route: Route) -> list[int]:
        """The partitions whose batches in flight have gone this way."""
        return [partition for partition, each in self._routes.items() if each is route]

    def all(self) -> set[Route]:
        return set(self._routes.values())

    def end(self) -> None:
        """The topic of all routes was deleted."""
        for each in self.all():
            each.handle = None

    async def find(
        self, partitions: Iterable[int], register: Callable[[Link], Awaitable[Route | None]]
    ) -> KrappyError | None:
        """Finds a route for each partition whose leader is known and connected, and waits for no other. Returns why
        one could not be found. None of their batches may be in flight, or be sent meanwhile."""
        missing: KrappyError | None = None
        for partition in partitions:
            link = self._router.leader_now(self._topic, partition)
            if link is None:
                missing = NotLeader(f"{self._topic}-{partition}: its leader is not known, or can't be reached")
                continue
            # What is known is of a topic that was made anew, or is newer than what this broker knows.
            if self._left.get(partition) is link:
                self._left[partition] = None
                missing = NotLeader(f"{self._topic}-{partition}: the broker at {link.address} does not lead it")
                continue
            with self._router.runtime.lock:
                route = next((each for each in self.all() if each.link is link and each.lives), None)
            if route is None:
                route = await register(link)
            if route is None:
                missing = ConnectionLost(link.trouble, address=str(link.address))
                continue
            with self._router.runtime.lock:
                self._routes[partition] = route
                self._left.pop(partition, None)
        return missing
