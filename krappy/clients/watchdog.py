"""Notices brokers that hang: they keep their connections and answer nothing, like a process that was stopped, or a
machine that was unplugged.

Such a broker is replaced after some seconds, and nobody tells the client. So where answers are waited for and nothing
comes, the broker is pinged. If it does not answer that either, other brokers are asked who leads. Once they name
others, the connection to the hanging one counts as lost. Then what waits there goes to the new leaders, as after any
loss.

A broker that only takes long answers pings meanwhile, and one that nobody has replaced keeps its connections: to send a
request again would help nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from krappy.clients.link import Link
from krappy.errors import KrappyError

if TYPE_CHECKING:
    from krappy.clients.router import Router

TICK = 0.5  # seconds between two looks
SILENCE = 1.5  # seconds without a byte, while answers are waited for, after which a broker is pinged
PATIENCE = 1.0  # seconds that it has to answer that; and that another one has to answer who leads


class Watchdog:
    """Of one client. It works from the first call of `watch` on, until the client is closed."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._runtime = router.runtime
        self._brokers: dict[Link, int] = {}
        self._running = False
        self._turn = 0

    def watch(self, link: Link, broker: int) -> None:
        """From now on this link is watched, until it is closed. `broker`: the id of the one that it leads to."""
        with self._runtime.lock:
            self._brokers = {each: id for each, id in self._brokers.items() if not each.closed}
            self._brokers[link] = broker
        if not self._running:
            self._runtime.spawn(self._run, "krappy watchdog")

    async def _run(self) -> None:
        with self._runtime.lock:
            if self._running:
                return
            self._running = True
        try:
            while not await self._router.home.ends(TICK):
                with suppress(KrappyError):
                    await self._look()
        finally:
            self._running = False

    async def _look(self) -> None:
        home = self._router.home
        with self._runtime.lock:
            watched = {each: id for each, id in self._brokers.items() if not each.closed}
        hanging = [each for each in (home, *watched) if each.hangs(SILENCE, PATIENCE)]
        if not hanging:
            return
        led = self._leaders()
        if not await self._learn(hanging, watched):
            return
        for link in hanging:
            replaced = link is home or self._is_replaced(watched[link], led)
            if replaced and link.hangs(SILENCE, PATIENCE):  # it may have answered meanwhile
                link.drop(f"{link.address} does not answer")

    def _leaders(self) -> dict[tuple[str, int], int]:
        """By topic and partition, the broker that leads it, as far as is known."""
        with self._runtime.lock:
            topics = list(self._router.known.topics.items())
        return {(name, index): each.leader for name, found in topics for index, each in enumerate(found.partitions)}

    async def _learn(self, hanging: Sequence[Link], watched: Mapping[Link, int]) -> bool:
        """Asks a broker that does not hang who leads, each time another one. Whether it has answered."""
        others = self._router.connected(hanging, {watched[each] for each in hanging if each in watched})
        if not others:
            return False
        self._turn += 1
        return await self._router.learn_from(others[self._turn % len(others)], PATIENCE)

    def _is_replaced(self, broker: int, led: Mapping[tuple[str, int], int]) -> bool:
        """Whether others lead now what this broker led, or it is not in the cluster any more. `led`: as was known
        before."""
        now = self._leaders()
        moved = any(leader == broker and now.get(at, broker) != broker for at, leader in led.items())
        return moved or broker not in now.values() or broker not in self._router.known.brokers
