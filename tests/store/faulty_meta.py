"""A meta database whose disk fails once, at a chosen write or sync, and stays failed until the database is opened anew,
as with RocksDB. A sync that fails loses what it should have kept: the kernel drops the pages that it could not write.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from krappy.store import rocks
from krappy.store.meta import Meta


class Faults:
    """When to fail, and what happened; all openings of a database share it."""

    def __init__(self, at: int = -1) -> None:
        self.at = at  # the number of the operation that fails, from 0 on; -1: none
        self.count = 0
        self.happened = ""  # "write" or "sync"
        self.broken = False  # until the database is opened anew
        self.on_failure: Callable[[], None] = lambda: None  # called at the failure
        self.durable: tuple[str, int] = ("", 0)  # the write-ahead log, and how much of it was synced

    def meet(self, kind: str) -> None:
        """Called before each operation. Raises what rocksdict would."""
        if self.count == self.at:
            self.broken, self.happened = True, kind
            self.on_failure()
        self.count += 1
        if self.broken:
            raise Exception("IO error: No space left on device: injected")

    def lose(self, folder: Path) -> None:
        """Loses what was not synced, in a folder that nobody has open."""
        wal = newest_log(folder)
        if wal is not None:
            kept = self.durable[1] if wal.name == self.durable[0] else 0
            os.truncate(wal, min(kept, wal.stat().st_size))


class FaultyMeta(Meta):
    def __init__(self, folder: Path, faults: Faults, *, keep: bool = True) -> None:
        self._faults = faults
        super().__init__(folder, keep=keep)

    def _open(self) -> Any:
        if self._faults.broken:
            self._faults.lose(self.folder)
            self._faults.broken = False
        return _Database(super()._open(), self.folder, self._faults)


class _Database:
    def __init__(self, db: rocks.Rdict, folder: Path, faults: Faults) -> None:
        self._db = db
        self._folder = folder
        self._faults = faults

    def write(self, batch: rocks.WriteBatch) -> None:
        self._faults.meet("write")
        self._db.write(batch)

    def flush_wal(self, sync: bool) -> None:
        self._faults.meet("sync")
        self._db.flush_wal(sync)
        wal = newest_log(self._folder)
        if wal is not None:
            self._faults.durable = wal.name, wal.stat().st_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def newest_log(folder: Path) -> Path | None:
    return max(folder.glob("[0-9]*.log"), default=None)
