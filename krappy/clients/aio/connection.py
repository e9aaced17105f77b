"""The life of an async client: a task group, and the links that live in it."""

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
    """What a client has: one link for all it asks, and more for those that need one of their own."""

    def __init__(self, to: str | None, timeout: float, keepalive: float = 30.0) -> None:
        self.address: Address = address(to)
        self.timeout = seconds(timeout, "timeout")
        self.keepalive = seconds(keepalive, "keepalive")
        self._tasks: anyio.abc.TaskGroup | None = None
        self._link: Link | None = None
        self._links: list[Link] = []

    async def open(self) -> None:
        """Raises ConnectionLost when no broker answers."""
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
        # The task group never sees an error of the program's: it would come out wrapped in a group. Nothing else in
        # it fails.
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
        """One more connection to the same broker; it ends with this one at the latest."""
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
