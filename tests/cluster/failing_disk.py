"""A broker whose disk fails or hangs. `failing` starts `krappy serve --data FOLDER …`. While the file FOLDER.fails
exists, a sync fails if the path of the synced file contains the text that is in FOLDER.fails. While FOLDER.hangs
exists, a sync of such a file does not end. While FOLDER.stalls exists, nothing of such a file is in the page cache, and
a read of it does not end."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.process import BrokerProcess, Child, launcher, write_at_once


def failing(arguments: list[str], stdin: int, stdout: int, stderr: int) -> Child:
    return launcher(__name__)(arguments, stdin, stdout, stderr)


def _file(data: Path, trouble: str) -> Path:
    return data.with_name(f"{data.name}.{trouble}")


@contextmanager
def _troubled(broker: BrokerProcess, trouble: str, part: str) -> Iterator[None]:
    file = _file(broker.data, trouble)
    write_at_once(file, part)
    try:
        yield
    finally:
        file.unlink()


def failing_at(broker: BrokerProcess, part: str) -> AbstractContextManager[None]:
    """In this block, syncs of the broker's files fail if their paths contain `part`."""
    return _troubled(broker, "fails", part)


def hanging_at(broker: BrokerProcess, part: str) -> AbstractContextManager[None]:
    """As `failing_at`, but the syncs begin, and end after this block."""
    return _troubled(broker, "hangs", part)


def stalling_at(broker: BrokerProcess, part: str) -> AbstractContextManager[None]:
    """As `hanging_at`, for reads."""
    return _troubled(broker, "stalls", part)


def _names(file: Path, path: str) -> bool:
    try:
        return file.read_text() in path
    except FileNotFoundError:
        return False


def run(arguments: list[str]) -> int:
    """Runs `krappy ARGUMENTS` on a disk that may fail."""
    from krappy.cli.main import run
    from krappy.store.disk import Buffer, File

    data = Path(arguments[arguments.index("--data") + 1])
    fails, hangs, stalls = _file(data, "fails"), _file(data, "hangs"), _file(data, "stalls")
    sync, read, read_now = File.fdatasync, File.pread, File.pread_nowait

    def fdatasync(self: File) -> None:
        path = str(self.path)
        if _names(fails, path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        while _names(hangs, path):
            time.sleep(0.02)
        sync(self)

    def pread(self: File, size: int, position: int) -> bytes:
        while _names(stalls, str(self.path)):
            time.sleep(0.02)
        return read(self, size, position)

    def pread_nowait(self: File, size: int, position: int) -> Buffer:
        if _names(stalls, str(self.path)):
            raise BlockingIOError
        return read_now(self, size, position)

    File.fdatasync = fdatasync  # type: ignore[method-assign]
    File.pread = pread  # type: ignore[method-assign]
    File.pread_nowait = pread_nowait  # type: ignore[method-assign]
    return run(arguments)
