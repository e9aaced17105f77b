"""How settings are shown to Kafka's tools: with their sources, types, documentation and synonyms (KIP-226, KIP-569).

Some tools ask for all settings of all topics at once. What a topic has not set is the same for all of them, so these
entries are made once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any

from krappy.topic_config import SETTINGS, Setting

Message = dict[str, Any]


class Resource(IntEnum):
    """Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Source(IntEnum):
    """Kafka's ConfigEntry.ConfigSource."""

    DYNAMIC_TOPIC_CONFIG = 1
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


TYPES = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7}


def topic_entries(
    given: Mapping[str, str], keys: Collection[str] | None, *, synonyms: bool, documentation: bool
) -> list[Message]:
    """A topic's settings, all or those named, where `given` were set for it. Not to be changed: some are shared."""
    defaults = _defaults(synonyms, documentation)
    return [
        _entry(SETTINGS[name], given[name], synonyms, documentation) if name in given else entry
        for name, entry in defaults.items()
        if keys is None or name in keys
    ]


def created_entries(given: Mapping[str, str]) -> list[Message]:
    """A new topic's settings, as CreateTopics shows them: fields that it lacks are dropped when it is written."""
    return topic_entries(given, None, synonyms=False, documentation=False)


@lru_cache(maxsize=4)
def _defaults(synonyms: bool, documentation: bool) -> dict[str, Message]:
    return {setting.name: _entry(setting, None, synonyms, documentation) for setting in SETTINGS.values()}


def _entry(setting: Setting, given: str | None, synonyms: bool, documentation: bool) -> Message:
    chain = []
    if given is not None:
        chain.append({"name": setting.name, "value": given, "source": Source.DYNAMIC_TOPIC_CONFIG})
    if setting.broker is not None:
        chain.append({"name": setting.broker, "value": setting.default, "source": Source.DEFAULT_CONFIG})
    return {
        "name": setting.name,
        "value": setting.default if given is None else given,
        "read_only": False,
        "config_source": Source.DEFAULT_CONFIG if given is None else Source.DYNAMIC_TOPIC_CONFIG,
        "is_sensitive": False,
        "synonyms": chain if synonyms else [],
        "config_type": TYPES[setting.kind],
        "documentation": setting.doc if documentation else None,
    }


def broker_entries(
    rows: Sequence[Any], keys: Collection[str] | None, *, synonyms: bool, documentation: bool
) -> list[Message]:
    """The broker's settings (`BrokerPort.settings`), all or those named."""
    entries = []
    for row in rows:
        if keys is not None and row.name not in keys:
            continue
        source = Source.STATIC_BROKER_CONFIG if row.given else Source.DEFAULT_CONFIG
        entries.append(
            {
                "name": row.name,
                "value": row.value,
                "read_only": True,
                "config_source": source,
                "is_sensitive": False,
                "synonyms": [{"name": row.name, "value": row.value, "source": source}] if synonyms else [],
                "config_type": TYPES[row.kind],
                "documentation": row.doc if documentation else None,
            }
        )
    return entries
