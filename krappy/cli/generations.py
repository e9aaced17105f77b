"""A folder of backups, one for each time, which share the files that are the same in them as hard links.

FOLDER/2026-01-31T03-17-00.000Z/     a whole backup, named by its moment: any of them may be deleted
FOLDER/.unfinished/                  one that is being made, or was cut short: the next run removes it
FOLDER/.removed/                     one that is being deleted
FOLDER/lock                          held while one is made
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from krappy.cli import archive
from krappy.cli.errors import Failure
from krappy.errors import StorageError
from krappy.store.disk import OS_DISK
from krappy.store.lock import FolderLock

UNFINISHED, REMOVED, LOCK = ".unfinished", ".removed", "lock"
OURS = (UNFINISHED, REMOVED, LOCK, "lost+found")


def list_all(folder: Path) -> list[Path]:
    """The finished backups in it, the newest last."""
    if not folder.is_dir():
        return []
    return sorted(each for each in folder.iterdir() if each.name not in OURS and (each / archive.LISTING).is_file())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Raises Failure for a folder of something else, or one in which another backup is being made."""
    OS_DISK.mkdir(folder)
    if (folder / archive.LISTING).exists():
        raise Failure(f"{folder} is one backup: those that share files need a folder around them")
    strange = [each.name for each in folder.iterdir() if each.name not in OURS and not each.is_dir()]
    if strange:
        raise Failure(
            f"{folder} holds other things than backups, such as '{strange[0]}': give them a folder of their own"
        )
    try:
        lock = FolderLock(folder)
    except StorageError:
        raise Failure(f"another backup is being made in {folder}") from None
    try:
        for name in (UNFINISHED, REMOVED):
            shutil.rmtree(folder / name, ignore_errors=True)
        yield
    finally:
        lock.release()


def finish(folder: Path, taken_ms: int) -> Path:
    """Gives the backup that was made its name: from here on it counts. Raises OSError."""
    moment = datetime.fromtimestamp(taken_ms / 1000, UTC)
    name = moment.strftime("%Y-%m-%dT%H-%M-%S.") + f"{taken_ms % 1000:03}Z"
    (folder / UNFINISHED).rename(folder / name)
    OS_DISK.fsync_dir(folder)
    return folder / name


def thin_out(folder: Path, keep: int) -> list[Path]:
    """Deletes the oldest but `keep`; those that went. Raises OSError."""
    gone = list_all(folder)[:-keep]
    for each in gone:
        each.rename(folder / REMOVED)  # so that no half of one is ever taken for a whole,
        OS_DISK.fsync_dir(folder)  # not after a loss of power either
        shutil.rmtree(folder / REMOVED)
    return gone
