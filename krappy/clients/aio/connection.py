"""Opens and closes an async client: its background tasks, and the links that they serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from krappy.clients.aio.io import AnyioRuntime, Tasks
from krappy.clients.link import Link
from krappy.clients.router import Router
from krappy.clients.security import ClientSecurity, SecurityOptions
from krappy.clients.values import Address, Addresses, addresses, seconds
from krappy.errors import KrappyError

NOT_OPEN = "this client is not open: use `async with`"


class ClientConnection:
    """The links of a client: one for its requests, and one more for each watch; in a cluster, also one to each broker
    that leads what it uses. `timeout`, `keepalive`: seconds, as `Link` has them; `security`: as `ClientSecurity` has
    it. Raises ConfigError."""

    def __init__(
        self,
        to: Addresses | None,
        timeout: float = 30.0,
        keepalive: float = 30.0,
        **security: Unpack[SecurityOptions],
    ) -> None:
        self.addresses = addresses(to)
        self.timeout = seconds(timeout, "timeout")
        self.keepalive = seconds(keepalive, "keepalive")
        self.security = ClientSecurity(**security)
        self._tasks: Tasks | None = None
        self._router: Router | None = None
        self._links: list[Link] = []

    async def open(self) -> None:
        """Connects. Raises ConnectionLost when no broker answers."""
        if self._tasks is not None:
            raise KrappyError("this client is open already")
        self._tasks = Tasks()
        await self._tasks.open()
        try:
            self._router = Router(self.new_link(), lambda address: self.new_link([address]))
            await self._router.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for link in self._links:
            link.close()
        self._links.clear()
        tasks, self._tasks, self._router = self._tasks, None, None
        if tasks is not None:
            await tasks.close()

    @property
    def is_open(self) -> bool:
        return self._router is not None

    def new_link(self, to: Sequence[Address] = ()) -> Link:
        """One more connection: to the first of these addresses that answers; of the client's own if there are none.
        Closing this client closes it. Raises KrappyError when not open."""
        if self._tasks is None:
            raise KrappyError(NOT_OPEN)
        runtime = AnyioRuntime(self._tasks)
        link = Link(runtime, to or self.addresses, self.timeout, self.keepalive, self.security)
        self._links = [each for each in self._links if not each.closed]
        self._links.append(link)
        return link

    @property
    def router(self) -> Router:
        if self._router is None:
            raise KrappyError(NOT_OPEN)
        return self._router

    @property
    def link(self) -> Link:
        """To any broker."""
        return self.router.home
