"""Settings of brokers and of Kafka groups that were changed while the broker ran, as znodes.

Names of settings are Kafka's. The topic defaults that the broker was started with concern only this broker, so they are
in no znode, but in its meta database (`cb/static`, a msgpack map). They are stored so that a start with other defaults
is a change like any other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgpack

from krappy.broker.tree_changes import change, config_change
from krappy.core.cluster import paths, znodes
from krappy.core.cluster.paths import Kind
from krappy.core.cluster.tree import Operation
from krappy.ports.store import Store
from krappy.settings.topic_table import inherited
from krappy.store.meta import Meta
from krappy.store.refusals import reading

FOR_ALL = ""  # the name of the settings of all brokers
STATIC = "static"  # the name of the topic defaults that the broker was started with
STATIC_KEY = b"cb/static"


class OverrideStore:
    """The changed settings of one kind: brokers or groups."""

    def __init__(
        self, store: Store, meta: Meta, in_thread: Callable[[Callable[[], None]], Awaitable[None]], kind: Kind
    ):
        self._store = store
        self._meta = meta
        self._in_thread = in_thread
        self._kind = kind

    def load(self) -> dict[str, dict[str, str]]:
        """The stored settings of each broker or group, by its name. Raises StorageError."""
        kept = self._store.image.configs.get(self._kind, {})
        found = {self._name(name): dict(settings) for name, settings in kept.items()}
        static = self._meta.get(STATIC_KEY) if self._kind == paths.BROKER_CONFIG else None
        if static is not None:
            with reading(STATIC_KEY):
                found[STATIC] = dict(msgpack.unpackb(static))
        return found

    async def save(self, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Changes the stored settings of one broker or group from `before` to `after`, durably. What another broker has
        changed meanwhile stays. Raises StorageError: then nothing has changed."""
        if self._kind == paths.BROKER_CONFIG and name == STATIC:
            puts = {STATIC_KEY: msgpack.packb(dict(after))} if after else {}
            await self._in_thread(lambda: self._meta.change_durably(puts, [] if after else [STATIC_KEY]))
            return
        path = paths.config(self._kind, self._entity(name))
        changed = {setting: value for setting, value in after.items() if before.get(setting) != value}
        gone = before.keys() - after.keys()

        async def made() -> list[Operation]:
            found = await self._store.read(path)
            with reading(path):
                held = {} if found is None else znodes.settings(found.data)
            kept = {setting: value for setting, value in held.items() if setting not in gone}
            return config_change(path, found, kept | changed)

        await change(self._store, made)

    def _entity(self, name: str) -> str:
        return paths.DEFAULT if self._kind == paths.BROKER_CONFIG and name == FOR_ALL else name

    def _name(self, entity: str) -> str:
        return FOR_ALL if self._kind == paths.BROKER_CONFIG and entity == paths.DEFAULT else entity


def topic_defaults(held: Mapping[str, Mapping[str, str]], own: str) -> dict[str, str]:
    """The defaults of topics, by the name of the topic setting, from all stored settings. `own`: the broker's id."""
    found: dict[str, str] = {}
    for name in (STATIC, FOR_ALL, own):
        found |= inherited(held.get(name, {}))
    return found
