"""A broker whose disk fails. `failing` starts `krappy serve --data FOLDER …`. While the file FOLDER.fails exists, a
sync fails if the path of the synced file contains the text that is in FOLDER.fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.process import BrokerProcess, Child, launcher, write_at_once


def failing(arguments: list[str], stdin: int, stdout: int, stderr: int) -> Child:
    return launcher(__name__)(arguments, stdin, stdout, stderr)


def _file(data: Path) -> Path:
    return data.with_name(f"{data.name}.fails")


@contextmanager
def failing_at(broker: BrokerProcess, part: str) -> Iterator[None]:
    """In this block, syncs of the broker's files fail if their paths contain `part`."""
    file = _file(broker.data)
    write_at_once(file, part)
    try:
        yield
    finally:
        file.unlink()


def run(arguments: list[str]) -> int:
    """Runs `krappy ARGUMENTS` on a disk that may fail."""
    from krappy.cli.main import run
    from krappy.store.disk import File

    told = _file(Path(arguments[arguments.index("--data") + 1]))
    sync = File.fdatasync

    def fdatasync(self: File) -> None:
        try:
            part = told.read_text()
        except FileNotFoundError:
            pass
        else:
            if part in str(self.path):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        sync(self)

    File.fdatasync = fdatasync  # type: ignore[method-assign]
    return run(arguments)
