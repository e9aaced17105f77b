"""Which partition a folder belongs to: its file `partition.metadata`, as in Kafka (KIP-516), with one more line.

    version: 0
    topic_id: 5vJY2mJxSJu0ZZ5iVTvfQg
    partition: 3

A new topic under an old name has another id, so it never adopts the old topic's events. The file is written, without a
sync, when a folder is opened that has none, or one of an earlier version, which had no line for the partition. A
missing or unreadable file is ignored.
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

_TEXT = re.compile(rb"version: 0\ntopic_id: ([A-Za-z0-9_-]{22})\n(partition: ([0-9]+)\n)?")


def owner(folder: Path) -> str | None:
    """The id of the topic that a folder belongs to, as Kafka writes ids; None: not known. If it is another partition
    than the folder's name says, that follows the id."""
    found = _read(folder)
    if found is None:
        return None
    topic_id, index = found[1].decode(), found[3]
    return topic_id if index in (None, _index(folder)) else f"{topic_id}, partition {index.decode()}"


def _read(folder: Path) -> re.Match[bytes] | None:
    try:
        return _TEXT.match(OS_DISK.read_file(folder / IDENTITY))
    except OSError:
        return None


def _index(folder: Path) -> bytes:
    """The partition that the folder's name says: it is TOPIC-INDEX, or with more behind a point."""
    return folder.name.rpartition("-")[2].partition(".")[0].encode()


def claim(folder: Path, topic_id: str) -> None:
    """To be called before the log in the folder is opened. Raises StorageError if the folder is another partition's."""
    found = owner(folder)
    if found is not None and found != topic_id:
        raise StorageError(
            f"{folder} belongs to another topic or partition: the topic's id is {found}, and not {topic_id}. Move the "
            "folder away, and look into it with `krappy doctor`"
        )


def mark(folder: Path, topic_id: str) -> None:
    """Writes whose it is to a folder that does not tell it. If the disk refuses, the next start writes it."""
    found = _read(folder)
    if found is None or found[3] is None:
        text = b"version: 0\ntopic_id: %s\npartition: %s\n" % (topic_id.encode(), _index(folder))
        with suppress(OSError):
            OS_DISK.write_file(folder / IDENTITY, text, sync=False)


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
