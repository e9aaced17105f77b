"""Settings of brokers and of Kafka groups that were changed while the broker ran, as znodes.

Names of settings are Kafka's. The topic defaults that the broker was started with concern only this broker, so they are
in no znode, but under a key of their own (`cb/static`, a msgpack map). They are stored so that a start with other
defaults is a change like any other.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgpack

from krappy.core.cluster import places
from krappy.core.cluster.places import Kind
from krappy.core.cluster.tree import Create, Delete, Operation, Put
from krappy.errors import StorageError
from krappy.settings.topic_table import inherited
from krappy.store import znodes
from krappy.store.local_tree import LocalTree

FOR_ALL = ""  # the name of the settings of all brokers
STATIC = "static"  # the name of the topic defaults that the broker was started with
STATIC_KEY = b"cb/static"


class OverrideStore:
    """The changed settings of one kind: brokers or groups. `save` blocks until it is synced."""

    def __init__(self, tree: LocalTree, kind: Kind) -> None:
        self._tree = tree
        self._kind = kind

    def load(self) -> dict[str, dict[str, str]]:
        """The stored settings of each broker or group, by its name. Raises StorageError."""
        kept = self._tree.image.configs.get(self._kind, {})
        found = {self._name(name): dict(settings) for name, settings in kept.items()}
        static = self._tree.meta.get(STATIC_KEY) if self._kind == places.BROKER_CONFIG else None
        if static is not None:
            try:
                found[STATIC] = dict(msgpack.unpackb(static))
            except Exception as error:
                raise StorageError(f"the record {STATIC_KEY!r} can't be read: {error}") from error
        return found

    def save(self, name: str, settings: Mapping[str, str]) -> None:
        """Replaces the stored settings of one broker or group. Raises StorageError: then nothing has changed."""
        if self._kind == places.BROKER_CONFIG and name == STATIC:
            if settings:
                self._tree.meta.change_durably({STATIC_KEY: msgpack.packb(dict(settings))})
            else:
                self._tree.meta.change_durably({}, [STATIC_KEY])
            return
        path = places.config(self._kind, self._entity(name))
        self._tree.commit(config_change(self._tree, path, settings))

    def _entity(self, name: str) -> str:
        return places.DEFAULT if self._kind == places.BROKER_CONFIG and name == FOR_ALL else name

    def _name(self, entity: str) -> str:
        return FOR_ALL if self._kind == places.BROKER_CONFIG and entity == places.DEFAULT else entity


def config_change(tree: LocalTree, path: str, settings: Mapping[str, str]) -> list[Operation]:
    """The operations that make `settings` the content of their znode; without settings the znode is deleted."""
    there = tree.get(path)
    if there is None:
        return [Create(path, znodes.config(settings))] if settings else []
    return [Put(path, znodes.config(settings, there.data))] if settings else [Delete(path)]


def topic_defaults(held: Mapping[str, Mapping[str, str]], own: str) -> dict[str, str]:
    """The defaults of topics, by the topics' names of settings, from all stored settings. `own`: the broker's id."""
    found: dict[str, str] = {}
    for name in (STATIC, FOR_ALL, own):
        found |= inherited(held.get(name, {}))
    return found
