"""Opens and closes a blocking client: its links, each with a thread that reads it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Unpack

from krappy.clients.link import Link
from krappy.clients.router import Router
from krappy.clients.runtime import run
from krappy.clients.security import ClientSecurity, SecurityOptions
from krappy.clients.sync.io import ThreadRuntime
from krappy.clients.values import Address, Addresses, addresses, seconds
from krappy.errors import KrappyError

NOT_OPEN = "this client is not open: use `with`, or open()"
FORKED = "this client was opened before this process was forked off: its connection is the parent's; open another here"
PARTING = 5.0  # seconds that `close` waits for threads to end
PATIENCE = 1.0  # seconds that a fork waits for each client's lock


class ClientConnection:
    """The links of a client: one for its requests, and one more for each watch; of a cluster, one for each broker that
    leads what it uses. `timeout`, `keepalive`: seconds, as `Link` has them; `security`: as `ClientSecurity` has it.
    Raises ConfigError."""

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
        self.runtime = ThreadRuntime()
        self._router: Router | None = None
        self._links: list[Link] = []
        self._forked = False
        with _registering:
            _connections.add(self)

    def open(self) -> None:
        """Connects. Raises ConnectionLost when no broker answers."""
        with self.runtime.lock:
            if self._router is not None:
                raise KrappyError("this client is open already")
            router = self._router = Router(self._add_link(self.addresses), lambda address: self.new_link([address]))
        try:
            run(router.open())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with self.runtime.lock:
            links, self._links, self._router = self._links, [], None
        for link in links:
            link.close()
        self.runtime.join(PARTING)

    @property
    def is_open(self) -> bool:
        return self._router is not None and not self._forked

    def new_link(self, to: Sequence[Address] = ()) -> Link:
        """One more connection: to the first of these addresses that answers; of the client's own if there are none.
        Closing this client closes it. Raises KrappyError when not open."""
        with self.runtime.lock:  # so that no `close` comes between the check and the new link
            _ = self.router
            return self._add_link(to or self.addresses)

    def _add_link(self, to: Sequence[Address]) -> Link:
        link = Link(self.runtime, to, self.timeout, self.keepalive, self.security)
        self._links = [each for each in self._links if not each.closed]
        self._links.append(link)
        return link

    @property
    def router(self) -> Router:
        router = self._router  # read only once: another thread may close the client
        if router is None or self._forked:
            raise KrappyError(FORKED if self._forked else NOT_OPEN)
        return router

    @property
    def link(self) -> Link:
        """To any broker."""
        return self.router.home

    def disown(self) -> None:
        """For a forked child process: the client's threads are missing and its sockets are the parent's, so it is
        marked unusable."""
        self._forked = self._forked or self._router is not None
        self.runtime.disown()
        for link in self._links:
            link.disown(FORKED)


# A fork first takes the lock of each client, so that the child gets no half-changed one. In the child none is usable.
_connections: weakref.WeakSet[ClientConnection] = weakref.WeakSet()
_registering = threading.Lock()
_held: list[ThreadRuntime] = []  # the runtimes locked for a fork; guarded by `_registering`


def _before_fork() -> None:
    _registering.acquire()
    _held[:] = [each.runtime for each in _connections if each.runtime.lock.acquire(timeout=PATIENCE)]


def _after_fork() -> None:
    for runtime in _held:
        runtime.lock.release()
    _held.clear()
    _registering.release()


def _after_fork_in_child() -> None:
    for each in _connections:
        each.disown()
    _after_fork()


if hasattr(os, "register_at_fork"):  # not on systems without fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
