"""A database that is made or opened anew while others use it, because its files or its disk have failed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from krappy.errors import StorageError
from krappy.store import rocks
from krappy.store.disk import OS_DISK, UNREADABLE

STALL_LIMIT_S = 60.0
RENEWING = "the tables are being made anew, because their files were damaged; try again"
REOPENING = "the tables are being opened anew, because the disk had refused a write; try again"


class Renewable:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged = ""  # what damage was found: the views can only be made anew; empty: none
        self.doubtful: Path | None = None  # a table file that the disk failed to read once
        self.stuck = ""  # which write the disk refused: RocksDB takes no more until it is opened anew; empty: none
        self._waits = RENEWING  # why there is no database, while `_open` is None
        self._leaving = ""  # why changes that need the views are refused; empty: they are not
        self._open: rocks.Rdict | None = None
        self._made: rocks.Rdict | None = None

    @property
    def _db(self) -> rocks.Rdict:
        """The open database. Raises StorageError while there is none."""
        db = self._open
        if db is None:
            raise StorageError(self._waits)
        return db

    def _failure(self, what: str, error: Exception) -> Exception:
        found = rocks.failure(what, error)
        if isinstance(found, rocks.Damaged):
            self.damaged = str(found)
        self.doubtful = rocks.refused_file(error) or self.doubtful
        return found

    def _refusal(self, what: str, error: Exception) -> Exception:
        """The error to raise for a failed write. On a full disk RocksDB recovers by itself; after any other refusal it
        has to be opened anew, so `stuck` is set."""
        found = self._failure(what, error)
        if isinstance(found, StorageError) and "IO error" in found.text and "No space left" not in found.text:
            self.stuck = found.text
        return found

    def _new(self) -> rocks.Rdict:
        """Opens the database in `folder`, or makes it. Raises StorageError."""
        raise NotImplementedError

    def _let_go(self) -> rocks.Rdict | None:
        """Ends the use of the open database, and gives it away."""
        old, self._open = self._open, None
        return old

    def leave(self, why: str) -> None:
        """The views are about to be made or opened anew: `check` refuses until `begin`."""
        self._leaving = why

    def check(self) -> None:
        """Called before a change that needs the views. Raises StorageError while they are made or opened anew."""
        if self._leaving:
            raise StorageError(self._leaving)

    def look_at_doubtful(self) -> None:
        """Reads the `doubtful` file again: if the disk can't read it, the views are `damaged`. Blocks."""
        file, self.doubtful = self.doubtful, None
        if file is None:
            return
        try:
            OS_DISK.read_through(file)
        except FileNotFoundError:
            return  # a compaction has replaced it
        except OSError as error:
            if error.errno in UNREADABLE:
                self.damaged = self.damaged or f"{file} can't be read: {error.strerror or error}"

    def throw_away(self) -> None:
        """Closes and deletes all views, and makes a new database. Until `begin` every call raises StorageError. Blocks.

        Raises StorageError when the disk refuses; then it may be called again.
        """
        self._end(RENEWING)
        self._make(self._empty)

    def set_aside(self, aside: Path) -> None:
        """Renames the folder of the views to `aside`, and begins with new, empty views. Raises StorageError."""
        self._end(RENEWING)
        gc.collect()
        try:
            self.folder.rename(aside)
        except OSError as error:
            raise StorageError(f"{self.folder} can't be renamed: {error}") from error
        self._make(self._new)
        self.begin()

    def reopen(self) -> None:
        """As `throw_away`, but keeps the files: only what was not flushed is lost."""
        self._end(REOPENING)
        self._make(self._new)

    def _end(self, why: str) -> None:
        self._waits = why
        old = self._let_go()
        if old is not None:
            with suppress(Exception):  # its flush may fail; unflushed entries are not needed
                old.close()

    def _empty(self) -> rocks.Rdict:
        """A new database. The folder is removed at each try: the old database may write into it while it closes."""
        try:
            OS_DISK.remove_folder(self.folder)
        except OSError as error:
            raise StorageError(f"{self.folder} can't be removed: {error}") from error
        return self._new()

    def _make(self, opened: Callable[[], rocks.Rdict]) -> None:
        deadline = time.monotonic() + STALL_LIMIT_S
        while True:
            try:
                self._made = opened()
                return
            except StorageError:  # a read in another thread may hold the old one for a moment
                if time.monotonic() > deadline:
                    raise
            gc.collect()  # an error of a read may hold it too: its traceback has an iterator
            time.sleep(0.05)

    def begin(self) -> None:
        """Serves the new database. After `throw_away` every view is at offset 0, after `reopen` as it was last
        flushed."""
        self._open, self._made, self.damaged, self.stuck, self.doubtful = self._made, None, "", "", None
        self._leaving = ""
