"""Opens and closes an async client: its background tasks, and the links that they serve."""

from __future__ import annotations

import random

from krappy.clients.aio.io import AnyioRuntime, Tasks
from krappy.clients.link import Link
from krappy.clients.values import Address, address, seconds
from krappy.errors import KrappyError

NOT_OPEN = "this client is not open: use `async with`"


class ClientConnection:
    """The links of a client: one for its requests, and one more for each watch. `timeout`, `keepalive`: seconds, as
    `Link` has them. Raises ConfigError."""

    def __init__(self, to: str | None, timeout: float, keepalive: float = 30.0) -> None:
        self.address: Address = address(to)
        self.timeout = seconds(timeout, "timeout")
        self.keepalive = seconds(keepalive, "keepalive")
        self._tasks: Tasks | None = None
        self._link: Link | None = None
        self._links: list[Link] = []

    async def open(self) -> None:
        """Connects. Raises ConnectionLost when no broker answers."""
        if self._tasks is not None:
            raise KrappyError("this client is open already")
        self._tasks = Tasks()
        await self._tasks.open()
        try:
            self._link = self.new_link()
            await self._link.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for link in self._links:
            link.close()
        self._links.clear()
        tasks, self._tasks, self._link = self._tasks, None, None
        if tasks is not None:
            await tasks.close()

    @property
    def is_open(self) -> bool:
        return self._link is not None

    def new_link(self) -> Link:
        """One more connection to the same broker. Closing this client closes it. Raises KrappyError when not open."""
        if self._tasks is None:
            raise KrappyError(NOT_OPEN)
        link = Link(AnyioRuntime(self._tasks), self.address, random.random, self.timeout, self.keepalive)
        self._links = [each for each in self._links if not each.closed]
        self._links.append(link)
        return link

    @property
    def link(self) -> Link:
        if self._link is None:
            raise KrappyError(NOT_OPEN)
        return self._link
