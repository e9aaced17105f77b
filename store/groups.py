"""Native consumer groups in the meta database: a group's settings, and a blob of state for each of its partitions.

`krappy.core` gives the blobs their meaning; here they are just bytes. A write is durable after `Meta.sync`, which the
broker shares among all writes that wait for it. A group and all its partitions go in one atomic write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from krappy.errors import StorageError
from krappy.store.meta import Meta

GROUP = b"g/"
STATE = b"s/"


@dataclass(slots=True)
class StoredGroup:
    """`settings`: a packed map. `states`: (topic, partition) to its packed state. `ids`: of their topics, by name,
    as far as they are known."""

    settings: bytes
    states: dict[tuple[str, int], bytes] = field(default_factory=dict)
    ids: dict[str, bytes] = field(default_factory=dict)


class GroupStore:
    """The groups of a broker, in the meta database."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    def load_all(self) -> dict[str, StoredGroup]:
        """Every group by its name. Raises StorageError for a record that can't be read."""
        return stored_groups([*self._meta.items(GROUP), *self._meta.items(STATE)])

    def put(
        self, group: str, settings: bytes | None = None, states: Mapping[tuple[str, int], bytes] | None = None
    ) -> None:
        """Writes a group's settings (the first write of a group must have them) and the states given."""
        puts = {} if settings is None else {group_key(GROUP, group): settings}
        for (topic, partition), state in (states or {}).items():
            puts[group_key(STATE, group, topic, partition)] = state
        self._meta.write(puts)

    def delete(self, group: str) -> None:
        """Removes a group with all its states. A missing group is no error."""
        prefix = group_key(STATE, group)
        self._meta.write({}, [group_key(GROUP, group), *(key for key, _ in self._meta.items(prefix))])

    def delete_states(self, group: str, partitions: list[tuple[str, int]]) -> None:
        """Removes the states of some partitions, as when their topic is deleted."""
        self._meta.write({}, [group_key(STATE, group, topic, partition) for topic, partition in partitions])


def stored_groups(rows: Iterable[tuple[bytes, bytes]]) -> dict[str, StoredGroup]:
    """The groups of these keys and values, by their names. Raises StorageError."""
    found: dict[str, StoredGroup] = {}
    states: list[tuple[bytes, bytes]] = []
    for key, value in rows:
        if key.startswith(GROUP):
            found[group_of(key)] = StoredGroup(value)
        else:
            states.append((key, value))
    for key, state in states:
        name = group_of(key)
        if name not in found:
            raise StorageError(f"a state of the group '{name}' is stored, but not the group")
        _, topic, partition = read_key(key, STATE, str, str, int)
        found[name].states[topic, partition] = state
    return found


def group_of(key: bytes) -> str:
    """The group that a key belongs to. Raises StorageError."""
    name: str = read_key(key, GROUP, str)[0] if key.startswith(GROUP) else read_key(key, STATE, str, str, int)[0]
    return name


def state_at(key: bytes) -> tuple[str, int] | None:
    """The topic and partition of a state's key; None for the key of a group's settings. Raises StorageError."""
    if key.startswith(GROUP):
        return None
    _, topic, partition = read_key(key, STATE, str, str, int)
    return topic, partition


def group_key(kind: bytes, *parts: str | int) -> bytes:
    """The parts as msgpack, one after another: so the keys of a group, and of one of its topics, are neighbours, and no
    name is taken for the beginning of a longer one."""
    return kind + b"".join(msgpack.packb(part) for part in parts)


def read_key(key: bytes, kind: bytes, *parts: type) -> list[Any]:
    """The parts of a key of this kind: each is a `str`, or an `int` that is not negative. Raises StorageError."""
    try:
        if not key.startswith(kind):
            raise ValueError("it is of another kind")
        unpacker = msgpack.Unpacker()
        unpacker.feed(key[len(kind) :])
        found: list[Any] = list(unpacker)
        if not all(type(part) is wanted for part, wanted in zip(found, parts, strict=True)):
            raise ValueError("a part of it is of another type")
        if any(type(part) is int and part < 0 for part in found):
            raise ValueError("a number in it is negative")
    except Exception as error:
        raise StorageError(f"the key {key!r:.200} of the group store can't be read: {error}") from error
    return found


def check_kinds(fields: object, kinds: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raises TypeError for a field that is of another type."""
    for name, kind in kinds.items():
        if not isinstance(getattr(fields, name), kind):
            raise TypeError(f"{name} is {getattr(fields, name)!r:.80}")
