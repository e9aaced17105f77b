"""What a backup copies: hard links to a broker's files as they are at one moment, while the broker goes on.

    HOLD/manifest.json               every file, and how many of its bytes belong to the backup
    HOLD/views/                      a checkpoint of the views
    HOLD/meta/                       a checkpoint of the catalog, groups and producer ids
    HOLD/staging/                    the files of sealed staged writes
    HOLD/topics/<topic>-<n>/         the segments of each log

Links cost no space and no copy. A file of a closed segment never changes; the active one only grows, and the manifest
says where it ended. The caller must ensure that no log loses events meanwhile, and hold the parts from `views` on in
the order above. So the logs reach at least as far as the views' applied offsets and the groups' positions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from krappy.errors import StorageError
from krappy.store import identity, journal
from krappy.store.format import CHECKPOINT, CHECKPOINT_COPY, LOG, SUFFIXES, file_name
from krappy.store.log import Log
from krappy.store.staging import StagedFiles
from krappy.store.synced import ACCEPT, told

MANIFEST = "manifest.json"
FORMAT = 1
ROLL_BYTES = 64 << 20  # an active segment of this size is closed first, so that the next backup need not copy it again
RESTORING = "restoring"  # below a data folder: files that a restore has not moved into place yet


class HeldFile(NamedTuple):
    name: str  # with /, below the hold's folder
    size: int  # bytes that count, from the first on


def check_whole(data: Path, *, catalog: bool = True) -> None:
    """Raises StorageError for a data folder whose restore was not finished. With `catalog` also for one that has events
    and no catalog, unless the operator has accepted the loss: a broker alone would have no topics, users and ACLs."""
    if (data / RESTORING).exists():
        raise StorageError(f"{data} holds a backup that was not restored to its end: run `krappy restore` again")
    meta, topics = data / "meta", data / "topics"
    is_there = any((meta / name).exists() for name in ("CURRENT", ACCEPT)) or journal.holds_data(meta)
    if catalog and not is_there and topics.is_dir() and identity.unclaimed(topics, set()):
        raise StorageError(told(meta, f"is missing, and {topics} holds events. What it had is lost"))


def hold_log(log: Log, folder: Path) -> None:
    """Links a log's files into `folder`. Blocks; no append may run. Raises StorageError.

    The active segment is linked without its indexes: opening makes them anew from the copy.
    """
    if log.segments[-1].size >= ROLL_BYTES:
        log.roll()
    log.checkpoint()
    try:
        folder.mkdir(parents=True)
        for name in (CHECKPOINT, CHECKPOINT_COPY):
            os.link(log.folder / name, folder / name)
        for number, info in enumerate(log.segments, 1):
            closed = number < len(log.segments)
            for suffix in SUFFIXES if closed else (LOG,):
                name = file_name(info.base_offset, suffix)
                if suffix == LOG or (log.folder / name).exists():
                    os.link(log.folder / name, folder / name)
    except OSError as error:
        raise StorageError(f"holding {log.folder}: {error}") from error


def hold_files(source: Path, folder: Path) -> None:
    """Links every file of `source`, if that folder exists. Raises StorageError."""
    try:
        folder.mkdir(parents=True)
        for path in source.iterdir() if source.is_dir() else ():
            if path.is_file():
                os.link(path, folder / path.name)
    except OSError as error:
        raise StorageError(f"holding {source}: {error}") from error


def hold_staged(files: StagedFiles, folder: Path) -> None:
    """Links the staged files. Raises StorageError."""
    try:
        folder.mkdir(parents=True)
        for path in files.folder.iterdir():
            with suppress(FileNotFoundError):  # a removal had begun before; nothing in the backup needs the file
                os.link(path, folder / path.name)
    except OSError as error:
        raise StorageError(f"holding {files.folder}: {error}") from error


def write(path: Path, data: bytes) -> None:
    """Adds a file of the backup's own. Raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise StorageError(f"holding {path}: {error}") from error


def read(path: Path, offset: int, size: int) -> bytes:
    """Some bytes of a held file. Raises StorageError."""
    try:
        with path.open("rb") as file:
            return os.pread(file.fileno(), size, offset)
    except OSError as error:
        raise StorageError(f"reading {path}: {error}") from error


def finish(folder: Path, facts: dict[str, Any]) -> list[HeldFile]:
    """Writes the manifest of all that is held, with `facts`, and for each file the inode and mtime (ns). Returns the
    files. Raises StorageError."""
    try:
        found = [(path.relative_to(folder).as_posix(), path.stat()) for path in _files(folder)]
        files = [HeldFile(name, stat.st_size) for name, stat in found]
        origins = {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found}
        (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, **facts, "files": files, "origins": origins}))
    except OSError as error:
        raise StorageError(f"holding {folder}: {error}") from error
    return files


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            yield Path(parent) / name
