"""What is kept of Kafka's groups: a group's state, its members, and its offsets.

    kg/ group                              -> the group's state (krappy.broker.kafka_groups packs it)
    km/ group member                       -> a member of a KIP-848 group
    ko/ group topic partition              -> a committed offset
    kp/ group producer-id topic partition  -> an offset that a transaction will commit, if it does

The parts of a key are packed as in groups.py. This file packs offsets; the owners of the other values pack them. A
broker that is alone keeps them in its meta database; brokers of a cluster keep them in a replicated topic, under the
same keys, but committed offsets as Kafka's records (`krappy/broker/kafka_groups/offset_records.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import msgpack

from krappy.core.kafka.offset import At, Offset
from krappy.errors import StorageError
from krappy.store.groups import check_kinds, group_key, read_key
from krappy.store.meta import Meta

__all__ = ["At", "GroupChange", "GroupOffsets", "KeptGroup", "Offset", "PendingAt", "add_row", "kept_groups", "name_in"]

HEAD = b"kg/"
MEMBER = b"km/"
OFFSET = b"ko/"
PENDING = b"kp/"
PARTS: Mapping[bytes, tuple[type, ...]] = {  # the types of a key's parts, by its kind
    HEAD: (str,),
    MEMBER: (str, str),
    OFFSET: (str, str, int),
    PENDING: (str, int, str, int),
}
KINDS = {"offset": int, "leader_epoch": int, "metadata": str, "committed": int, "topic_id": bytes, "owner": str}

PendingAt = tuple[int, str, int]  # producer id, topic, partition


def _unpack(packed: bytes) -> Offset:
    try:
        found = Offset(*msgpack.unpackb(packed))
        check_kinds(found, {**KINDS, "expires": (int, type(None))})
        return found
    except Exception as error:
        raise StorageError(f"a committed offset can't be read: {error or type(error).__name__}") from error


@dataclass(slots=True)
class KeptGroup:
    head: bytes | None = None
    members: dict[str, bytes] = field(default_factory=dict)
    offsets: dict[At, Offset] = field(default_factory=dict)
    pending: dict[PendingAt, Offset] = field(default_factory=dict)


def _read(key: bytes) -> tuple[bytes, list[Any]]:
    """(what is kept there: HEAD, …; the parts of the key, the group's name first). Raises StorageError for a key that
    is no group's."""
    kind = key[: len(HEAD)]
    if kind not in PARTS:
        raise StorageError(f"{key!r} is not the key of a group")
    return kind, read_key(key, kind, *PARTS[kind])


def name_in(key: bytes) -> str:
    """The name of the group whose key it is. Raises StorageError for what is no key of a group."""
    name: str = _read(key)[1][0]
    return name


def kept_groups(rows: Iterable[tuple[bytes, bytes]]) -> dict[str, KeptGroup]:
    """The groups of these keys and values, by their names. Raises StorageError for what it can't read."""
    found: dict[str, KeptGroup] = {}
    for key, packed in rows:
        add_row(found, key, packed)
    return found


def add_row(groups: dict[str, KeptGroup], key: bytes, packed: bytes) -> None:
    """Raises StorageError for what it can't read."""
    kind, (name, *at) = _read(key)
    offset = _unpack(packed) if kind in (OFFSET, PENDING) else None
    group = groups.setdefault(name, KeptGroup())
    if kind == HEAD:
        group.head = packed
    elif kind == MEMBER:
        group.members[at[0]] = packed
    elif offset is not None and kind == OFFSET:
        group.offsets[at[0], at[1]] = offset
    elif offset is not None:
        group.pending[at[0], at[1], at[2]] = offset


class GroupChange(NamedTuple):
    """A change of what is kept of a group. `head`: None leaves it as it is. Any other value: None removes what stands
    under its key."""

    group: str
    head: bytes | None = None
    members: Mapping[str, bytes | None] = {}
    offsets: Mapping[At, Offset | None] = {}
    pending: Mapping[PendingAt, Offset | None] = {}

    def rows(self) -> tuple[dict[bytes, bytes], list[bytes]]:
        """(what to put, what to delete)."""
        puts, deletes = self.rows_without_offsets()
        for at, offset in self.offsets.items():
            _sort(group_key(OFFSET, self.group, *at), _packed(offset), puts, deletes)
        return puts, deletes

    def rows_without_offsets(self) -> tuple[dict[bytes, bytes], list[bytes]]:
        """As `rows`, without the committed offsets."""
        puts: dict[bytes, bytes] = {} if self.head is None else {group_key(HEAD, self.group): self.head}
        deletes: list[bytes] = []
        for member, packed in self.members.items():
            _sort(group_key(MEMBER, self.group, member), packed, puts, deletes)
        for at, offset in self.pending.items():
            _sort(group_key(PENDING, self.group, *at), _packed(offset), puts, deletes)
        return puts, deletes


class GroupOffsets:
    """The Kafka groups of a broker that is alone, in its meta database. A write is durable after `Meta.sync`."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    def load_all(self) -> dict[str, KeptGroup]:
        """Every group by its name. Raises StorageError for what it can't read."""
        return kept_groups(chain.from_iterable(map(self._meta.items, PARTS)))

    def write(self, change: GroupChange) -> None:
        """Writes all or nothing."""
        self._meta.write(*change.rows())

    def delete(self, group: str) -> None:
        """Removes a group with all that it has. A missing group is no error."""
        keys = [key for kind in (MEMBER, OFFSET, PENDING) for key, _ in self._meta.items(group_key(kind, group))]
        self._meta.write({}, [group_key(HEAD, group), *keys])


def _packed(offset: Offset | None) -> bytes | None:
    return None if offset is None else msgpack.packb(list(offset[:-2]))  # without its owner and turn


def _sort(key: bytes, packed: bytes | None, puts: dict[bytes, bytes], deletes: list[bytes]) -> None:
    if packed is None:
        deletes.append(key)
    else:
        puts[key] = packed
