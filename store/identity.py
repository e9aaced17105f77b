"""Which topic a partition's folder belongs to: its file `partition.metadata`, as in Kafka (KIP-516).

    version: 0
    topic_id: 5vJY2mJxSJu0ZZ5iVTvfQg

A new topic under an old name has another id, so it never adopts the old topic's events. The file is written, without a
sync, when a folder without one is opened. A missing or unreadable file is ignored.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from krappy.errors import StorageError
from krappy.store.disk import OS_DISK
from krappy.store.format import IDENTITY, LOG, SET_ASIDE, SWAP

_TEXT = re.compile(rb"version: 0\ntopic_id: ([A-Za-z0-9_-]{22})\n")


def owner(folder: Path) -> str | None:
    """The id of the topic that a folder belongs to, as Kafka writes ids; None: not known."""
    try:
        found = _TEXT.match((folder / IDENTITY).read_bytes())
    except OSError:
        return None
    return None if found is None else found[1].decode()


def claim(folder: Path, topic_id: str) -> None:
    """To be called before the log in the folder is opened. Raises StorageError when the folder is another topic's."""
    found = owner(folder)
    if found is not None and found != topic_id:
        raise StorageError(
            f"{folder} belongs to another topic: its id is {found}, and not {topic_id}. Move the folder away, and look "
            "into it with `krappy doctor`"
        )


def mark(folder: Path, topic_id: str) -> None:
    """Writes the topic's id to a folder without one. If the disk refuses, the next start writes it."""
    if owner(folder) is None:
        with suppress(OSError):
            OS_DISK.write_file(folder / IDENTITY, f"version: 0\ntopic_id: {topic_id}\n".encode(), sync=False)


def make_way(folders: Iterable[Path]) -> None:
    """To be called before a new topic gets these folders: removes those without events.

    Raises StorageError for a folder with events: they belong to no topic, and are neither adopted nor deleted.
    """
    for folder in folders:
        if not folder.is_dir():
            continue
        if holds_events(folder):
            raise StorageError(
                f"{folder} holds events that belong to no topic: the catalog does not know of them (any more). They "
                "are neither adopted nor deleted. Move the folder away, or use another name for the topic"
            )
        with suppress(OSError):  # then it is opened, empty as it is
            shutil.rmtree(folder)


def holds_events(folder: Path) -> bool:
    """Whether the folder has a non-empty log, or bytes that recovery set aside. Raises StorageError."""
    try:
        files = OS_DISK.names(folder)
    except OSError as error:
        raise StorageError(f"{folder}: {error}") from error
    return any(size and name.endswith((LOG, LOG + SWAP, SET_ASIDE)) for name, (size, _) in files.items())


def unclaimed(topics: Path, known: set[str]) -> list[Path]:
    """Folders of partitions with events whose names are not in `known`. Raises StorageError."""
    try:
        return sorted(
            each for each in topics.iterdir() if each.name not in known and each.is_dir() and holds_events(each)
        )
    except OSError as error:
        raise StorageError(f"{topics}: {error}") from error
