"""How a client learns which brokers there are, and who leads what: some broker tells it (Metadata).

It is `home`, as long as that answers. But a broker that is cut off from its cluster goes on answering, with what it
knew before. So after an error whose reason may be another leader, `home` and the other brokers are asked in turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from krappy.clients.cluster import KnownCluster, KnownPlaces
from krappy.clients.link import Link
from krappy.clients.links import Links
from krappy.clients.runtime import ClientSignal
from krappy.errors import (
    ConnectionLost,
    InvalidRequest,
    KrappyError,
    RequestTimeout,
    TopicAuthorizationFailed,
    UnknownTopic,
)
from krappy.wire import messages

ASKING = 3.0  # seconds that one broker has to answer Metadata before another one is asked


class Learning:
    """What one client learns. It goes to `known`, and the brokers' addresses to `home`, which may need another one."""

    def __init__(self, links: Links) -> None:
        self.known: KnownCluster = links.known
        self._links = links
        self._runtime = links.home.runtime
        self._bootstrap = links.home.addresses
        self._doubts = 0
        self._asking: ClientSignal | None = None  # set once Metadata, which some caller asks for, is answered

    async def topic(self, name: str, deadline: float) -> KnownPlaces:
        """What is known of a topic; a broker is asked if that is nothing. Raises UnknownTopic, ConnectionLost;
        TopicAuthorizationFailed if the topic may not be described."""
        found = self.known.topics.get(name)
        while found is None:
            others = self._asking
            await self.refresh([name], deadline)
            found = self.known.topics.get(name)
            if found is None and others is None:
                if name in self.known.denied:
                    raise TopicAuthorizationFailed(f"describing the topic '{name}' is not allowed")
                raise UnknownTopic(f"there is no topic '{name}'", topic=name)
        return found

    async def refresh(self, topics: Iterable[str], deadline: float, *, doubt: bool = False) -> None:
        """Asks for Metadata: of these topics, and of those that are known. Returns when some caller's question is
        answered. `doubt`: what the broker that was asked last has told may be out of date, so it is another one's turn.
        Raises ConnectionLost, RequestTimeout."""
        with self._runtime.lock:
            self._doubts += doubt
            others = self._asking
            if others is None:
                mine = self._asking = self._runtime.signal()
        if others is not None:
            await others.wait(max(0.0, deadline - self._runtime.now()))
            return
        try:
            self.take(await self._ask(sorted({*self.known.topics, *topics}), deadline, doubt and self._doubts % 2 == 0))
        except InvalidRequest:  # an older broker: it does not know the question, and is alone
            self.known.several = False
        finally:
            self._asking = None
            mine.set()

    async def _ask(self, topics: Sequence[str], deadline: float, others: bool) -> messages.MetadataFound:
        """The answer of the first broker that answers in time. `others`: it is not the turn of `home`, which is asked
        last."""
        home = self._links.home
        asked = self._links.working()
        if others:
            asked = [link for link in asked if link is not home]
            following = self._next_other()
            asked.sort(key=lambda link: link is not following)
        if home not in asked:
            asked.append(home)
        for link in asked:
            seconds = min(ASKING, max(0.0, deadline - self._runtime.now()))
            try:
                found = await link.ask(messages.Metadata(list(topics)), messages.MetadataFound, timeout=seconds)
            except (ConnectionLost, RequestTimeout):
                if home.closed or link is asked[-1]:
                    raise
                continue
            if link is home:
                self._links.note_home(link.generation, found.broker)
            elif others:  # it may not have heard of a topic yet
                found.topics = [each for each in found.topics if each["id"] is not None]
            break
        return found

    def _next_other(self) -> Link | None:
        """The link to the broker whose turn it is, of those that `home` does not lead to; it begins to connect."""
        others = sorted(self.known.brokers.keys() - {self._links.home_broker})
        return self._links.find(others[self._doubts // 2 % len(others)]) if others else None

    async def learn_from(self, link: Link, seconds: float) -> bool:
        """Asks this broker who leads the topics that are known. Returns whether it has answered."""
        request = messages.Metadata(sorted(self.known.topics))
        try:
            found = await link.ask(request, messages.MetadataFound, generation=link.generation, timeout=seconds)
        except KrappyError:
            return False
        self.take(found)
        return True

    def take(self, found: messages.MetadataFound) -> None:
        """Takes over a broker's answer."""
        with self._runtime.lock:
            self.known.take(found)
            further = [each.address for each in self.known.brokers.values() if each.address is not None]
            self._links.home.addresses = list(dict.fromkeys([*self._bootstrap, *further]))
