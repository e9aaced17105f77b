"""The numbers of partitions' views: what this broker alone knows of its topics.

Each partition has a number, which its keys in the views begin with. A number is never given twice, whatever is deleted.
It is on the disk before the partition's folder is made. `n/` and a topic's id -> [name, numbers], in msgpack.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from threading import Lock
from typing import Any

import msgpack

from krappy.errors import InvalidPartitions
from krappy.store.keys import MAX_NUMBER
from krappy.store.meta import Meta
from krappy.store.refusals import reading

NEXT_NUMBER = b"c/next-number"
NUMBERS = b"n/"


class ViewNumbers:
    """Also held in memory: lookups read no disk. A change blocks until it is synced. Safe for several threads."""

    def __init__(self, meta: Meta, more: Mapping[bytes, bytes] | None = None) -> None:
        """`more`: records beside those in the database. Raises StorageError for a record that can't be read."""
        self._meta = meta
        self._lock = Lock()
        found = dict(meta.items(NUMBERS)) | {k: v for k, v in (more or {}).items() if k.startswith(NUMBERS)}
        self._held = {key[len(NUMBERS) :]: _read(key, value) for key, value in found.items()}
        following = meta.get(NEXT_NUMBER)
        self._next = 1 if following is None else int.from_bytes(following, "big")

    def of(self, id: bytes) -> list[int]:
        """The numbers of this topic's partitions, by index. There are more of them than partitions if a try to add
        partitions failed. Empty: it has none here."""
        return list(self._held[id][1]) if id in self._held else []

    def name(self, id: bytes) -> str:
        """The topic's name; "" if it is not known here."""
        return str(self._held[id][0]) if id in self._held else ""

    def give(self, id: bytes, name: str, total: int) -> None:
        """Makes sure that the topic has `total` numbers, durably. Raises InvalidPartitions when no more numbers are
        left, StorageError."""
        with self._lock:
            known = self.of(id)
            if len(known) >= total:
                return
            following = self._next + total - len(known)
            if following > MAX_NUMBER + 1:
                raise InvalidPartitions("every partition number there is has been used")
            numbers = [*known, *range(self._next, following)]
            self._next = following  # even if the write fails: they may be on the disk all the same
            self._meta.change_durably(dict([(NEXT_NUMBER, following.to_bytes(8, "big")), record(id, name, numbers)]))
            self._held[id] = [name, numbers]

    def forget(self, ids: Collection[bytes]) -> None:
        """Forgets topics that have nothing here any more, durably. Raises StorageError."""
        with self._lock:
            gone = [id for id in ids if id in self._held]
            if gone:
                self._meta.change_durably({}, [NUMBERS + id for id in gone])
            for id in gone:
                del self._held[id]

    def known(self) -> set[bytes]:
        """The ids of all topics that have numbers here."""
        return set(self._held)

    def pass_over(self, number: int) -> None:
        """Gives no number up to this one any more. Durable. Raises StorageError."""
        with self._lock:
            if number >= self._next:
                self._next = number + 1
                self._meta.change_durably({NEXT_NUMBER: self._next.to_bytes(8, "big")})


def record(id: bytes, name: str, numbers: Sequence[int]) -> tuple[bytes, bytes]:
    """A topic's record: (key, value)."""
    return NUMBERS + id, bytes(msgpack.packb([name, numbers]))


def _read(key: bytes, value: bytes) -> list[Any]:
    with reading(key):
        name, numbers = msgpack.unpackb(value)
        return [str(name), [int(number) for number in numbers]]
