"""A folder of backups that share equal files as hard links.

FOLDER/2026-01-31T03-17-00.000Z/     a whole backup, named by its time: any of them may be deleted
FOLDER/.unfinished/                  a backup being made, or one that was interrupted: the next run removes it
FOLDER/.removed/                     a backup being deleted
FOLDER/lock                          locked while a backup is made
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from krappy.cli import archive, backup_files
from krappy.cli.errors import Failure
from krappy.errors import StorageError
from krappy.store.disk import OS_DISK
from krappy.store.lock import FolderLock

UNFINISHED, REMOVED, LOCK = ".unfinished", ".removed", "lock"
FORM = "%Y-%m-%dT%H-%M-%S.%fZ"  # of a backup's name
OURS = (UNFINISHED, REMOVED, LOCK, "lost+found")


def list_all(folder: Path) -> list[Path]:
    """The finished backups in the folder, the newest last. Those with other names, which people gave, come first."""
    if not folder.is_dir():
        return []
    found = [each for each in folder.iterdir() if each.name not in OURS and (each / archive.LISTING).is_file()]
    return sorted(found, key=lambda each: (_moment(each.name) is not None, each.name))


def _moment(name: str) -> datetime | None:
    """The time in a backup's name; None for other names."""
    try:
        return datetime.strptime(name, FORM).replace(tzinfo=UTC)
    except ValueError:
        return None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Creates and locks a folder of backups, and removes what interrupted runs left. Raises Failure when it holds other
    things, or while another backup is being made there."""
    backup_files.make_folder(folder)
    if (folder / archive.LISTING).exists():
        raise Failure(f"{folder} is itself a backup: give the folder that holds the backups")
    strange = [each.name for each in folder.iterdir() if each.name not in OURS and not each.is_dir()]
    if strange:
        raise Failure(
            f"{folder} holds other things than backups, such as '{strange[0]}': give a folder for backups alone"
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
    """Names the backup that was just made, which makes it a finished one, and returns its folder. Raises OSError.

    Its name is later than all others, even if the clock was set back.
    """
    moment = datetime.fromtimestamp(taken_ms // 1000, UTC) + timedelta(milliseconds=taken_ms % 1000)
    for each in list_all(folder)[-1:]:
        moment = max(moment, (_moment(each.name) or moment) + timedelta(milliseconds=1))
    name = moment.strftime("%Y-%m-%dT%H-%M-%S.") + f"{moment.microsecond // 1000:03}Z"
    (folder / UNFINISHED).rename(folder / name)
    OS_DISK.fsync_dir(folder)
    return folder / name


def thin_out(folder: Path, keep: int) -> list[Path]:
    """Deletes all backups but the newest `keep`, and returns those deleted. Keeps other names. Raises OSError."""
    gone = [each for each in list_all(folder) if _moment(each.name) is not None][:-keep]
    for each in gone:
        each.rename(folder / REMOVED)  # so that a half-deleted backup is never taken for a whole one,
        OS_DISK.fsync_dir(folder)  # not even after a loss of power
        shutil.rmtree(folder / REMOVED)
    return gone
