"""The record of all that processes did to the files below a folder: made by tests/power/shim.c, read here."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import pytest

SHIM = Path(__file__).with_name("shim.c")
HEAD = Struct("=IIQQ")


class Kind(IntEnum):
    """As in shim.c."""

    MADE_FILE = 1
    MADE_FOLDER = 2
    LINKED = 3
    REMOVED = 4
    RENAMED = 5
    WRITTEN = 6
    TRUNCATED = 7
    SYNCED = 8
    UNKNOWN = 9


class Entry(NamedTuple):
    end: int  # of the record, in bytes, with this entry: the moment at which it was done
    kind: Kind
    inode: int
    other: int
    data: bytes


def compiler() -> str:
    """Skips the test where nothing can be recorded, and says why."""
    found = shutil.which("cc") or shutil.which("gcc")
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        pytest.skip("records what a process does to its files by what it calls of glibc: needs Linux with glibc")
    if found is None:
        pytest.skip("needs a C compiler to record what RocksDB does to its files: apt-get install gcc libc6-dev")
    return found


def build(folder: Path) -> Path:
    """The shim as a library in `folder`."""
    library = folder / "shim.so"
    command = [compiler(), "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread", "-o", str(library), str(SHIM)]
    subprocess.run(command, check=True)
    return library


class Record:
    """`root`: the folder that is followed. The record and the library lie beside it. A context manager."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root.with_name(f"{root.name}.record")
        self.path.touch()
        self._library = build(root.parent)
        self._fd = os.open(self.path, os.O_RDONLY)

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def environ(self) -> dict[str, str]:
        """For a process whose doings are to be recorded."""
        return {
            "LD_PRELOAD": str(self._library),
            "POWER_RECORD": str(self.path),
            "POWER_ROOT": str(self.root),
        }

    def moment(self) -> int:
        """All that was done before this call is below it; what was answered before is promised from it on."""
        return os.fstat(self._fd).st_size

    def entries(self) -> Iterator[Entry]:
        with self.path.open("rb") as file:
            end = 0
            while head := file.read(HEAD.size):
                size, kind, inode, other = HEAD.unpack(head)
                end += size
                yield Entry(end, Kind(kind), inode, other, file.read(size - HEAD.size))
