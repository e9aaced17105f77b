"""Notices brokers that hang: they keep their connections and answer nothing, like a process that was stopped, or a
machine that was unplugged.

Such a broker is replaced after some seconds, and nobody tells the client. So where answers are waited for and nothing
comes, the broker is pinged. If it does not answer that either, other brokers are asked who leads. Once they name
others, or do not count it as one of the cluster any more, the connection to the hanging one counts as lost. Then what
waits there goes to the new leaders and coordinators, as after any loss.

It may be the connection alone that is dead, as when something between forgot it, or drops the packets of one direction.
So the client connects to the hanging broker once more. If that is answered, and the old connection still brings nothing
a second later, the old one counts as lost.

A broker that only takes long still answers pings, or shows that it lives while they have to wait. A leader that hangs,
and that nobody has replaced, keeps its connections: sending a request again would help nobody. A broker that hangs and
leads nothing, as far as is known, is left after some seconds in any case: any other will do as `home`, or tells who
coordinates a group. These seconds are more, because the leases of a member end with its connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from krappy.clients.backoff import Backoff, chance
from krappy.clients.learning import Learning
from krappy.clients.link import Link
from krappy.clients.links import Links
from krappy.errors import KrappyError

TICK = 0.5  # seconds between two looks, at least; up to twice as long, so that clients do not all ask at once
SILENCE = 1.5  # seconds without a byte, while answers are waited for, after which a broker is pinged
PATIENCE = 1.0  # seconds that it has to answer that; and that another one has to answer who leads
RARELY = 30.0  # seconds between two new connections to a broker that goes on hanging, at most
LONGEST = 3.0  # seconds that a broker without partitions has; with SILENCE, a little more than an election takes


class Watchdog:
    """The watchdog of one client. It works from the first call of `begin` on, until the client is closed."""

    def __init__(self, links: Links, learning: Learning) -> None:
        self._links = links
        self._learning = learning
        self._known = links.known
        self._runtime = links.home.runtime
        self._brokers: dict[Link, int] = {}
        self._led: dict[Link, Mapping[tuple[str, int], int]] = {}  # of links that hang: who led when that was noticed
        self._tried: set[Link] = set()  # links that hang, and whose brokers are connected to once more
        self._running = False
        self._turn = 0

    def watch(self, link: Link, broker: int) -> None:
        """From now on this link is watched, until it is closed. `broker`: the id of the one that it leads to."""
        with self._runtime.lock:
            self._brokers = {each: id for each, id in self._brokers.items() if not each.closed}
            self._brokers[link] = broker
        self.begin()

    def begin(self) -> None:
        if not self._running:
            self._runtime.spawn(self._run, "krappy watchdog")

    async def _run(self) -> None:
        with self._runtime.lock:
            if self._running:
                return
            self._running = True
        try:
            home = self._links.home
            while not await home.ends(TICK * (1 + chance.random())):
                with suppress(KrappyError):
                    if self._links.home_broker is None and not home.broken:  # once it hangs, it can't be asked
                        await self._learning.refresh((), self._runtime.now() + PATIENCE)
                with suppress(KrappyError):
                    await self._look()
        finally:
            self._running = False

    async def _look(self) -> None:
        with self._runtime.lock:
            watched: dict[Link, int | None] = {each: id for each, id in self._brokers.items() if not each.closed}
        watched[self._links.home] = self._links.home_broker
        for link in watched:
            link.probe(SILENCE)
        hanging = {each: id for each, id in watched.items() if each.silent(PATIENCE)}
        for link, broker in watched.items():
            if broker is not None and broker in hanging.values():
                link.probe(None)  # nobody may wait there yet, and whoever came would wait in vain
        for link in hanging:
            self._try(link)
        self._led = {each: self._led.get(each) or self._leaders() for each in hanging}
        if hanging and (await self._learn(hanging) or not self._known.brokers):
            for link, broker in hanging.items():
                if self._is_of_no_use(link, broker):
                    link.drop(f"{link.address} does not answer")

    def _try(self, link: Link) -> None:
        with self._runtime.lock:
            if link in self._tried:
                return
            self._tried.add(link)
        self._runtime.spawn(partial(self._connect_anew, link, link.generation), "krappy new connection")

    async def _connect_anew(self, link: Link, generation: int) -> None:
        """Until the link works, or is lost: connects to its broker anew. Ends the link if that works."""
        home, backoff = self._links.home, Backoff(first=PATIENCE, longest=RARELY)
        try:
            while link.lives(generation) and link.silent(PATIENCE):
                other = self._links.open_link(link.address)
                try:
                    with suppress(KrappyError):
                        await other.open(LONGEST)
                        await home.ends(PATIENCE)  # a broker that hung, and goes on, may answer here a little earlier
                        if link.lives(generation) and link.silent(2 * PATIENCE):
                            link.drop(f"{link.address} answers on a new connection, and not on the old one")
                finally:
                    other.close()
                if await home.ends(backoff.pause()):
                    return
        finally:
            with self._runtime.lock:
                self._tried.discard(link)

    def _leaders(self) -> dict[tuple[str, int], int]:
        """By topic and partition, the broker that leads it, as far as is known."""
        with self._runtime.lock:
            topics = list(self._known.topics.items())
        return {(name, index): each.leader for name, found in topics for index, each in enumerate(found.partitions)}

    async def _learn(self, hanging: Mapping[Link, int | None]) -> bool:
        """Asks a broker that does not hang who leads, each time another one. Returns whether it has answered."""
        others = self._links.connected(hanging)
        if not others:
            return False
        self._turn += 1
        asked = others[self._turn % len(others)]
        learned = await self._learning.learn_from(asked, PATIENCE)
        if not learned:
            asked.probe(None)  # it may hang, too, and nobody waits for it else
        return learned

    def _is_of_no_use(self, link: Link, broker: int | None) -> bool:
        """Whether to leave a broker that hangs. `broker` None: it is not known which one that is."""
        now = self._leaders()
        moved = any(leader == broker and now.get(at, broker) != broker for at, leader in self._led[link].items())
        if moved or (broker is not None and broker not in self._known.brokers):
            return link.silent(PATIENCE)  # it may have answered meanwhile
        return broker not in now.values() and link.silent(LONGEST)
