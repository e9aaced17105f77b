"""The links of a client to the brokers of its cluster: to `home`, which is any one of them, and one to each other that
is needed.

A link that is lost is made again in the background. A broker that comes back at another address gets a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from krappy.clients.backoff import chance
from krappy.clients.cluster import KnownBroker, KnownCluster
from krappy.clients.link import Link
from krappy.clients.values import Address
from krappy.errors import ConnectionLost

HESITATES = 0.25  # seconds without an answer to a ping after which other brokers are preferred


class Links:
    """`open_link` makes a link to one broker, which ends with the client; `opened` is told of each: the link, and the
    broker's id."""

    def __init__(
        self,
        home: Link,
        known: KnownCluster,
        open_link: Callable[[Address], Link],
        opened: Callable[[Link, int], None],
    ) -> None:
        self.home = home
        self.known = known
        self.open_link = open_link
        self._opened = opened
        self._by_id: dict[int, Link] = {}
        self._home_at = -1, -1  # a generation of `home`, and the id of the broker that answered it

    @property
    def home_broker(self) -> int | None:
        """The id of the broker that `home` leads to, if that is known and it is connected."""
        generation, id = self._home_at
        return id if self.home.lives(generation) else None

    def note_home(self, generation: int, id: int) -> None:
        """A broker has told its id over this generation of `home`."""
        self._home_at = generation, id

    def find(self, id: int) -> Link | None:
        """The link to a broker, which begins to connect if it is new. None: the broker is not known, or has no listener
        for clients. Raises ConnectionLost if the client is closed."""
        broker = self.known.brokers.get(id)
        return None if broker is None else self.to(broker)

    def to(self, broker: KnownBroker) -> Link | None:
        """As `find`."""
        if broker.address is None:
            return None
        with self.home.runtime.lock:
            found = self._by_id.get(broker.id)
            if found is None or found.closed or found.address != broker.address:
                if self.home.closed:
                    raise ConnectionLost(self.home.trouble)
                if found is not None:
                    found.close()
                found = self._by_id[broker.id] = self.open_link(broker.address)
            if not found.begun:  # it is new, or whoever made it was interrupted
                self._opened(found, broker.id)
                found.begin()
            return found

    def id_of(self, link: Link) -> int:
        """The id of the broker that a link of `find` leads to; -1: it is `home`, or none of these."""
        return next((id for id, each in list(self._by_id.items()) if each is link), -1)

    @property
    def all(self) -> list[Link]:
        return [self.home, *self._by_id.values()]

    def working(self) -> list[Link]:
        """The links that are connected, and whose brokers do not hesitate to answer pings; `home` comes first if it is
        one."""
        return [link for link in self.all if works(link)]

    def connected(self, but: Mapping[Link, int | None]) -> list[Link]:
        """The links that are connected, except those in `but` and others to the same brokers. If there are none, begins
        to connect to another broker."""
        brokers = {*but.values()} - {None}
        links = [(self.home_broker, self.home), *list(self._by_id.items())]
        found = [link for id, link in links if link not in but and id not in brokers and not link.broken]
        others = [each for each in list(self.known.brokers) if each not in brokers]
        if others and not found:
            self.find(chance.choice(others))
        return found


def works(link: Link) -> bool:
    """Whether it is connected, and its broker does not hesitate to answer pings."""
    return not (link.broken or link.silent(HESITATES))
