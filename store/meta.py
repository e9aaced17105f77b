"""The second database: what can't be derived from the logs. Small, and with a write-ahead log.

A write is in the log file when `put`, `delete` or `write` returns, so it survives the death of the process; it
survives the loss of power once a `sync` that began after it is done. Values are msgpack, chosen by their owners:
catalog.py and groups.py. VIEWS.md lists the keys.

When the disk refuses a write or a sync, RocksDB takes no more writes until it is opened anew, and nobody knows what a
failed sync has left on the disk. So each accepted write is kept here until a later sync has succeeded, and `reopen`
writes all kept ones once more. Therefore:

- A write that raises was not applied, and never will be.
- An accepted write is on disk after the next successful sync, however many fail before it. A caller who changes memory
  along with the write has nothing to take back when a sync fails.
- A caller who changes memory only after the sync takes the write back when the sync fails: see `change`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock

from krappy.errors import StorageError
from krappy.store import gap, journal, rocks
from krappy.store.synced import Synced, told

LOST = b"c/lost"
ALL = 1_000_000  # more changes than a catalog has taken that gave ids or numbers
SPARE = 512 << 10  # bytes that opening it takes, beside what its write-ahead log holds


class Meta:
    """Bytes by bytes keys, in key order. Safe to call from several threads."""

    def __init__(self, folder: Path, *, keep: bool = True) -> None:
        """Opens or creates the database. `keep`: whether to keep unsynced writes for `reopen`; False if nobody ever
        syncs.

        Raises StorageError.
        """
        self.folder = folder
        self.failure = ""  # why it takes no writes, until `reopen`; empty while it does
        self._keep = keep
        self._lock = Lock()  # held for a write: what is kept is what the database was given
        self._opening = Lock()  # held for a sync, and while it is opened anew
        self._unsynced: dict[bytes, bytes | None] = {}  # None: deleted
        self._syncing = False  # a sync is under way: what was written before it may be on disk, or not
        self._note = Synced(folder)
        self._closed = False
        self._begun = False  # whether it has been opened once
        self._held: rocks.Rdict | None = self._open()  # None: it could not be opened anew
        self._begun = True

    @property
    def _db(self) -> rocks.Rdict:
        if self._held is None:
            raise StorageError(self.failure)
        return self._held

    @property
    def lost(self) -> int:
        """How many changes, at least, are lost although they were on disk; the operator has accepted that. 0 once the
        record `LOST` is deleted. Raises StorageError."""
        return int.from_bytes(self.get(LOST) or b"", "big")

    def _open(self) -> rocks.Rdict:
        try:
            if self._begun:  # else a new database would be made while the disk is away
                os.stat(self.folder / "CURRENT")
            elif self.folder.is_dir():
                self._refuse_strangers()
            lost = self._check()
            db = rocks.open_db(self.folder, cache_bytes=2 << 20, memtable_bytes=8 << 20, open_files=64)
        except rocks.Damaged as error:
            raise _told(error) from error
        except OSError as error:
            raise StorageError(
                f"the catalog in {self.folder} can't be read: {error}. If that stays so, restore a backup"
            ) from error
        if lost:
            self._keep_lost(db, lost)
        return db

    def _refuse_strangers(self) -> None:
        """RocksDB takes a folder with the name of one of its files for that file. It may open the database all the
        same, and find it damaged at the next opening. A pipe would be waited for. Raises StorageError, OSError."""
        for path in self.folder.iterdir():
            if path.is_dir() or path.is_fifo():
                kind = "folder" if path.is_dir() else "pipe"
                raise StorageError(f"{path} is a {kind}, and the catalog has only files: move it away")

    def _check(self) -> int:
        """How many changes are lost, 0 without an accepted loss. Raises StorageError, before anything is changed, when
        opening would lose synced changes, or never end, and nobody has accepted that."""
        endless = journal.endless(self.folder)
        if endless is not None:
            file, position = endless
            self._lose(f"{file} is damaged at byte {position}")
            os.truncate(file, position)  # RocksDB ends at other damage by itself
        lost = 0
        if self._note.accepted():  # where no database is left, nobody knows how many changes there were
            lost = 1 if (self.folder / "CURRENT").exists() else ALL
        noted = self._note.read()
        missing = None if self._begun else gap.find(self.folder)  # after a reopen RocksDB may still be removing files
        found = rocks.last_change(self.folder) if noted else None
        if missing is not None and (found is None or found > missing.before):
            found = missing.before
            if not 0 < noted <= found:  # else it was a loss of power: nothing behind the gap was surely on disk
                self._lose(f"its changes up to number {found} can be read, and some later ones, but not those between")
                lost = max(lost, noted - found, missing.last - found)
            for file in missing.behind:
                os.truncate(file, 0)
        elif found is not None and found < noted:
            self._lose(f"of its changes up to number {noted}, which were on disk, only those up to {found} can be read")
            lost = max(lost, noted - found)
        return lost

    def _keep_lost(self, db: rocks.Rdict, lost: int) -> None:
        """Records the loss before `accept-loss` is removed: the process may die before the loss is handled."""
        try:
            kept = db.get(LOST)
            db.put(LOST, (int.from_bytes(kept or b"", "big") + lost).to_bytes(8, "big"))
            db.flush_wal(sync=True)
        except Exception as error:
            db.close()
            raise rocks.failure("writing the catalog", error) from error
        self._note.accept()

    def _lose(self, why: str) -> None:
        """Raises StorageError unless the operator has accepted the loss."""
        if self._note.accepted():
            return
        raise StorageError(told(self.folder, f"is damaged: {why}. What came later is lost"))

    def close(self) -> None:
        """Syncs and closes. After a failure it first reopens, which writes what is kept once more. Closing again does
        nothing. Raises StorageError when the sync fails for good; the database is closed all the same.
        """
        if self._closed:
            return
        try:
            try:
                self.sync()
            except StorageError:
                self.reopen()
            self._note.write(self._db.latest_sequence_number(), sync=True)
        finally:
            self._closed = True
            self._note.close()
            if self._held is not None:
                with suppress(Exception):  # all that could be synced is synced
                    self._held.close()

    # --- reading

    def get(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._db.get(key)
        except Exception as error:
            raise _told(rocks.failure("reading the catalog", error)) from error
        return found

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every key that begins with `prefix` and its value, in key order, as of the moment of the first `next`."""
        try:
            for found in rocks.all_from(self._db, prefix):
                if not found[0].startswith(prefix):
                    return
                yield found
        except Exception as error:
            raise _told(rocks.failure("reading the catalog", error)) from error

    # --- writing

    def put(self, key: bytes, value: bytes) -> None:
        self.write({key: value})

    def delete(self, key: bytes) -> None:
        self.write({}, [key])

    def write(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        """All of it or nothing. A key in both is deleted. Raises StorageError."""
        changes = {**puts, **dict.fromkeys(deletes)}
        with self._lock:
            if self.failure:
                raise StorageError(self.failure)
            self._give(changes)
            if self._keep:
                self._unsynced.update(changes)

    def change(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> Callable[[], None]:
        """As `write`, for a caller who changes memory only after the sync. Returns a function that takes the write back
        and never fails: if the disk refuses, `reopen` writes it. Nobody may change these keys in between."""
        keys = [*puts, *deletes]
        before = {key: self.get(key) for key in keys}
        self.write(puts, deletes)

        def take_back() -> None:
            with self._lock:
                self._unsynced.update(before)
                if not self.failure:
                    with suppress(StorageError):
                        self._give(before)

        return take_back

    def change_durably(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        """As `change`, then syncs; takes the write back when the sync fails. Raises StorageError."""
        take_back = self.change(puts, deletes)
        try:
            self.sync()
        except BaseException:
            take_back()
            raise

    def _give(self, changes: Mapping[bytes, bytes | None]) -> None:
        batch = rocks.batch()
        for key, value in changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            self._db.write(batch)
        except Exception as error:
            raise self._failed("writing the catalog", error) from error

    def _failed(self, what: str, error: Exception) -> Exception:
        """Notes that the disk refused, unless the database is closed. Returns the exception to raise."""
        failure = rocks.failure(what, error)
        if isinstance(failure, StorageError) and not self._closed:
            self.failure = self.failure or f"{failure}; the catalog takes no changes until it is opened anew"
        return failure

    # --- durability

    @property
    def behind(self) -> bool:
        """Whether something that was written may not be on disk yet. Always False without `keep`."""
        return self._syncing or bool(self._unsynced)

    def sync(self) -> None:
        """Everything written before this call is on disk when it returns. Releases the GIL: call it in a worker.

        Raises StorageError.
        """
        with self._opening:
            with self._lock:
                if self.failure:
                    raise StorageError(self.failure)
                taken, self._unsynced = self._unsynced, {}
                self._syncing = bool(taken)
            try:
                reached = self._db.latest_sequence_number()
                self._db.flush_wal(sync=True)
                self._note.write(reached)
            except Exception as error:
                with self._lock:
                    self._unsynced = {**taken, **self._unsynced}
                    failure = self._failed("syncing the catalog", error)
                raise failure from error
            finally:
                self._syncing = False

    def room_to_reopen(self) -> int:
        """Bytes of disk that `reopen` may take."""
        logs = sum(log.stat().st_size for log in self.folder.glob("[0-9]*.log"))
        return SPARE + 2 * logs + sum(len(key) + len(value or b"") for key, value in [*self._unsynced.items()])

    def reopen(self) -> None:
        """After a failure: opens the database anew, and writes and syncs what is kept. Meanwhile it can't be read.

        Raises StorageError, also while an iterator of `items` is still held; it may be called again then.
        """
        with self._opening:
            before, self._held = self._held, None
            if before is not None:
                with suppress(Exception):  # this repeats the failure; or it closes later, once no reader is active
                    before.close()
                del before
            self._held = self._open()
            with self._lock:
                self._give(self._unsynced)
                try:
                    self._db.flush_wal(sync=True)
                except Exception as error:
                    raise self._failed("syncing the catalog", error) from error
                self._unsynced.clear()
                self.failure = ""

    def checkpoint(self, folder: Path) -> None:
        """Copies the database as it is now into a new folder, by hard links where possible. Raises StorageError."""
        try:
            rocks.Checkpoint(self._db).create_checkpoint(os.fspath(folder))
        except Exception as error:
            raise rocks.failure("copying the catalog", error) from error


def _told(failure: Exception) -> Exception:
    """The failure with advice for the operator."""
    if isinstance(failure, rocks.Damaged):
        return rocks.Damaged(f"the catalog is damaged: {failure}. Restore a backup")
    return failure
