"""Tables as a whole: scans, and snapshots that every connection can read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from krappy.ports.registrations import RegistrationFacts

Bound = bytes | None  # of a range of keys


class FoldedPort(Protocol):
    """Views that include the offsets that were waited for, until another task has its turn."""

    async def wait(self) -> None: ...
    def after(self, pause: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]: ...


class ScanPage(NamedTuple):
    partition: int  # of all its items
    items: list[bytes]  # packed key, packed entry, …
    last: bool


class ScanPort(Protocol):
    """A snapshot of some partitions, handed out a page at a time, partition by partition, in key order."""

    offsets: list[tuple[int, int]]  # (partition, offset up to which it is exact)
    ended: Callable[[], None]  # called when it is closed, by whomever; to be set

    async def page(self, max_entries: int, max_bytes: int) -> ScanPage:
        """The next page. Only the last one may be empty, and after it the scan is closed. Other tasks have their turn
        while it skips tombstones and such. Raises UnknownHandle when the scan is closed, or is closed meanwhile."""

    def close(self) -> None:
        """Closes the scan. Call it when leaving before the last page: an open scan pins old data."""

    def describe(self) -> RegistrationFacts: ...


class Emit(Protocol):
    """What a watch tells: "snapshot" or "changes", of one partition, up to an offset."""

    async def __call__(
        self,
        event: str,
        partition: int,
        next_offset: int,
        items: list[bytes],
        exact: list[tuple[int, int]] | None = None,
        /,
    ) -> None: ...


class WatchPort(Protocol):
    """A scan, and then every change. It runs until it is closed or cancelled. `epochs`: by partition, the leader epoch
    of the last event before the offset that was emitted, as far as it is known. Before a watch that resumes runs, they
    are those before the offsets at which it resumes."""

    epochs: dict[int, int]

    @property
    def scattered(self) -> bool: ...
    @property
    def stands(self) -> bool:
        """Whether it goes on. Once this is false, it stays false: nothing more may be sent, not even what is to be
        emitted just now, and `run` raises why."""

    async def run(self, offsets: dict[int, int] | None, emit: Emit, room: Callable[[], Awaitable[None]]) -> None: ...
    def close(self) -> None: ...
    def describe(self) -> RegistrationFacts: ...


class RowsPort(Protocol):
    """Entries of a range, in key order. `following`: where the next begin; None: there are no more."""

    @property
    def keys(self) -> list[bytes]: ...
    @property
    def entries(self) -> list[bytes]: ...
    @property
    def following(self) -> bytes | None: ...


class SnapshotPort(Protocol):
    """A snapshot that every connection can read."""

    id: str
    topic: str
    owner: str  # the principal that had it taken; "" for none
    tombstones: bool
    offsets: list[tuple[int, int]]

    async def measure(self, enough: int) -> int: ...
    async def ranges(self, parts: int) -> list[tuple[int, bytes | None, bytes | None]]: ...
    def rows(
        self, partition: int, start: bytes | None, end: bytes | None, max_bytes: int, *, tombstones: bool
    ) -> RowsPort: ...


class SnapshotsPort(Protocol):
    """The snapshots that are held. Raises SnapshotGone for other ids."""

    def keep(self, id: str, ttl_ms: int | None) -> None: ...
    def reading(self, id: str) -> AbstractContextManager[SnapshotPort]: ...
    def close(self, id: str) -> None: ...
