"""A note in a log's folder that the log is not what it was: `trouble`, one line of text.

    lost: TEXT       events were lost that may have been acknowledged
    damaged: TEXT    bytes of it can't be read
    parted: TEXT     it has committed events that its leader's log lacks, which has others in their place

A recovery writes the first one before it removes anything, so the loss is known at the next start too, whoever opens
the log meanwhile. The note matters to a broker of a cluster, where other replicas may have these events. It is removed
with the folder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from krappy.store.disk import NO_DESCRIPTOR, OS_DISK, Disk
from krappy.store.format import TROUBLE
from krappy.store.refusals import refusals


class Trouble(StrEnum):
    LOST = "lost"
    DAMAGED = "damaged"
    PARTED = "parted"


def note(folder: Path, trouble: Trouble, text: str, disk: Disk = OS_DISK) -> None:
    """Writes the note; it is on disk when this returns. The note of a loss is never replaced. Raises OSError."""
    known = noted(folder, disk)
    if known is None or known[0] is not Trouble.LOST:
        disk.write_file(folder / TROUBLE, f"{trouble}: {text}\n".encode())
        disk.fsync_dir(folder)


def noted(folder: Path, disk: Disk = OS_DISK) -> tuple[Trouble, str] | None:
    """What is noted. A note that can't be read, or that a crash left empty, counts as a loss. Raises OSError when there
    is no descriptor to read it."""
    try:
        found = disk.read_file(folder / TROUBLE).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise
        return Trouble.LOST, f"the note of its trouble can't be read: {error}"
    kind, _, text = found.partition(": ")
    if kind in (Trouble.DAMAGED, Trouble.PARTED):
        return Trouble(kind), text
    return Trouble.LOST, text or "a recovery was interrupted"


def forget(folder: Path) -> None:
    """From now on the log counts as it is. Raises StorageError."""
    with refusals(folder):
        if (folder / TROUBLE).exists():
            OS_DISK.unlink(folder / TROUBLE)
            OS_DISK.fsync_dir(folder)
