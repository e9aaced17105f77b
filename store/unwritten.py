"""What is folded and not in RocksDB yet: the newest entries of all views, and how far each view is.

The write of an entry costs RocksDB as much as everything else that the fold does with it, and many keys change again
soon. So entries gather here, of each key only the latest, until they take `most` bytes; then all go to RocksDB in one
write (`Views`). Lookups look here first, and whoever reads in key order takes a copy. A crash loses them: they are
folded from the log again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from functools import cached_property

from krappy.store.keys import applied_key, strays_key, view_prefix
from krappy.store.rocks import WriteBatch

MOST_FOLDED = 500_000  # events after which it is full, however few keys they have: a crash loses their fold
HELD = 150  # bytes that an entry and its key take here in addition to their own
OF_VIEW = 400  # bytes that a view takes here beside its entries
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
        """(RocksDB's `keys` from `first` to before `end`, together with the unwritten ones of that range; the key
        before which they end). At most `count` keys."""
        more = self.keys(first, end)[: count + 1]
        if not more:
            return keys, end
        both = sorted({*keys, *more})
        return (both, end) if len(both) <= count else (both[:count], both[count])


NO_ENTRIES: Mapping[bytes, bytes] = {}
NOTHING = UnwrittenCopy({}, {}, 0)


class Unwritten:
    def __init__(self, most: int) -> None:
        """`most`: bytes of memory."""
        self._entries: dict[int, dict[bytes, bytes]] = {}  # by the number of the view, by record key
        self._views: dict[int, tuple[int, Strays | None]] = {}  # by number: the applied offset, and the strays
        self._most = most
        self._size = 0  # bytes that they take at most
        self._bound = most  # the size beyond which they are counted anew
        self._ends = MOST_FOLDED  # the number of events with which it is full
        self._copy: UnwrittenCopy | None = NOTHING
        self.folded = 0  # events

    def __bool__(self) -> bool:
        return bool(self._views)

    def __len__(self) -> int:
        """How many entries there are, of all views."""
        return sum(map(len, self._entries.values()))

    @property
    def full(self) -> bool:
        """Whether they should be written before more are added."""
        if self._size > self._bound:  # entries that others have replaced were counted, too
            self._size = sum(map(_size, self._entries.values())) + OF_VIEW * len(self._entries)
            self._bound = self._size + self._most // 2
            if 4 * self._size > 3 * self._most:
                self._ends = 0
        return self.folded >= self._ends

    def of(self, number: int) -> Mapping[bytes, bytes]:
        """The entries of a view, by record key."""
        return self._entries.get(number, NO_ENTRIES)

    def add(
        self,
        number: int,
        entries: Mapping[bytes, bytes],
        applied: int,
        strays: Strays | None,
        events: int = 0,
        size: int | None = None,
    ) -> None:
        """Takes entries of a view by record key, and its new applied offset. `events` and `size` as in `Views.apply`.
        Raises ValueError for a number that no partition has."""
        view_prefix(number)
        self._copy = None
        self.folded += max(events, len(entries))
        if entries:
            if number not in self._entries:
                self._entries[number] = {}
                self._size += OF_VIEW
            self._entries[number].update(entries)
            self._size += _size(entries) if size is None else size  # to look at each takes long
        self._views[number] = applied, strays

    def applied(self, number: int) -> int | None:
        """The applied offset of a view; None: RocksDB has it."""
        found = self._views.get(number)
        return found and found[0]

    def strays(self, number: int) -> Strays | None:
        """The strays that were given with the view's applied offset."""
        return self._views[number][1]

    @property
    def size(self) -> int:
        """Bytes of memory that a copy of it takes, at most."""
        return self._size + HELD * len(self._views)

    def copy(self) -> UnwrittenCopy:
        """What is here now; the same one until something is added."""
        if self._copy is None:
            applied = {number: applied for number, (applied, _) in self._views.items()}
            stored: dict[bytes, bytes] = {}
            for number, entries in self._entries.items():
                stored.update(zip(map(view_prefix(number).__add__, entries), entries.values(), strict=True))
            self._copy = UnwrittenCopy(stored, applied, self.size)
        return self._copy

    def fill(self, batch: WriteBatch) -> None:
        """Puts all of it into a write of RocksDB."""
        for number, entries in self._entries.items():
            deque(map(batch.put, map(view_prefix(number).__add__, entries), entries.values()), maxlen=0)
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
