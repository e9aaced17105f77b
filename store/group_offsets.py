"""Kafka's groups in the meta database: a group's state, its members, and its offsets.

    kg/ group                              -> the group's state (krappy.broker.kafka_groups packs it)
    km/ group member                       -> a member of a KIP-848 group
    ko/ group topic partition              -> a committed offset
    kp/ group producer-id topic partition  -> an offset that a transaction will commit, if it does

The parts of a key are packed as in groups.py. This file packs offsets; the owners of the other values pack them. One
`write` is atomic; it is durable after `Meta.sync`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgpack

from krappy.core.kafka.offset import At, Offset
from krappy.errors import StorageError
from krappy.store.groups import group_key, read_key
from krappy.store.meta import Meta

__all__ = ["At", "GroupOffsets", "KeptGroup", "Offset", "PendingAt"]

HEAD = b"kg/"
MEMBER = b"km/"
OFFSET = b"ko/"
PENDING = b"kp/"

PendingAt = tuple[int, str, int]  # producer id, topic, partition


def _unpack(packed: bytes) -> Offset:
    try:
        return Offset(*msgpack.unpackb(packed))
    except Exception as error:
        raise StorageError(f"a committed offset can't be read: {error or type(error).__name__}") from error


@dataclass(slots=True)
class KeptGroup:
    head: bytes | None = None
    members: dict[str, bytes] = field(default_factory=dict)
    offsets: dict[At, Offset] = field(default_factory=dict)
    pending: dict[PendingAt, Offset] = field(default_factory=dict)


class GroupOffsets:
    """The Kafka groups of a broker, in the meta database."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    def load_all(self) -> dict[str, KeptGroup]:
        """Every group by its name. Raises StorageError for what it can't read."""
        found: dict[str, KeptGroup] = {}
        for key, head in self._meta.items(HEAD):
            found.setdefault(read_key(key, HEAD, 1)[0], KeptGroup()).head = head
        for key, packed in self._meta.items(MEMBER):
            name, member = read_key(key, MEMBER, 2)
            found.setdefault(name, KeptGroup()).members[member] = packed
        for key, packed in self._meta.items(OFFSET):
            name, topic, partition = read_key(key, OFFSET, 3)
            found.setdefault(name, KeptGroup()).offsets[topic, partition] = _unpack(packed)
        for key, packed in self._meta.items(PENDING):
            name, producer_id, topic, partition = read_key(key, PENDING, 4)
            found.setdefault(name, KeptGroup()).pending[producer_id, topic, partition] = _unpack(packed)
        return found

    def write(
        self,
        group: str,
        head: bytes | None = None,
        *,
        members: Mapping[str, bytes | None] | None = None,
        offsets: Mapping[At, Offset | None] | None = None,
        pending: Mapping[PendingAt, Offset | None] | None = None,
    ) -> None:
        """Writes all or nothing. A value None deletes its key."""
        puts: dict[bytes, bytes] = {} if head is None else {group_key(HEAD, group): head}
        deletes: list[bytes] = []
        for member, packed in (members or {}).items():
            _sort(group_key(MEMBER, group, member), packed, puts, deletes)
        for at, offset in (offsets or {}).items():
            _sort(group_key(OFFSET, group, *at), None if offset is None else msgpack.packb(list(offset)), puts, deletes)
        for pending_at, offset in (pending or {}).items():
            _sort(
                group_key(PENDING, group, *pending_at),
                None if offset is None else msgpack.packb(list(offset)),
                puts,
                deletes,
            )
        self._meta.write(puts, deletes)

    def delete(self, group: str) -> None:
        """Removes a group with all that it has. One that is not there is no error."""
        keys = [key for kind in (MEMBER, OFFSET, PENDING) for key, _ in self._meta.items(group_key(kind, group))]
        self._meta.write({}, [group_key(HEAD, group), *keys])


def _sort(key: bytes, packed: bytes | None, puts: dict[bytes, bytes], deletes: list[bytes]) -> None:
    if packed is None:
        deletes.append(key)
    else:
        puts[key] = packed
