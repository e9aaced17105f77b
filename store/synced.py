"""Notes beside the catalog how far it is on disk, so that a start can tell whether it has lost changes.

    DATA/meta/SYNCED        8 bytes "KRAPPYS1", then u64 RocksDB's sequence number, then u32 CRC-32 (zlib's) of those 16
    DATA/meta/accept-loss   made by the operator: go on with what is left

RocksDB takes a damaged place in its write-ahead log for the log's end, because a loss of power leaves such an end. All
changes behind it are lost without a word. So the number of the last synced change is noted after each sync. The note
itself is synced only when the catalog is closed. Before that the system writes it when it likes, so it may be behind,
but never ahead. A note that can't be read is ignored.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

NAME = "SYNCED"
ACCEPT = "accept-loss"
MAGIC = b"KRAPPYS1"
_NOTE = struct.Struct(">8sQ")
_CRC = struct.Struct(">I")


def told(folder: Path, what: str) -> str:
    """Tells the operator of a loss, and what to do. Nobody has accepted it yet."""
    return (
        f"the catalog in {folder} {what}: topics, settings, positions of groups, transactions. Nothing was changed. "
        f"Restore a backup; or, to go on without what is lost, make the file {folder / ACCEPT}: folders of topics that "
        "are not known any more then stay as they are"
    )


class Synced:
    """The note in a database's folder. Blocks. A write that the disk refuses is skipped: then the note is behind."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._accept = folder / ACCEPT
        self._fd = -1

    def read(self) -> int:
        """The sequence number of the last change that is known to have been on disk; 0: nothing is known."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return 0
        if (
            len(data) != _NOTE.size + _CRC.size
            or zlib.crc32(data[: _NOTE.size]) != _CRC.unpack_from(data, _NOTE.size)[0]
        ):
            return 0
        magic, number = _NOTE.unpack_from(data)
        return int(number) if magic == MAGIC else 0

    def accepted(self) -> bool:
        """Whether the operator has accepted the loss."""
        return self._accept.exists()

    def write(self, number: int, *, sync: bool = False) -> None:
        """Overwrites the note in place, within one sector."""
        note = _NOTE.pack(MAGIC, number)
        with suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, note + _CRC.pack(zlib.crc32(note)), 0)
            if sync:
                os.fsync(self._fd)

    def close(self) -> None:
        """Closes the file. To be called after a `write` with `sync`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def accept(self) -> None:
        """Deletes the note and the operator's file: the loss is accepted and dealt with."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            self._accept.unlink(missing_ok=True)
