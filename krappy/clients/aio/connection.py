"""Opens and closes an async client: a task group, and the links whose tasks run in it."""

from __future__ import annotations

import random

import anyio
import anyio.abc

from krappy.clients.aio.io import AnyioRuntime
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
        self._tasks: anyio.abc.TaskGroup | None = None
        self._link: Link | None = None
        self._links: list[Link] = []

    async def open(self) -> None:
        """Connects. Raises ConnectionLost when no broker answers."""
        if self._tasks is not None:
            raise KrappyError("this client is open already")
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            self._link = self.new_link()
            await self._link.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        # The task group is told of no error: it would raise the program's own errors wrapped in an ExceptionGroup. Its
        # tasks raise none.
        for link in self._links:
            link.close()
        self._links.clear()
        tasks, self._tasks, self._link = self._tasks, None, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)

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
