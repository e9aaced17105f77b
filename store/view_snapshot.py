"""A moment of the views, read a page at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, compress, takewhile
from operator import add
from typing import Any, NamedTuple

from krappy.entries.columns import kinds
from krappy.entries.entry import NIL, VALUE_AT, floor
from krappy.errors import StorageError
from krappy.store import rocks
from krappy.store.keys import PREFIX_SIZE, applied_key, key_range, view_prefix
from krappy.store.unwritten import NOTHING, UnwrittenCopy

DENSER = 2  # so many times as many keys of another view are read, at most, to find those in both
MAX_BYTES = 1 << 20  # bytes of keys that are read for that, at most
CHANGES = 1_000  # at most so many changed entries of a page are looked up in the snapshot: each takes 5 µs


class Rows(NamedTuple):
    """Part of a view, in key order. `following`: the key from which to go on; None at the end of the range."""

    keys: list[bytes]
    entries: list[bytes]
    following: bytes | None

    def first(self, count: int) -> Rows:
        """The first of these rows, at most `count`."""
        if len(self.keys) <= count:
            return self
        return Rows(self.keys[:count], self.entries[:count], self.keys[count])


Failure = Callable[[str, Exception], Exception]


class ViewSnapshot:
    """All views at one moment, given by their applied offsets then.

    It consists of what RocksDB had then, and over that of what was unwritten. A key's offset only grows. So an entry
    whose offset is below the view's applied offset of that moment is still the same. An entry with a higher offset is
    looked up in a RocksDB snapshot. Pages are read from the newest data, so an idle snapshot costs next to nothing; an
    iterator would keep every memtable and file of its moment. (rocksdict's `Snapshot` gives its moment in lookups, but
    not in iterators.)

    One thing may be missing: a tombstone that has been taken out of the view since (but see `keep_all`). One thread at
    a time uses a snapshot.
    """

    def __init__(self, db: rocks.Rdict, failure: Failure = rocks.failure, newest: UnwrittenCopy = NOTHING) -> None:
        """`failure` turns an error of RocksDB into the one to raise. `newest`: what is unwritten now."""
        self.newest = newest
        self._held: rocks.Rdict | None = db
        self._failure = failure
        try:
            self._snapshot: rocks.Snapshot | None = db.snapshot()
        except Exception as error:
            raise failure("taking a snapshot", error) from error
        self._applied: dict[int, int] = {}
        self._taken_out: dict[int, set[bytes]] = {}  # keys that changed since and were then taken out of the view
        self._dropped: set[int] = set()
        self._keeps_all = False

    def close(self) -> None:
        """Releases the data of the moment. Closing again does nothing."""
        self._snapshot = self._held = None
        self.newest = NOTHING

    @property
    def _db(self) -> rocks.Rdict:
        if self._held is None:
            raise StorageError("the snapshot is closed")
        return self._held

    @property
    def closed(self) -> bool:
        return self._snapshot is None

    def dropped(self, number: int) -> None:
        """To be called when this view is dropped: from then on reads of it raise StorageError."""
        self._dropped.add(number)

    def has_dropped(self, number: int) -> bool:
        return number in self._dropped

    def keep_all(self) -> None:
        """From now on tombstones that are taken out of the view stay in the snapshot."""
        self._keeps_all = True

    def taken_out(self, number: int, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """To be called with keys and their entries before they are taken out of the view."""
        ceiling = floor(0 if self._keeps_all else self.applied(number))
        changed = [key for key, entry in entries if entry is not None and entry >= ceiling]
        if changed:
            self._taken_out.setdefault(number, set()).update(changed)

    def gone(self, number: int) -> AbstractSet[bytes]:
        """Keys that were taken out of this view since, and may have an entry in the snapshot."""
        return self._taken_out.get(number, frozenset())

    def _get(self, stored: bytes) -> bytes | None:
        if self._snapshot is None:
            raise StorageError("the snapshot is closed")
        if (newest := self.newest.entries.get(stored)) is not None:
            return newest
        try:
            found: Any = self._snapshot[stored]
        except Exception as error:
            if str(error) == rocks.SNAPSHOT_MISS:
                return None
            raise self._failure("reading a view", error) from error
        return found  # type: ignore[no-any-return]

    def applied(self, number: int) -> int:
        """The view's applied offset at the snapshot's moment."""
        held = self._applied.get(number)
        if held is None:
            held = self.newest.applied.get(number)
            if held is None:
                held = int.from_bytes(self._get(applied_key(number)) or b"", "big")
            self._applied[number] = held
        return held

    def get(self, number: int, key: bytes) -> bytes | None:
        """As `Views.get`, at the snapshot's moment."""
        return self._get(view_prefix(number) + key)

    def get_many(self, number: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """As `Views.get_many`, at the snapshot's moment."""
        if number in self._dropped or self._snapshot is None:
            raise StorageError("the view was dropped, or the snapshot closed, while it was read")
        prefix, ceiling = view_prefix(number), floor(self.applied(number))
        stored = [prefix + key for key in keys]
        try:
            found: Any = self._db.get(stored)  # type: ignore[arg-type]
        except Exception as error:
            raise self._failure("reading a view", error) from error
        gone = self.gone(number)
        found = [
            self._get(stored[row]) if (keys[row] in gone if entry is None else entry >= ceiling) else entry
            for row, entry in enumerate(found)
        ]
        newest = self.newest.entries
        return list(map(newest.get, stored, found)) if newest else found

    def shared(self, number: int, keys: Sequence[bytes]) -> list[bytes]:
        """The keys that may have an entry in this view; the others have none. `keys`: keys of some view, in order.

        Reads the view's own keys from the first to the last of `keys`: that takes half of the time of looking each up.
        If the view has more than `DENSER` times as many there, it reads no further, and returns the rest of `keys` as
        well. Raises StorageError.
        """
        if number in self._dropped or self._snapshot is None:
            raise StorageError("the view was dropped, or the snapshot closed, while it was read")
        prefix, most = view_prefix(number), DENSER * len(keys)
        try:
            there, following = rocks.keys_from(self._db, prefix + keys[0], prefix + keys[-1] + b"\0", most, MAX_BYTES)
        except Exception as error:
            raise self._failure("reading a view", error) from error
        there += self.newest.keys(prefix + keys[0], prefix + keys[-1] + b"\0")
        found = {stored[PREFIX_SIZE:] for stored in there}.union(self.gone(number)).intersection(keys)
        if following is not None:
            found.update(keys[bisect_left(keys, following[PREFIX_SIZE:]) :])
        return sorted(found)

    def rows(
        self,
        number: int,
        *,
        start: bytes | None = None,
        end: bytes | None = None,
        prefix: bytes | None = None,
        max_entries: int = 2000,
        max_bytes: int = 1 << 20,
        tombstones: bool = False,
        log_start: int = 0,
    ) -> Rows:
        """The next entries of one partition: at most `max_entries`, and no more once keys and entries have `max_bytes`.

        `start` inclusive, `end` exclusive. Tombstones are left out unless asked for, and so are entries with an offset
        below `log_start`; so there may be no rows although `following` is a key. Holds the GIL for about a third of a
        microsecond an entry, however many are left out. Raises StorageError.
        """
        if self._snapshot is None:
            raise StorageError("the snapshot is closed")
        if number in self._dropped:
            raise StorageError("the view was dropped while it was read")
        first, end_key = key_range(number, start, end, prefix)
        try:
            keys, entries, ended = rocks.pairs_from(self._db, first, end_key, max_entries, max_bytes)
            read_to = end_key if ended else keys[-1] + b"\0"
            if self.newest.entries:
                keys, entries, read_to = self._with_newest(keys, entries, (first, read_to), max_entries, max_bytes)
            ceiling = floor(self.applied(number))
            if entries and max(entries) >= ceiling:
                keys, entries, read_to = self._as_they_were(keys, entries, read_to, ceiling)
            if number in self._taken_out:
                keys, entries, read_to = self._with_taken_out(number, keys, entries, (first, read_to), max_bytes)
        except Exception as error:
            raise self._failure("reading a view", error) from error
        lowest = floor(log_start)
        if entries and ((log_start and min(entries) < lowest) or (not tombstones and NIL in kinds(entries))):
            kept = [entry >= lowest and (tombstones or entry[VALUE_AT] != NIL) for entry in entries]
            keys, entries = list(compress(keys, kept)), list(compress(entries, kept))
        following = None if read_to == end_key else read_to[PREFIX_SIZE:]
        return Rows([stored[PREFIX_SIZE:] for stored in keys], entries, following).first(max_entries)

    def _with_newest(
        self, keys: list[bytes], entries: list[bytes], between: tuple[bytes, bytes], count: int, room: int
    ) -> tuple[list[bytes], list[bytes], bytes]:
        """RocksDB's rows together with what was unwritten, and the key where they end: at most `count` rows, and no
        more once they have `room` bytes."""
        first, read_to = between
        found = dict(zip(keys, entries, strict=True))
        keys, read_to = self.newest.added(keys, first, read_to, count)
        entries = [self.newest.entries.get(key) or found[key] for key in keys]
        sizes = accumulate(map(add, map(len, keys), map(len, entries)))
        kept = 1 + sum(1 for _ in takewhile(room.__gt__, sizes))
        if kept < len(keys):
            keys, entries, read_to = keys[:kept], entries[:kept], keys[kept]
        return keys, entries, read_to

    def _as_they_were(
        self, keys: list[bytes], entries: list[bytes], read_to: bytes, ceiling: bytes
    ) -> tuple[list[bytes], list[bytes], bytes]:
        """The rows at the snapshot's moment, until CHANGES of them have been looked up; and the key where that
        ended."""
        changed = [row for row, entry in enumerate(entries) if entry >= ceiling]
        if len(changed) > CHANGES:
            read_to = keys[changed[CHANGES]]
            keys, entries, changed = keys[: changed[CHANGES]], entries[: changed[CHANGES]], changed[:CHANGES]
        gone = set()
        for row in changed:
            entry = self._get(keys[row])
            if entry is None:
                gone.add(row)
            else:
                entries[row] = entry
        if gone:
            kept = [row not in gone for row in range(len(keys))]
            keys, entries = list(compress(keys, kept)), list(compress(entries, kept))
        return keys, entries, read_to

    def _with_taken_out(
        self, number: int, keys: list[bytes], entries: list[bytes], between: tuple[bytes, bytes], room: int
    ) -> tuple[list[bytes], list[bytes], bytes]:
        """The rows together with the keys of their range that were taken out of the view since, until these have `room`
        bytes; and the key where that ended."""
        first, read_to = between
        found = dict(zip(keys, entries, strict=True))
        for stored in sorted(view_prefix(number) + key for key in self._taken_out[number]):
            if not first <= stored < read_to:
                continue
            if room <= 0:
                read_to = stored
                break
            entry = self._get(stored)
            if entry is not None:
                found[stored] = entry
                room -= len(stored) + len(entry)
        keys = sorted(key for key in found if key < read_to)
        return keys, [found[key] for key in keys], read_to
