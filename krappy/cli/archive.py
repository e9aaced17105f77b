"""A backup as files: a folder, or one tar archive that may be a pipe. Written, and read, once from front to back.

The last file, `backup.json`, lists all others with their sizes and CRC-32: a backup without it was not finished.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from krappy.cli.errors import Failure

LISTING = "backup.json"
FORMAT = 1
PARTS = ("views", "meta", "staging", "topics")
CHUNK = 1 << 20

Files = Iterator[tuple[str, int, IO[bytes]]]  # name, size, what is in it
Tell = Callable[[str, int], None]  # (what is copied, bytes since the last call)


class Sink(Protocol):
    def add(self, name: str, size: int, source: IO[bytes]) -> None: ...
    def close(self) -> None: ...


class FolderSink:
    """Files below a new folder, each of them on disk before the next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise Failure(f"{folder} is not empty: a backup needs a folder of its own")

    def add(self, name: str, size: int, source: IO[bytes]) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            while chunk := source.read(CHUNK):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        for parent, _, _ in os.walk(self._folder):
            sync_folder(Path(parent))
        sync_folder(self._folder.absolute().parent)


class TarSink:
    def __init__(self, out: IO[bytes]) -> None:
        self._tar = tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._out = out

    def add(self, name: str, size: int, source: IO[bytes]) -> None:
        info = tarfile.TarInfo(name)
        info.size = size
        info.mode = 0o600
        self._tar.addfile(info, source)

    def close(self) -> None:
        self._tar.close()
        self._out.flush()


class Counted(io.RawIOBase):
    """The first `size` bytes of a file, summed and told of as they are read."""

    def __init__(self, file: IO[bytes], name: str, size: int, tell: Tell) -> None:
        self.crc = 0
        self.left = size
        self._file = file
        self._name = name
        self._tell = tell

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(self.left, CHUNK if size < 0 else size))
        self.left -= len(data)
        self.crc = zlib.crc32(data, self.crc)
        self._tell(self._name, len(data))
        return data


def write(sink: Sink, held: Path, manifest: dict[str, Any], tell: Tell) -> None:
    """Copies what a broker holds. Raises Failure when it lets go of it; OSError."""
    listed = []
    for name, size in manifest["files"]:
        try:
            file = (held / name).open("rb")
        except FileNotFoundError:
            raise Failure("the broker has let go of the backup: the connection to it was lost. Start again") from None
        with file:
            source = Counted(file, name, size, tell)
            sink.add(name, size, source)  # type: ignore[arg-type]
        if source.left:
            raise Failure(f"{held / name} is {source.left} bytes shorter than the broker has said")
        listed.append([name, size, source.crc])
    text = json.dumps({**manifest, "files": listed}).encode()
    sink.add(LISTING, len(text), io.BytesIO(text))
    sink.close()


def read_folder(folder: Path) -> Files:
    if not (folder / LISTING).is_file():
        raise Failure(f"{folder} holds no finished backup: there is no {LISTING}")
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            with path.open("rb") as file:
                yield path.relative_to(folder).as_posix(), path.stat().st_size, file


def read_tar(source: IO[bytes]) -> Files:
    with tarfile.open(fileobj=source, mode="r|*") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            if file is not None:
                yield member.name, member.size, file


def unpack(files: Files, folder: Path, tell: Tell) -> dict[str, Any]:
    """Writes them below `folder` and checks them against the listing, which is returned. Raises Failure, OSError."""
    try:
        return _unpack(files, folder, tell)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise Failure(f"this is not a whole backup: {error}") from None


def _unpack(files: Files, folder: Path, tell: Tell) -> dict[str, Any]:
    sums: dict[str, tuple[int, int]] = {}
    listing: dict[str, Any] | None = None
    for name, size, file in files:
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts:
            raise Failure(f"a backup has no file called {name!r}")
        name = str(pure)  # without the ./ that tar likes
        if name == LISTING:
            listing = _listing(file)
            continue
        if pure.parts[0] not in PARTS:
            raise Failure(f"a backup has no file called {name!r}")
        path = folder / pure
        path.parent.mkdir(parents=True, exist_ok=True)
        source = Counted(file, name, size, tell)
        with path.open("xb") as out:
            while chunk := source.read(CHUNK):
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        sums[name] = size, source.crc
    if listing is None:
        raise Failure(f"this backup was not finished: it has no {LISTING}")
    expected = {name: (size, crc) for name, size, crc in listing["files"]}
    if sums != expected:
        wrong = sorted({name for name in sums.keys() | expected.keys() if sums.get(name) != expected.get(name)})
        raise Failure(f"{len(wrong)} files of this backup are not as they were written, such as {wrong[0]}")
    for parent, _, _ in os.walk(folder):
        sync_folder(Path(parent))
    return listing


def _listing(file: IO[bytes]) -> dict[str, Any]:
    try:
        found = json.loads(file.read())
        if found["format"] != FORMAT:
            raise Failure(f"this backup has the format {found['format']!r:.20}, and this version reads {FORMAT}")
        known: dict[str, Any] = {**found, "files": [(str(name), size, crc) for name, size, crc in found["files"]]}
        int(known["taken_ms"])
    except (ValueError, KeyError, TypeError):
        raise Failure(f"this is not a whole backup: its {LISTING} can't be read") from None
    return known


def sync_folder(folder: Path) -> None:
    """Its names are on disk when this returns. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
