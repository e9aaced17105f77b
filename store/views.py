"""The views: for each partition the latest entry of each key, and the applied offset.

One RocksDB holds all views of a broker, but for what is still `Unwritten`. Lookups and snapshots ask both. All other
reads first write what is unwritten. RocksDB has no write-ahead log: the partition's log serves as one. Every write
batch has the applied offset beside the entries that it covers, in the same column family, and RocksDB flushes a column
family's memtables in order. So after a crash a view is the fold of the log up to its applied offset, and the rest of
the log is applied again. VIEWS.md describes the bytes.

Everything here is synchronous and safe to call from several threads; `apply` for one partition is called by one at
a time, in order.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from krappy.core.splits import KeyFile
from krappy.entries.entry import VALUE_AT, floor
from krappy.errors import StorageError
from krappy.store import rocks
from krappy.store.keys import (
    PREFIX_SIZE,
    applied_key,
    begun_key,
    floor_key,
    number_in,
    strays_key,
    view_end,
    view_prefix,
)
from krappy.store.renewable import STALL_LIMIT_S, Renewable
from krappy.store.unwritten import NOTHING, Unwritten, UnwrittenCopy
from krappy.store.view_snapshot import ViewSnapshot

__all__ = ["ViewSnapshot", "Views"]

MAX_TAKEN = 1 << 20  # bytes of entries looked at in one go
MAX_KEYS = 4 << 20  # bytes of keys read in one go
MOST_UNFLUSHED = 1_000_000  # events, about: a start folds them again in a second or two after a crash
MOST_BESIDE = 256 << 10  # bytes that may stay unwritten when a snapshot is taken: it holds a copy of them
MOST_IN_SNAPSHOTS = 32 << 20  # bytes that all snapshots hold in such copies
HEADS, HEADS_ROOM = 16, 256 << 10  # at most so many keys are looked up together, and about so many bytes of entries


STATS = (
    "entries_estimated",
    "file_bytes",
    "memtable_bytes",
    "pinned_memtable_bytes",
    "cache_bytes",
    "immutable_memtables",
    "level0_files",
    "pending_compaction_bytes",
)


class Views(Renewable):
    """All views of a broker, in one folder."""

    def __init__(
        self, folder: Path, cache_bytes: int = 64 << 20, memtable_bytes: int = 64 << 20, *, anew: bool = False
    ) -> None:
        """Opens the views, or makes them when the folder is missing or empty: every view is then at offset 0, and its
        log has to be applied from the start. `cache_bytes` and `memtable_bytes` are for all views together. `anew`:
        deletes the folder's content first. Raises Damaged when the folder's views are not intact, StorageError."""
        super().__init__(folder)
        self._closed = False
        self._sizes = cache_bytes, memtable_bytes
        self._write = rocks.write_options(wal=False, no_slowdown=True)
        self._unwritten = self._nothing()
        self._unflushed = 0  # events folded into what was written since the last flush that was asked for
        self._changing = threading.RLock()  # held by whoever adds to `_unwritten`, or writes
        self._snapshots: weakref.WeakSet[ViewSnapshot] = weakref.WeakSet()
        if anew:
            self.throw_away()
        else:
            self._made = self._new()
        self.begin()

    def _new(self) -> rocks.Rdict:
        cache_bytes, memtable_bytes = self._sizes
        return rocks.open_db(self.folder, cache_bytes=cache_bytes, memtable_bytes=memtable_bytes, gathered=True)

    def _nothing(self) -> Unwritten:
        return Unwritten(rocks.most_gathered(self._sizes[1]))

    def _let_go(self) -> rocks.Rdict | None:
        for snapshot in list(self._snapshots):
            snapshot.close()
        with self._changing:
            self._unwritten, self._unflushed = self._nothing(), 0
            return super()._let_go()

    def close(self) -> None:
        """Flushes, so that the next start has nothing to apply, and closes, snapshots too. Closing again does
        nothing."""
        for snapshot in list(self._snapshots):
            snapshot.close()  # RocksDB stays open while there is one
        if self._open is None or self._closed:
            return
        try:
            try:
                self.write()
                self._db.flush()
            finally:
                self._unwritten, self._closed, self._waits = self._nothing(), True, "the database is closed"
                self._db.close()
        except rocks.DbClosedError:
            return
        except Exception as error:
            raise self._failure("closing the views", error) from error

    def applied(self, number: int) -> int:
        """The offset that this partition's view expects next; 0 for a view never written."""
        applied = self._unwritten.applied(number)
        if applied is not None:
            return applied
        found: Any = self._get(applied_key(number))
        return int.from_bytes(found, "big") if found else 0

    def floor(self, number: int) -> int:
        """The view's floor: entries with a lower offset are absent, whatever its topic's cleanup.policy is now; 0:
        none."""
        found: Any = self._get(floor_key(number))
        return int.from_bytes(found, "big") if found else 0

    def raise_floor(self, number: int, offset: int) -> None:
        """Durable after the next `flush`. Raises StorageError."""
        self.write(lambda batch: batch.put(floor_key(number), offset.to_bytes(8, "big")))

    def begun(self, number: int) -> int:
        """Up to which offset the log had been cleaned when this view was begun at the log's start; 0: not at all, or
        not known."""
        found: Any = self._get(begun_key(number))
        return int.from_bytes(found, "big") if found else 0

    def note_begun(self, number: int, clean: int) -> None:
        """Sets `begun`, before anything is applied. Raises StorageError."""
        self.write(lambda batch: batch.put(begun_key(number), clean.to_bytes(8, "big")))

    def strays(self, number: int) -> tuple[int, bool] | None:
        """(number of partitions among which the keys of this view were checked, whether any key belongs to another
        partition); None: not known."""
        with self._changing:
            if self._unwritten.applied(number) is not None:
                return self._unwritten.strays(number)
        found: Any = self._get(strays_key(number))
        if not found or int.from_bytes(found[5:13], "big") != self.applied(number):  # an older version wrote since
            return None
        return int.from_bytes(found[:4], "big"), found[4] != 0

    def _get(self, asked: bytes | list[bytes]) -> Any:
        try:
            return self._db.get(asked)  # type: ignore[arg-type]
        except Exception as error:
            raise self._failure("reading a view", error) from error

    def busy(self) -> bool:
        """Whether appliers should pause: flushes or compactions do not keep up, and a write may soon have to wait.
        Cheap enough to call before each `apply`.

        They should pause even while what is unwritten is not full, for scans write it, too. If appliers went on, the
        next scan would wait for a memtable, and the event loop with it; or small files would come faster than they are
        merged."""
        return self._open is not None and not self._closed and rocks.behind(self._open)

    def apply(
        self,
        number: int,
        entries: Mapping[bytes, bytes],
        applied: int,
        deletes: Sequence[bytes] = (),
        strays: tuple[int, bool] | None = None,
        events: int = 0,
        size: int | None = None,
    ) -> None:
        """Puts entries (record key to packed entry) and moves the applied offset, all or nothing.

        `applied`: the next offset to apply after this. `deletes`: keys to remove from the view: those of expired
        tombstones. `strays`: the new value of `strays`; None: not known. `events`: from how many events the entries
        were folded, if those are more than the entries. `size`: about the bytes that they and their keys take in
        memory, if that is known. Mostly it only adds to what is unwritten; but when that is full, it is written first,
        which holds the GIL for some milliseconds. When RocksDB has no free memtable then, it sleeps (without the GIL)
        until there is one; `busy` warns of that. Raises StorageError.
        """
        with self._changing:
            if self._unwritten.full:
                self.write()
            if self._open is None or self._closed:
                raise StorageError(self._waits)
            self._unwritten.add(number, entries, applied, strays, events, size)
            if deletes:
                self._take_out(number, deletes)

    def _take_out(self, number: int, keys: Sequence[bytes]) -> None:
        prefix = view_prefix(number)
        if self._snapshots:
            held = list(zip(keys, self.get_many(number, keys), strict=True))
            for snapshot in list(self._snapshots):
                snapshot.taken_out(number, held)

        def fill(batch: rocks.WriteBatch) -> None:
            for key in keys:
                batch.delete(prefix + key)

        self.write(fill)

    def write(self, more: Callable[[rocks.WriteBatch], None] | None = None) -> None:
        """Writes what is unwritten to RocksDB, and then what `more` puts into a batch. Raises StorageError."""
        with self._changing:
            unwritten = self._unwritten
            if unwritten:
                self._commit(unwritten.fill)
                self._unwritten = self._nothing()
                self._unflushed += unwritten.folded
                # A memtable that is full ends with the next write, and nobody should look into it before.
                more = more or unwritten.fill_one_offset
            if more is not None:
                self._commit(more)
            if self._unflushed >= MOST_UNFLUSHED and not rocks.behind(self._db):  # else a flush is under way
                self._begin_flush()

    def _begin_flush(self) -> None:
        """Begins a flush, and does not wait for its end: few keys fill no memtable, however many events they have."""
        self._unflushed = 0
        try:
            self._db.flush(False)
        except Exception as error:
            self._refusal("flushing the views", error)  # what was written stays written; the next write tells it

    def _commit(self, fill: Callable[[rocks.WriteBatch], None]) -> None:
        """Writes the batch that `fill` makes; retries while RocksDB would have to delay it."""
        deadline = time.monotonic() + STALL_LIMIT_S
        while True:
            batch = rocks.batch()  # a new one each time: `write` empties it even when it fails
            fill(batch)
            try:
                self._db.write(batch, self._write)
                self.stuck = ""
                return
            except Exception as error:
                failure = self._refusal("writing a view", error)
                if not isinstance(failure, rocks.Stalled) or time.monotonic() > deadline:
                    raise failure from error
            time.sleep(0.005)

    def get(self, number: int, key: bytes) -> bytes | None:
        """The packed entry of a key, tombstones too; None for a key that the view does not know."""
        found: bytes | None = self._unwritten.of(number).get(key)
        return self._get(number.to_bytes(4, "big") + key) if found is None else found

    def get_some(self, number: int, keys: Sequence[bytes], room: int) -> list[bytes | None]:
        """The packed entries of many keys, in their order, until they take `room` bytes; at least one.

        Keys are looked up one by one: a lookup of many at once has all entries in memory three times before their size
        is known. For small entries it costs the same.
        """
        get = self.get
        found: list[bytes | None] = []
        for key in keys:
            entry = get(number, key)
            found.append(entry)
            if entry is not None:
                room -= len(entry)
                if room <= 0:
                    break
        return found

    def get_many(self, number: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """The packed entries of many keys, in their order. Releases the GIL while it reads."""
        newest = self._unwritten.of(number)  # before RocksDB is asked: it may be written meanwhile
        found: list[bytes | None] = self._get(list(map(view_prefix(number).__add__, keys)))
        return list(map(newest.get, keys, found)) if newest else found

    def heads(self, number: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """As `get_many`, but each entry is cut one byte into its value: enough to tell a tombstone.

        Few are looked up at a time: entries of any size are in memory until they are cut.
        """
        found: list[bytes | None] = []
        step = 1
        while len(found) < len(keys):
            some = self.get_many(number, keys[len(found) : len(found) + step])
            size = sum(len(entry) for entry in some if entry is not None)
            found += [entry and entry[: VALUE_AT + 1] for entry in some]
            step = max(1, min(2 * step, HEADS, HEADS_ROOM * len(some) // (size + 1)))
        return found

    def entries(
        self, number: int, after: bytes | None, count: int, max_bytes: int = 1 << 62
    ) -> tuple[list[bytes], bytes | None]:
        """(the packed entries of a partition as they are now, tombstones too, in key order; the `after` to go on with,
        None at the end). At most `count` entries, and no more once they have `max_bytes`.

        Holds the GIL for a third of a microsecond an entry.
        """
        self.write()
        try:
            return rocks.values_from(self._db, after or view_prefix(number), view_end(number), count, max_bytes)
        except Exception as error:
            raise self._failure("reading a view", error) from error

    def keys(self, first: bytes, end: bytes, count: int) -> tuple[list[bytes], bytes | None]:
        """(at most `count` stored keys (`store/keys.py`) from `first` to before `end` as they are now, tombstones' too,
        and no more once they have MAX_KEYS bytes; the next one, or None).

        Holds the GIL for a quarter of a microsecond a key.
        """
        with self._changing:
            newest = self._newest()
        try:
            keys, following = rocks.keys_from(self._db, first, end, count, MAX_KEYS)
        except Exception as error:
            raise self._failure("reading a view", error) from error
        keys, read_to = newest.added(keys, first, following or end, count)
        return keys, None if read_to == end else read_to

    def take_out_below(self, number: int, offset: int, after: bytes | None, count: int) -> tuple[int, bytes | None]:
        """Looks at `count` entries of a view from the stored key `after` on, and removes those with an offset below
        `offset`.

        Returns how many of them stay, and the `after` to go on with; None at the end. Nobody may need the removed
        entries any more, not even a snapshot. Holds the GIL for about a microsecond an entry.
        """
        end = view_end(number)
        self.write()
        try:
            keys, entries, ended = rocks.pairs_from(self._db, after or view_prefix(number), end, count, MAX_TAKEN)
        except Exception as error:
            raise self._failure("reading a view", error) from error
        lowest = floor(offset)
        gone = [key for key, entry in zip(keys, entries, strict=True) if entry < lowest]

        def fill(batch: rocks.WriteBatch) -> None:
            for key in gone:
                batch.delete(key)

        if gone:
            self.write(fill)
        return len(keys) - len(gone), None if ended or not keys else keys[-1] + b"\0"

    def highest_number(self) -> int:
        """The largest partition number that has any record here; 0: none. Raises StorageError."""
        self.write()
        try:
            entry, reserved = (rocks.key_before(self._db, end) for end in (b"\xff" * 5, view_prefix(1)))
        except Exception as error:
            raise self._failure("reading a view", error) from error
        return max(number_in(entry), number_in(reserved[PREFIX_SIZE:]))

    def open_snapshots(self) -> weakref.WeakSet[ViewSnapshot]:
        """The snapshots that are open now."""
        return weakref.WeakSet(each for each in self._snapshots if not each.closed)

    def files(self) -> list[KeyFile]:
        """The table files. A file with entries of several partitions counts as if each had an equal part."""
        found: list[KeyFile] = []
        try:
            for file in self._db.live_files():
                first, last, entries = file["start_key"], file["end_key"], file["num_entries"]
                numbers = 1 + number_in(last) - max(1, number_in(first))
                found.append(KeyFile(first, last, entries / max(1, numbers)))
        except Exception as error:
            raise self._failure("asking RocksDB", error) from error
        return found

    def unflushed(self) -> int:
        """How many entries are in no file yet, those of all partitions together."""
        memtables = ("active-mem-table", "imm-mem-tables")
        return len(self._unwritten) + sum(rocks.number_of(self._db, f"num-entries-{each}") for each in memtables)

    def snapshot(self) -> ViewSnapshot:
        """A snapshot of all views as they are now. Close it: it keeps old values on disk."""
        with self._changing:
            taken = ViewSnapshot(self._db, self._failure, self._newest())
            self._snapshots.add(taken)
            return taken

    def _newest(self) -> UnwrittenCopy:
        """A copy of what is unwritten. If that is large, or snapshots hold much already, it is written first, and the
        copy is empty. Raises StorageError if it has to be written and can't be."""
        unwritten = self._unwritten
        if not unwritten:
            return NOTHING
        held = {id(each.newest): each.newest.size for each in self._snapshots if not each.closed}
        beside = sum(held.values()) + unwritten.size <= MOST_IN_SNAPSHOTS
        if not beside or unwritten.size > MOST_BESIDE:
            try:
                self.write()
            except StorageError:  # a full disk, for one: reads go on
                if not beside or self._open is None or self._closed:
                    raise
        return self._unwritten.copy()

    def drop(self, number: int) -> None:
        """Forgets a partition's view, its applied offset, floor and all. Durable after the next `flush`."""
        first, end = view_prefix(number), view_end(number)

        def fill(batch: rocks.WriteBatch) -> None:
            batch.delete_range(first, end)
            batch.delete(applied_key(number))
            batch.delete(floor_key(number))
            batch.delete(begun_key(number))
            batch.delete(strays_key(number))

        for snapshot in list(self._snapshots):
            snapshot.dropped(number)
        self.write(fill)

    def reclaim(self, number: int) -> None:
        """Frees the disk space of a dropped view, durably. May take seconds; releases the GIL."""
        self.write()
        try:
            self._db.compact_range(view_prefix(number), view_end(number))
            self._db.flush()
        except Exception as error:
            raise self._refusal("compacting the views", error) from error

    def flush(self) -> None:
        """Writes everything applied so far to files. Releases the GIL."""
        self.write()
        self._unflushed = 0
        try:
            self._db.flush()
        except Exception as error:
            raise self._refusal("flushing the views", error) from error

    def checkpoint(self, folder: Path) -> None:
        """Copies the views as they are now into a new folder, by hard links where possible."""
        self.flush()  # releases the GIL, which the flush within create_checkpoint does not
        try:
            rocks.Checkpoint(self._db).create_checkpoint(os.fspath(folder))
        except Exception as error:
            raise self._failure("copying the views", error) from error

    def stats(self) -> dict[str, int]:
        """Sizes in bytes and counts, for people and for metrics."""
        if self._open is None:
            return dict.fromkeys(STATS, 0)
        try:
            return {
                "entries_estimated": rocks.number_of(self._db, "estimate-num-keys"),
                "file_bytes": rocks.number_of(self._db, "total-sst-files-size"),
                "memtable_bytes": rocks.number_of(self._db, "cur-size-all-mem-tables"),
                "pinned_memtable_bytes": rocks.number_of(self._db, "size-all-mem-tables"),
                "cache_bytes": rocks.number_of(self._db, "block-cache-usage"),
                "immutable_memtables": rocks.number_of(self._db, "num-immutable-mem-table"),
                "level0_files": rocks.level0_files(self._db),
                "pending_compaction_bytes": rocks.number_of(self._db, "estimate-pending-compaction-bytes"),
            }
        except Exception as error:
            raise self._failure("asking RocksDB", error) from error
