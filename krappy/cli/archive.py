"""Writes and reads backups: a folder, or one tar archive, which may be a pipe and so is read and written in order.

The last file, `backup.json`, lists all others with their sizes and CRC-32; a backup without it is unfinished. It also
says which file of the broker each was copied from, by inode and mtime. Closed segments and files of tables never
change. A later backup beside it has hard links to those that are still the same, and does not copy them.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from krappy.cli import backup_files, tar_stream
from krappy.cli.backup_files import SourceFolder
from krappy.cli.errors import Failure
from krappy.store.disk import OS_DISK, PRIVATE

LISTING = backup_files.LISTING
FORMAT = 1
CLUSTER_FORMAT = 2  # of a cluster's backup: see cluster_backup.py
CHUNK = 1 << 20
RESERVE = 1 << 30  # bytes that a restore leaves free; of a small disk only one part in RESERVED_PART
RESERVED_PART = 20
REMOVED = "what was written is removed again. If the backup is yours, and no bomb, restore to a larger disk"
WRITE_OUT = 8 << 20  # at most so many bytes wait for the disk, because the broker's syncs wait for them too

Files = Iterator[tuple[str, int, IO[bytes]]]  # name, size, open file
Tell = Callable[[str, int], None]  # (name of the file, bytes since the last call)


Origin = tuple[int | str, ...]  # inode and mtime (ns) of a file that was copied whole; in a cluster, the folder's id


class Earlier(NamedTuple):
    """A finished backup. A later one shares those of its files that have not changed."""

    folder: Path
    files: Mapping[str, tuple[int, int]]  # name -> size, CRC-32
    origins: Mapping[str, Origin]

    def same(self, name: str, size: int, origin: Origin | None) -> int | None:
        """The CRC-32 of the backup's file of this name, if it was copied from `origin`; None: there is no such file."""
        if origin is None or self.origins.get(name) != origin or self.files[name][0] != size:
            return None
        try:
            whole = (self.folder / name).stat().st_size == size
        except OSError:
            whole = False
        return self.files[name][1] if whole else None


class Written(NamedTuple):
    """How many bytes of a backup were copied, and how many are in files that it shares with an earlier backup."""

    copied: int
    shared: int


class Sink(Protocol):
    """Takes the files of a backup, in order."""

    def add(self, name: str, size: int, source: IO[bytes]) -> None: ...
    def share(self, name: str, earlier: Path) -> bool: ...
    def close(self) -> None: ...


class FolderSink:
    """Writes files below a new folder, and syncs each before the next. Raises Failure when the folder is not empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        OS_DISK.settle(folder, PRIVATE)
        if any(folder.iterdir()):
            raise Failure(f"{folder} is not empty: a backup needs a new folder")

    def share(self, name: str, earlier: Path) -> bool:
        """Links the file to `earlier`. Returns whether that worked."""
        path = backup_files.place(self._folder, name)
        try:
            os.link(earlier, path)
        except OSError:  # a file system without hard links, or the file has too many
            return False
        return True

    def add(self, name: str, size: int, source: IO[bytes]) -> None:
        with backup_files.create(self._folder, name) as file:
            written = begun = 0
            while chunk := source.read(CHUNK):
                file.write(chunk)
                written += len(chunk)
                if written - begun >= WRITE_OUT:
                    file.flush()
                    # Starts writing to disk, and keeps the copy from evicting the broker's data from the page cache.
                    os.posix_fadvise(file.fileno(), begun, written - begun, os.POSIX_FADV_DONTNEED)
                    begun = written
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        for parent, _, _ in os.walk(self._folder):
            OS_DISK.fsync_dir(Path(parent))
        OS_DISK.fsync_dir(self._folder.absolute().parent)


class _Until:
    """A file to write to, up to its first error. Python's tarfile writes again when it is forgotten, and a second error
    would be printed below the command's own."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out: IO[bytes] | None = out

    def write(self, data: bytes) -> int:
        out, self._out = self._out, None
        if out is None:
            return len(data)
        count = out.write(data)
        self._out = out
        return count


class TarSink:
    """Writes files to a tar archive, which may be a pipe. It shares none."""

    def __init__(self, out: IO[bytes]) -> None:
        self._tar = tarfile.open(fileobj=cast("IO[bytes]", _Until(out)), mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._out = out

    def add(self, name: str, size: int, source: IO[bytes]) -> None:
        info = tarfile.TarInfo(name)
        info.size = size
        info.mode = 0o600
        self._tar.addfile(info, source)

    def share(self, name: str, earlier: Path) -> bool:
        return False

    def close(self) -> None:
        self._tar.close()
        self._out.flush()
        try:
            os.fsync(self._out.fileno())
        except OSError as error:  # a pipe can't be synced; a file in memory has no descriptor (errno None)
            if error.errno not in (None, errno.EINVAL, errno.ENOTSUP):
                raise


class Counted(io.RawIOBase):
    """Reads the first `size` bytes of a file, computes their CRC-32, and reports them to `tell` as they are read."""

    def __init__(self, file: IO[bytes], name: str, size: int, tell: Tell) -> None:
        self.crc = 0
        self.left = size
        self._file = file
        self._name = name
        self._tell = tell

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        with backup_files.named(self._name):
            data = self._file.read(min(self.left, CHUNK if size < 0 else size))
        self.left -= len(data)
        self.crc = zlib.crc32(data, self.crc)
        self._tell(self._name, len(data))
        return data


def write(
    sink: Sink,
    held: Path,
    manifest: dict[str, Any],
    tell: Tell,
    earlier: Earlier | None = None,
    pace: Callable[[int], None] = lambda count: None,
) -> Written:
    """Copies the files that a broker holds in `held`, or shares them with an earlier backup. Raises OSError, and
    Failure when the broker has released the files.

    `pace` is called with the number of bytes of each piece copied, and may wait, to limit the rate.
    """

    def copied(name: str, count: int) -> None:
        tell(name, count)
        pace(count)

    listed = []
    origins: dict[str, Origin] = {}
    shared = 0
    for name, size, file in _held(held, manifest):
        origin = _origin(file, size)
        if origin is not None:
            origins[name] = origin
        crc = None if earlier is None else earlier.same(name, size, origin)
        if earlier is not None and crc is not None and sink.share(name, earlier.folder / name):
            shared += size
            tell(name, size)
        else:
            source = Counted(file, name, size, copied)
            sink.add(name, size, source)  # type: ignore[arg-type]
            if source.left:
                raise Failure(f"{held / name} is {source.left} bytes shorter than the broker said")
            crc = source.crc
        listed.append([name, size, crc])
    text = json.dumps({**manifest, "files": listed, "origins": origins}).encode()
    sink.add(LISTING, len(text), io.BytesIO(text))
    sink.close()
    return Written(sum(size for _, size in manifest["files"]) - shared, shared)


def unshared(held: Path, manifest: dict[str, Any], earlier: Earlier | None) -> int:
    """How many bytes `write` will copy. Raises as `write`."""
    return sum(
        size
        for name, size, file in _held(held, manifest)
        if earlier is None or earlier.same(name, size, _origin(file, size)) is None
    )


def _held(held: Path, manifest: dict[str, Any]) -> Files:
    """The files that a broker holds. Each is open until the next one is asked for. Raises OSError, Failure."""
    try:
        with SourceFolder(held) as folder:
            for name, size in manifest["files"]:
                with folder.open(backup_files.check_name(name)) as file:
                    yield name, size, file
    except FileNotFoundError:
        raise Failure("the broker released the backup, since the connection to it was lost: start again") from None


def _origin(file: IO[bytes], size: int) -> Origin | None:
    """The file's inode and mtime; None for a file that is still growing, of which only `size` bytes count."""
    found = os.fstat(file.fileno())
    return (found.st_ino, found.st_mtime_ns) if found.st_size == size else None


def earlier(folder: Path) -> Earlier:
    """Opens a finished backup in a folder. Raises Failure, OSError."""
    with (folder / LISTING).open("rb") as file:
        listing = _listing(file)
    files = {name: (size, crc) for name, size, crc in listing["files"]}
    try:
        known = {name: tuple(origin) for name, origin in listing["origins"].items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        known = {}  # written by a version without origins: nothing is shared with it
    origins = {name: origin for name, origin in known.items() if name in files}
    return Earlier(folder, files, origins)


def read_folder(folder: Path) -> Files:
    """The files of a backup in a folder. Raises Failure when it is unfinished."""
    if not (folder / LISTING).is_file():
        raise Failure(f"{folder} has no finished backup: there is no {LISTING}")
    with SourceFolder(folder) as opened:
        for name in opened.names():
            with opened.open(name) as file:
                yield name, os.fstat(file.fileno()).st_size, file


def read_tar(path: Path) -> Files:
    with path.open("rb") as file:
        yield from tar_stream.files(file)


def unpack(files: Files, folder: Path, tell: Tell) -> dict[str, Any]:
    """Writes the files below `folder`, checks them against the listing, and returns it. Raises Failure, OSError."""
    try:
        return _unpack(files, folder, tell)
    except tar_stream.DAMAGE as error:
        raise Failure(f"this is not a whole backup: {error}") from None


def check(files: Files, tell: Tell) -> tuple[dict[str, Any], list[str]]:
    """The listing of a backup, and the names of the files that differ from it. Raises Failure, OSError."""
    try:
        return _look(files, None, tell)
    except tar_stream.DAMAGE as error:
        raise Failure(f"this is not a whole backup: {error}") from None


def _unpack(files: Files, folder: Path, tell: Tell) -> dict[str, Any]:
    listing, wrong = _look(files, folder, tell)
    if wrong:
        raise Failure(f"{len(wrong)} files of this backup are not as they were written, such as {wrong[0]}")
    for parent, _, _ in os.walk(folder):
        OS_DISK.fsync_dir(Path(parent))
    return listing


def _look(files: Files, folder: Path | None, tell: Tell) -> tuple[dict[str, Any], list[str]]:
    """Reads a whole backup, and writes it below `folder` unless that is None. Returns as `check` does."""
    sums: dict[str, tuple[int, int]] = {}
    listing: dict[str, Any] | None = None
    for name, size, file in files:
        if name.removeprefix("./") == LISTING:
            listing = _listing(file)
            continue
        name = backup_files.check_name(name)
        if name in sums:
            raise Failure(f"this is no backup: it has {name} twice")
        if len(sums) == backup_files.MOST_FILES:
            raise Failure(f"this is no backup: it has more than {len(sums):,} files")
        source = Counted(file, name, size, tell)
        if folder is None:
            while source.read(CHUNK):
                pass
        else:
            check_room(folder, size, reserve=True, done=REMOVED)
            _save(source, folder, name)
        sums[name] = size, source.crc
    if listing is None:
        raise Failure(f"this backup was not finished: it has no {LISTING}")
    expected = {name: (size, crc) for name, size, crc in listing["files"]}
    return listing, sorted({name for name in sums.keys() | expected.keys() if sums.get(name) != expected.get(name)})


def _save(source: Counted, folder: Path, name: str) -> None:
    with backup_files.create(folder, name) as out:
        while chunk := source.read(CHUNK):
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())


def _listing(file: IO[bytes]) -> dict[str, Any]:
    try:
        found = backup_files.parse(file.read(backup_files.MOST_TOLD + 1))
        if found["format"] not in (FORMAT, CLUSTER_FORMAT):
            newest = CLUSTER_FORMAT
            raise Failure(f"this backup has format {found['format']!r:.20}, but this version reads format {newest}")
        known: dict[str, Any] = {**found, "files": [(str(name), size, crc) for name, size, crc in found["files"]]}
        if not backup_files.is_time(known["taken_ms"]):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Failure(f"this is not a whole backup: its {LISTING} can't be read") from None
    return known


def files_of(source: str) -> Files:
    """The files of a backup: of a folder, of a tar archive, or of one on stdin (`-`). Raises Failure."""
    if source == "-":
        return tar_stream.files(sys.stdin.buffer)
    path = Path(source)
    if path.is_dir():
        return read_folder(path)
    if not path.is_file():
        raise Failure(f"there is no backup {source}")
    return read_tar(path)


def size_of(source: str) -> int:
    """How many bytes a backup takes on disk; 0 for a pipe."""
    path = Path(source)
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size if path.is_file() else 0


def check_room(target: Path, needed: int, *, reserve: bool = False, done: str = "nothing was written") -> None:
    """Raises Failure when the disk of `target` has fewer than `needed` bytes free: better now than after an hour.
    `reserve`: some of the disk is to stay free. `done`: what the message says of what was written before."""
    place = target.absolute()
    while not place.exists():
        place = place.parent
    disk = shutil.disk_usage(place)
    kept = min(RESERVE, disk.total // RESERVED_PART) if reserve else 0
    if disk.free < needed + kept:
        but = f", and {kept:,} of them stay free" if kept else ""
        raise Failure(f"{place} has {disk.free:,} bytes free{but}, but {needed:,} are needed: {done}")
