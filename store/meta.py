"""The second database: what can't be derived from the logs. Small, and with a write-ahead log.

A write is in the log file when `put`, `delete` or `write` returns, so it survives the death of the process; it
survives the loss of power once a `sync` that began after it is done. Values are msgpack, chosen by their owners:
catalog.py and groups.py. VIEWS.md lists the keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from krappy.store import rocks


class Meta:
    """Bytes by bytes keys, in key order. Safe to call from several threads."""

    def __init__(self, folder: Path) -> None:
        """Opens or creates the database. Raises StorageError."""
        self.folder = folder
        self._db = rocks.open_db(folder, cache_bytes=2 << 20, memtable_bytes=8 << 20, open_files=64)

    def close(self) -> None:
        """Syncs and closes. Closing again does nothing."""
        try:
            self._db.flush_wal(sync=True)
            self._db.close()
        except rocks.DbClosedError:
            return
        except Exception as error:
            raise rocks.failure("closing the catalog", error) from error

    def get(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._db.get(key)
        except Exception as error:
            raise rocks.failure("reading the catalog", error) from error
        return found

    def put(self, key: bytes, value: bytes) -> None:
        try:
            self._db.put(key, value)
        except Exception as error:
            raise rocks.failure("writing the catalog", error) from error

    def delete(self, key: bytes) -> None:
        try:
            self._db.delete(key)
        except Exception as error:
            raise rocks.failure("writing the catalog", error) from error

    def write(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        """All of it or nothing. A key in both is deleted."""
        batch = rocks.batch()
        for key, value in puts.items():
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        try:
            self._db.write(batch)
        except Exception as error:
            raise rocks.failure("writing the catalog", error) from error

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every key that begins with `prefix` and its value, in key order, as of the first one asked for."""
        try:
            found: Any
            for found in self._db.items(from_key=prefix):
                if not found[0].startswith(prefix):
                    return
                yield found
        except Exception as error:
            raise rocks.failure("reading the catalog", error) from error

    def checkpoint(self, folder: Path) -> None:
        """A copy of the database as it is now in a new folder, of hard links where it can be. Raises StorageError."""
        try:
            rocks.Checkpoint(self._db).create_checkpoint(os.fspath(folder))
        except Exception as error:
            raise rocks.failure("copying the catalog", error) from error

    def sync(self) -> None:
        """Everything written before this call is on disk when it returns. Releases the GIL: call it in a worker."""
        try:
            self._db.flush_wal(sync=True)
        except Exception as error:
            raise rocks.failure("syncing the catalog", error) from error
