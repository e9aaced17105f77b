"""What one connection has registered. Handlers keep their state here, and nowhere else."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from krappy.errors import Overloaded, UnknownHandle

MAX_HANDLES = 10_000
T = TypeVar("T")


class Closing(Protocol):
    def close(self) -> None: ...


class Peer(Protocol):
    """The connection's side of back-pressure."""

    @property
    def ready(self) -> bool: ...
    async def writable(self) -> None: ...


class Session:
    """`client` names the peer for people; `principal` is who it is for authorisation (nobody yet)."""

    def __init__(self, broker: Any, client: str, peer: Peer, max_frame: int) -> None:
        self.broker = broker
        self.max_frame = max_frame
        self._peer = peer
        self.client = client
        self.principal: str | None = None
        self.handles: dict[int, Closing] = {}
        self.closed = False
        self._next = 1

    def add(self, registration: Closing) -> int:
        """A handle for a registration, which is closed with the connection."""
        if self.closed:
            registration.close()
            return 0
        if len(self.handles) >= MAX_HANDLES:
            registration.close()
            raise Overloaded(f"a connection holds at most {MAX_HANDLES} registrations; unregister some")
        handle = self._next
        self._next += 1
        self.handles[handle] = registration
        return handle

    def find(self, handle: int, kind: type[T]) -> T:
        found = self.handles.get(handle)
        if isinstance(found, kind):
            return found
        what = "is not registered on this connection" if found is None else f"is no {kind.__name__}"
        raise UnknownHandle(f"handle {handle} {what}", handle=handle)

    def remove(self, handle: int) -> None:
        self.find(handle, object).close()  # type: ignore[attr-defined]
        self.handles.pop(handle, None)

    def find_scan(self, handle: int) -> Any:
        """A scan by its cursor."""
        found = self.find(handle, object)
        if not hasattr(found, "page"):
            raise UnknownHandle(f"handle {handle} is no scan's cursor", handle=handle)
        return found

    @property
    def ready(self) -> bool:
        """Whether the peer keeps up with what it is sent."""
        return self._peer.ready

    async def writable(self) -> None:
        """Waits until it does."""
        await self._peer.writable()

    def close(self) -> None:
        self.closed = True
        handles, self.handles = list(self.handles.values()), {}
        for registration in handles:
            registration.close()
