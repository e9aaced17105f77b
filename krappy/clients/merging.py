"""A scan of several partitions that gives entries in the order of keys, each key once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from krappy.clients import lookups
from krappy.clients.router import Router
from krappy.clients.scanning import Scanning
from krappy.clients.scattering import counted, is_scattered
from krappy.errors import KrappyError
from krappy.partitioner import home_for
from krappy.types import Entry

_key = attrgetter("key")


@dataclass(slots=True)
class _Part:
    """The scan of one partition. `page`: what was read of it, and not given out."""

    scan: Scanning
    page: list[Entry] = field(default_factory=list)


class MergedScanning:
    """A scan of each partition, all open at the same time, merged. Has the methods of `Scanning`.

    Each partition is scanned with a cursor of its own, which its broker closes when no page was asked for in two
    minutes: `page` raises UnknownHandle then. An error ends the scans of all partitions.
    """

    def __init__(
        self,
        router: Router,
        topic: str,
        partitions: Sequence[int] | None,
        scan: Callable[[int, int, bool, int | None], Scanning],
        *,
        tombstones: bool,
    ) -> None:
        """`scan(partition, of, hidden, among)`: a scan of one of so many partitions; `hidden`: it gives tombstones,
        whether they were asked for (`tombstones`) or not; `among`: as of Scanning."""
        self._router, self._topic, self._chosen, self._scan = router, topic, partitions, scan
        self._count = 0  # partitions of the topic
        self._parts: list[_Part] | None = None  # those that have not ended
        self._all: list[Scanning] = []
        self._tombstones = tombstones
        self._hides = False  # whether tombstones come that were not asked for
        self._ended = False

    @property
    def offsets(self) -> dict[int, int]:
        """By partition: the scan includes exactly the events before this offset."""
        return {index: offset for each in self._all for index, offset in each.offsets.items()}

    async def page(self) -> list[Entry] | None:
        """The next entries, in the order of keys. None: there are no more. Nothing is lost when it is cancelled."""
        try:
            while not self._ended and await self._read():
                if found := self._distinct(self._next()):
                    return found
        except KrappyError:
            self.close()
            raise
        return None

    async def _read(self) -> bool:
        """Reads on in the partitions of which nothing is left here. Returns whether there are entries."""
        if self._parts is None:
            await self._open()
        parts = self._parts or []
        for each in parts:
            if not each.page:
                each.page = await each.scan.page() or []
        self._parts = [each for each in parts if each.page]
        return bool(self._parts)

    def _next(self) -> list[Entry]:
        """The entries up to the last key before which everything of every partition is here."""
        parts, found = self._parts or [], []
        last = min(each.page[-1].key for each in parts)
        for each in parts:
            cut = bisect_right(each.page, last, key=_key)
            found += each.page[:cut]
            each.page = each.page[cut:]
        found.sort(key=_key)
        return found

    async def _open(self) -> None:
        """Begins all scans. While a topic has strays, the newest entry of a key counts, and that may be a tombstone."""
        router, topic = self._router, self._topic
        deadline = router.runtime.now() + router.timeout
        scattered = False

        async def begin(count: int, among: int | None) -> list[_Part]:
            self._close_all()
            self._count = count
            chosen = range(count) if self._chosen is None else sorted(set(self._chosen))
            told = among if self._chosen is None else None
            self._all = [self._scan(each, len(chosen), scattered, told) for each in chosen]
            return [_Part(each, await each.page() or []) for each in self._all]

        try:
            while True:
                parts = await counted(router, topic, deadline, begin)
                self._hides = scattered and not self._tombstones
                if scattered or not await is_scattered(router, topic, deadline, may_guess=True):
                    break
                scattered = True
        except BaseException:
            self._close_all()
            raise
        self._parts = parts

    def _distinct(self, found: list[Entry]) -> list[Entry]:
        """The entries, but of those with the same key only the newest."""
        if not self._hides and len(set(map(_key, found))) == len(found):
            return found
        newest: dict[bytes, Entry] = {}
        for each in found:
            other = newest.setdefault(each.key, each)
            if other is not each:
                best = lookups.newest([other, each], home_for(each.key, self._count))
                assert best is not None
                newest[each.key] = best
        return [each for each in newest.values() if not (self._hides and each.deleted)]

    def _close_all(self) -> None:
        for each in self._all:
            each.close()

    def close(self) -> None:
        """Lets the brokers drop the scans."""
        self._ended = True
        self._close_all()

    def abandon(self) -> None:
        """As `close`, for a finalizer."""
        for each in self._all:
            each.abandon()
