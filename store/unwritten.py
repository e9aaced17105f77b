"""What is folded and not in RocksDB yet: the newest entries of all views, and how far each view is.

The write of an entry costs RocksDB as much as everything else that the fold does with it, and many keys change again
soon. So entries gather here, of each key only the latest, until they take `most` bytes; then all go to RocksDB in one
write (`Views`). Lookups look here first, and who reads in key order takes a copy. A crash loses them: they
are folded from the log again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import cached_property

from krappy.store.keys import applied_key, strays_key, view_prefix
from krappy.store.rocks import WriteBatch

MOST_FOLDED = 100_000  # events after which it is full, however few keys they have: a crash loses what they made
HELD = 150  # bytes that an entry and its key take here in addition to their own
Strays = tuple[int, bool]


class UnwrittenCopy:
    """What was unwritten when it was taken. It does not change."""

    def __init__(self, entries: dict[bytes, bytes], applied: dict[int, int], size: int) -> None:
        """`entries`: by stored key. `applied`: the applied offsets by the numbers of their views. `size`: bytes of
        memory that both take, about."""
        self.entries = entries
        self.applied = applied
        self.size = size

    @cached_property
    def _keys(self) -> list[bytes]:
        return sorted(self.entries)

    def keys(self, first: bytes, end: bytes) -> list[bytes]:
        """The stored keys from `first` to before `end`, in order."""
        if not self.entries:
            return []
        return self._keys[bisect_left(self._keys, first) : bisect_left(self._keys, end)]

    def added(self, keys: list[bytes], first: bytes, end: bytes, count: int) -> tuple[list[bytes], bytes]:
        """(`keys`, which are RocksDB's from `first` to before `end`, together with those of here; where they end). At
        most `count`."""
        more = self.keys(first, end)[: count + 1]
        if not more:
            return keys, end
        both = sorted({*keys, *more})
        return (both, end) if len(both) <= count else (both[:count], both[count])


NOTHING = UnwrittenCopy({}, {}, 0)


class Unwritten:
    def __init__(self, most: int) -> None:
        """`most`: bytes of memory."""
        self.entries: dict[bytes, bytes] = {}  # by stored key (`store/keys.py`)
        self._views: dict[int, tuple[int, Strays | None]] = {}  # by number: the applied offset, and the strays
        self._most = most
        self._size = 0  # bytes that they take at most
        self._ends = MOST_FOLDED  # the number of events with which it is full
        self._copy: UnwrittenCopy | None = NOTHING
        self.folded = 0  # events

    def __bool__(self) -> bool:
        return bool(self._views)

    @property
    def full(self) -> bool:
        """Whether they should be written before more are added."""
        if self._size > self._most:  # those that others have replaced were counted, too
            self._size = _size(self.entries)
            if 2 * self._size > self._most:
                self._ends = 0
        return self.folded >= self._ends

    def add(
        self, number: int, entries: Mapping[bytes, bytes], applied: int, strays: Strays | None, events: int = 0
    ) -> None:
        """Takes entries of a view by record key, and its new applied offset. `events`: how many they were folded from,
        if more than there are entries. Raises ValueError for a number that no partition has."""
        prefix = view_prefix(number)
        self._copy = None
        self.folded += max(events, len(entries))
        if entries:
            self.entries.update(zip(map(prefix.__add__, entries), entries.values(), strict=True))
            self._size += _size(entries)
        self._views[number] = applied, strays

    def applied(self, number: int) -> int | None:
        """The applied offset of a view; None: RocksDB has it."""
        found = self._views.get(number)
        return found and found[0]

    def strays(self, number: int) -> Strays | None:
        """What was given with `applied`."""
        return self._views[number][1]

    @property
    def size(self) -> int:
        """Bytes of memory that a copy of it takes, at most."""
        return self._size + HELD * len(self._views)

    def copy(self) -> UnwrittenCopy:
        """What is here now; the same one until something is added."""
        if self._copy is None:
            applied = {number: applied for number, (applied, _) in self._views.items()}
            self._copy = UnwrittenCopy(self.entries.copy(), applied, self.size)
        return self._copy

    def fill(self, batch: WriteBatch) -> None:
        """Puts all of it into a write of RocksDB."""
        put = batch.put
        for key, entry in self.entries.items():
            put(key, entry)
        for number in self._views:
            self._fill_offset(batch, number)

    def fill_one_offset(self, batch: WriteBatch) -> None:
        """Puts the applied offset of one view, once more: a small write, however many views there are."""
        self._fill_offset(batch, next(iter(self._views)))

    def _fill_offset(self, batch: WriteBatch, number: int) -> None:
        applied, strays = self._views[number]
        offset = applied.to_bytes(8, "big")
        batch.put(applied_key(number), offset)
        if strays is not None:
            count, some = strays
            batch.put(strays_key(number), count.to_bytes(4, "big") + bytes([some]) + offset)


def _size(entries: Mapping[bytes, bytes]) -> int:
    return HELD * len(entries) + sum(map(len, entries)) + sum(map(len, entries.values()))
