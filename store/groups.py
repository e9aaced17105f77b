"""Native consumer groups in the meta database: a group's settings, and a blob of state for each of its partitions.

`krappy.core` gives the blobs their meaning; here they are just bytes. A write is durable after `Meta.sync`, which the
broker shares among all writes that wait for it. A group and all its partitions go in one atomic write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from krappy.errors import StorageError
from krappy.store.meta import Meta

GROUP = b"g/"
STATE = b"s/"


@dataclass(slots=True)
class StoredGroup:
    """`settings`: a packed map. `states`: (topic, partition) to its packed state."""

    settings: bytes
    states: dict[tuple[str, int], bytes] = field(default_factory=dict)


class GroupStore:
    """The groups of a broker, in the meta database."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    def load_all(self) -> dict[str, StoredGroup]:
        """Every group by its name. Raises StorageError for a record that can't be read."""
        found: dict[str, StoredGroup] = {}
        for key, settings in self._meta.items(GROUP):
            found[read_key(key, GROUP, 1)[0]] = StoredGroup(settings)
        for key, state in self._meta.items(STATE):
            name, topic, partition = read_key(key, STATE, 3)
            if name not in found:
                raise StorageError(f"a state of the group '{name}' is stored, but not the group")
            found[name].states[topic, partition] = state
        return found

    def put(
        self, group: str, settings: bytes | None = None, states: Mapping[tuple[str, int], bytes] | None = None
    ) -> None:
        """Writes a group's settings (the first write of a group must have them) and the states given."""
        puts = {} if settings is None else {group_key(GROUP, group): settings}
        for (topic, partition), state in (states or {}).items():
            puts[group_key(STATE, group, topic, partition)] = state
        self._meta.write(puts)

    def delete(self, group: str) -> None:
        """Removes a group with all its states. One that is not there is no error."""
        prefix = group_key(STATE, group)
        self._meta.write({}, [group_key(GROUP, group), *(key for key, _ in self._meta.items(prefix))])

    def delete_states(self, group: str, partitions: list[tuple[str, int]]) -> None:
        """Removes the states of some partitions, as when their topic is deleted."""
        self._meta.write({}, [group_key(STATE, group, topic, partition) for topic, partition in partitions])


def group_key(kind: bytes, *parts: str | int) -> bytes:
    """The parts as msgpack, one after another: so the keys of a group, and of one of its topics, are neighbours, and no
    name is taken for the beginning of a longer one."""
    return kind + b"".join(msgpack.packb(part) for part in parts)


def read_key(key: bytes, kind: bytes, count: int) -> list[Any]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(key[len(kind) :])
    try:
        parts: list[Any] = list(unpacker)
    except Exception as error:
        raise StorageError(f"the key {key!r} of the group store can't be read: {error}") from error
    if len(parts) != count:
        raise StorageError(f"the key {key!r} of the group store can't be read")
    return parts
