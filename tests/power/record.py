"""Reads the record of all changes that processes make to the files below a folder. tests/power/shim.c writes it."""

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
    """The kinds of entries, as in shim.c."""

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
    end: int  # the record's length in bytes up to the end of this entry: the moment of the change
    kind: Kind
    inode: int
    other: int
    data: bytes


def compiler() -> str:
    """The C compiler. Skips the test, with the reason, if nothing can be recorded on this machine."""
    found = shutil.which("cc") or shutil.which("gcc")
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        pytest.skip("records what a process does to its files by what it calls of glibc: needs Linux with glibc")
    if found is None:
        pytest.skip("needs a C compiler to record what RocksDB does to its files: apt-get install gcc libc6-dev")
    return found


def build(folder: Path, source: Path = SHIM) -> Path:
    """Compiles a shim into a library in `folder`; returns its path."""
    library = folder / f"{source.stem}.so"
    command = [compiler(), "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


class Record:
    """A context manager. `root`: the folder whose changes are recorded; the record and the library are beside it.
    `library`: the shim, if it is built already."""

    def __init__(self, root: Path, library: Path | None = None) -> None:
        self.root = root
        self.path = root.with_name(f"{root.name}.record")
        self.path.touch()
        self._library = library or build(root.parent)
        self._fd = os.open(self.path, os.O_RDONLY)

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def environ(self) -> dict[str, str]:
        """The environment variables of a process whose changes are recorded."""
        return {
            "LD_PRELOAD": str(self._library),
            "POWER_RECORD": str(self.path),
            "POWER_ROOT": str(self.root),
        }

    def moment(self) -> int:
        """The record's length now. The entries of all changes before this call end at or before it. So a loss of power
        at this moment, or later, must keep what was acknowledged before this call."""
        return os.fstat(self._fd).st_size

    def entries(self) -> Iterator[Entry]:
        with self.path.open("rb") as file:
            end = 0
            while head := file.read(HEAD.size):
                size, kind, inode, other = HEAD.unpack(head)
                end += size
                yield Entry(end, Kind(kind), inode, other, file.read(size - HEAD.size))
