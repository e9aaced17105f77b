"""The life of a blocking client: its links, each with a thread that reads."""

from __future__ import annotations

import random

from krappy.clients.link import Link
from krappy.clients.runtime import run
from krappy.clients.sync.io import ThreadRuntime
from krappy.clients.values import Address, address
from krappy.errors import KrappyError

NOT_OPEN = "this client is not open: use `with`"
PARTING = 5.0  # seconds that closing waits for threads


class Connection:
    """What a client has: one link for all it asks, and more for those that need one of their own."""

    def __init__(self, to: str | None, timeout: float, keepalive: float = 30.0) -> None:
        self.address: Address = address(to)
        self.timeout = timeout
        self.keepalive = keepalive
        self._runtime = ThreadRuntime()
        self._link: Link | None = None
        self._links: list[Link] = []

    def open(self) -> None:
        """Raises ConnectionLost when no broker answers."""
        if self._link is not None:
            raise KrappyError("this client is open already")
        self._link = self.new_link()
        try:
            run(self._link.open())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        links, self._links, self._link = self._links, [], None
        for link in links:
            link.close()
        self._runtime.join(PARTING)

    def new_link(self) -> Link:
        """One more connection to the same broker; it ends with this one at the latest."""
        link = Link(self._runtime, self.address, random.random, self.timeout, self.keepalive)
        with self._runtime.lock:
            self._links = [each for each in self._links if not each.closed]
            self._links.append(link)
        return link

    @property
    def link(self) -> Link:
        if self._link is None:
            raise KrappyError(NOT_OPEN)
        return self._link
