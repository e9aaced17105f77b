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
from datetime import UTC, datetime, timedelta
from pathlib import Path

from krappy.cli import archive
from krappy.cli.errors import Failure
from krappy.errors import StorageError
from krappy.store.disk import OS_DISK
from krappy.store.lock import FolderLock

UNFINISHED, REMOVED, LOCK = ".unfinished", ".removed", "lock"
FORM = "%Y-%m-%dT%H-%M-%S.%fZ"  # of a name
OURS = (UNFINISHED, REMOVED, LOCK, "lost+found")


def list_all(folder: Path) -> list[Path]:
    """The finished backups in it, the newest last; those that people gave other names come first."""
    if not folder.is_dir():
        return []
    found = [each for each in folder.iterdir() if each.name not in OURS and (each / archive.LISTING).is_file()]
    return sorted(found, key=lambda each: (_moment(each.name) is not None, each.name))


def _moment(name: str) -> datetime | None:
    """Of a backup's name; None: it is no such name."""
    try:
        return datetime.strptime(name, FORM).replace(tzinfo=UTC)
    except ValueError:
        return None


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
    """Gives the backup that was made its name: from here on it counts. Raises OSError.

    It is the newest by its name too, whatever the clock says: that may have been set back.
    """
    moment = datetime.fromtimestamp(taken_ms // 1000, UTC) + timedelta(milliseconds=taken_ms % 1000)
    for each in list_all(folder)[-1:]:
        moment = max(moment, (_moment(each.name) or moment) + timedelta(milliseconds=1))
    name = moment.strftime("%Y-%m-%dT%H-%M-%S.") + f"{moment.microsecond // 1000:03}Z"
    (folder / UNFINISHED).rename(folder / name)
    OS_DISK.fsync_dir(folder)
    return folder / name


def thin_out(folder: Path, keep: int) -> list[Path]:
    """Deletes the oldest but `keep`; those that went. Raises OSError."""
    gone = [each for each in list_all(folder) if _moment(each.name) is not None][:-keep]
    for each in gone:
        each.rename(folder / REMOVED)  # so that no half of one is ever taken for a whole,
        OS_DISK.fsync_dir(folder)  # not after a loss of power either
        shutil.rmtree(folder / REMOVED)
    return gone
