"""The files of a backup: how they are called, opened and made.

Names come from others: from a broker, or from whoever made the folder or the archive. So a name leads to no other
place, no link is followed, and nothing but a regular file is read. What is made is for its owner alone, whatever the
umask: a backup has all events, and the users' credentials.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, Self

from krappy.cli.errors import Failure
from krappy.store import lock
from krappy.store.disk import OS_DISK, PRIVATE

LISTING = lock.LISTING
PARTS = ("views", "meta", "staging", "topics", "cluster")
MOST_FILES = 1_000_000  # of a backup
MOST_TOLD = 256 << 20  # bytes of a manifest, which has about 200 for each file
MOST_VALUES = 8 * MOST_FILES  # of a manifest: each takes some hundred bytes of memory, however few it has in the file
MOST_NAME = 512  # characters
LATEST_MS = 253_402_300_799_999  # the end of the year 9999, the last that a calendar has
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # without waiting for the writer of a FIFO
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_STRANGE = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)  # errors of opening a link, a path below a file, and a socket


def check_name(name: object) -> str:
    """The name without the leading ./ that tar may write. Raises Failure when no file of a backup may have this
    name."""
    if isinstance(name, str):
        pure = PurePosixPath(name)
        parts = pure.parts
        if len(name) <= MOST_NAME and name.isprintable() and ".." not in parts and len(parts) > 1 and parts[0] in PARTS:
            return str(pure)
    raise Failure(f"a backup has no file called {name!r:.300}")


def parse(data: bytes) -> Any:
    """JSON that somebody else has written. Raises ValueError, RecursionError."""
    if len(data) > MOST_TOLD or data.count(b",") > MOST_VALUES:
        raise ValueError("it has more than any backup has")
    return json.loads(data)


def read_manifest(data: bytes) -> dict[str, Any]:
    """Reads a broker's manifest. Its `files` are pairs of a valid name and a size, and its `taken_ms` is a time. Raises
    Failure when they are not."""
    if len(data) > MOST_TOLD:
        raise Failure(f"the broker says more than {MOST_TOLD:,} bytes of its files")
    try:
        found: dict[str, Any] = parse(data)
        files = [(name, size) for name, size in found["files"]]
        whole = all(type(size) is int and size >= 0 for _, size in files) and is_time(found["taken_ms"])
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise Failure("what the broker says of its files can't be read")
    if len({check_name(name) for name, _ in files}) < len(files):
        raise Failure("the broker names a file twice")
    return found


def is_time(value: object) -> bool:
    """Whether this is a time, in ms since the epoch, that a calendar has."""
    return type(value) is int and 0 <= value <= LATEST_MS


class SourceFolder:
    """A folder whose files are read, though others may change it at any time."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)

    def open(self, name: str) -> IO[bytes]:
        """Raises OSError, and Failure for anything but a regular file."""
        *folders, last = PurePosixPath(name).parts
        opened: list[int] = []
        try:
            for each in folders:
                opened.append(os.open(each, _DIRECTORY, dir_fd=opened[-1] if opened else self._fd))
            fd = os.open(last, _READ, dir_fd=opened[-1] if opened else self._fd)
        except OSError as error:
            if error.errno in _STRANGE:
                raise self._strange(name) from None
            error.filename = str(self._path / name)
            raise
        finally:
            for each_fd in opened:
                os.close(each_fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise self._strange(name)
        return os.fdopen(fd, "rb")

    def _strange(self, name: str) -> Failure:
        return Failure(f"{self._path / name} is no regular file, or is behind a link: a backup has none of these")

    def names(self) -> Iterator[str]:
        """The names of all files, at any depth. Links to folders are not followed."""
        for parent, _, names in os.walk(self._path):
            for name in names:
                yield (Path(parent) / name).relative_to(self._path).as_posix()


@contextmanager
def create(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """A new file below the folder. Raises OSError, and Failure for a name that no file of a backup has."""
    path = place(folder, name)
    with named(path), os.fdopen(os.open(path, _NEW, 0o600), "wb") as file:
        yield file


@contextmanager
def named(path: Path | str) -> Iterator[None]:
    """Lets an error of reading or writing tell the file's name, which the system does not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def place(folder: Path, name: str) -> Path:
    """Where a file is to be made. Makes the folders that are missing. Raises as `create`."""
    pure = PurePosixPath(name if name == LISTING else check_name(name))
    if not (folder / pure.parent).is_dir():
        for parent in reversed(pure.parents):
            (folder / parent).mkdir(PRIVATE, exist_ok=True)
    return folder / pure


def make_folder(folder: Path) -> None:
    """Makes a folder for backups or data, durably. One that is there keeps its mode. Raises OSError."""
    OS_DISK.mkdir(folder, PRIVATE)
