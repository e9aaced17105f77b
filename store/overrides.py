"""Settings that were changed while the broker ran, beside those of topics (catalog.py), in the meta database.

    cb/ broker id, or nothing for all brokers  -> msgpack {setting: text}
    cb/static                                  -> the same: the defaults of topics that the broker was started with
    cg/ group                                  -> the same, of a Kafka group

Names of settings are Kafka's. Durable when `save` returns. What the broker was started with is kept so that a start
with others is a change like any other.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgpack

from krappy.errors import StorageError
from krappy.store.meta import Meta
from krappy.topic_config import inherited

BROKER = b"cb/"
GROUP = b"cg/"
FOR_ALL = ""  # the name under which settings of all brokers are kept
STATIC = "static"  # and those that the broker was started with


class OverrideStore:
    """Of one kind of things. Blocks: a sync is waited for."""

    def __init__(self, meta: Meta, kind: bytes) -> None:
        self._meta = meta
        self._kind = kind

    def load(self) -> dict[str, dict[str, str]]:
        """What is kept, by the thing's name. Raises StorageError."""
        found: dict[str, dict[str, str]] = {}
        for key, value in self._meta.items(self._kind):
            try:
                found[key[len(self._kind) :].decode()] = dict(msgpack.unpackb(value))
            except Exception as error:
                raise StorageError(
                    f"the settings under {key!r} can't be read: {error or type(error).__name__}"
                ) from error
        return found

    def save(self, name: str, settings: Mapping[str, str]) -> None:
        """Raises StorageError: then they are what they were."""
        key = self._kind + name.encode()
        if settings:
            self._meta.change_durably({key: msgpack.packb(dict(settings))})
        else:
            self._meta.change_durably({}, [key])


def topic_defaults(held: Mapping[str, Mapping[str, str]], own: str) -> dict[str, str]:
    """What topics get that set nothing, by their names for it, of all that is kept. `own`: the broker's id."""
    found: dict[str, str] = {}
    for name in (STATIC, FOR_ALL, own):
        found |= inherited(held.get(name, {}))
    return found
