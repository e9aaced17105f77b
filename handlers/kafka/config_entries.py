"""How settings are shown to Kafka's tools: with their sources, types, documentation and synonyms (KIP-226, KIP-569).

Some tools ask for all settings of all topics at once. What a topic has not set is the same for all of them, so these
entries are made once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache

from krappy.handlers.kafka.registry import Message
from krappy.ports import BrokerSetting, DynamicPort, Layer, SettingsPort
from krappy.settings.topic_table import SETTINGS, Setting


class ConfigResource(IntEnum):
    """Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Kafka's ConfigEntry.ConfigSource."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


TYPES = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7}


def topic_entries(
    given: Mapping[str, str],
    keys: Collection[str] | None,
    inherited: Mapping[str, Sequence[Layer]],
    older: Mapping[str, str],
    *,
    synonyms: bool,
    documentation: bool,
) -> list[Message]:
    """A topic's settings, or those among `keys`. `given`: values set for the topic. `inherited`: values set for the
    broker (layers, as `BrokerPort.dynamic` has them). `older`: defaults that the topic keeps from when it was created.
    The caller must not change the entries: some are shared."""
    defaults = _defaults(synonyms, documentation)
    return [
        _topic_entry(
            SETTINGS[name]._replace(default=older.get(name, SETTINGS[name].default)),
            given.get(name),
            inherited.get(name, ()),
            synonyms,
            documentation,
        )
        if name in given or name in inherited or name in older
        else entry
        for name, entry in defaults.items()
        if keys is None or name in keys
    ]


def created_entries(given: Mapping[str, str], inherited: Mapping[str, Sequence[Layer]]) -> list[Message]:
    """A new topic's settings, for CreateTopics. (Encoding drops the fields that its answer does not have.)"""
    return topic_entries(given, None, inherited, {}, synonyms=False, documentation=False)


@lru_cache(maxsize=4)
def _defaults(synonyms: bool, documentation: bool) -> dict[str, Message]:
    return {setting.name: _topic_entry(setting, None, (), synonyms, documentation) for setting in SETTINGS.values()}


Chain = list[tuple[str, str | None, ConfigSource]]  # (name, value, source): the value in force, then those it hides


def _topic_entry(
    setting: Setting, given: str | None, inherited: Sequence[Layer], synonyms: bool, documentation: bool
) -> Message:
    chain: Chain = [] if given is None else [(setting.name, given, ConfigSource.DYNAMIC_TOPIC_CONFIG)]
    if setting.broker is not None:
        chain += [*_layers(setting.broker, inherited), (setting.broker, setting.default, ConfigSource.DEFAULT_CONFIG)]
    in_force = chain[0] if chain else (setting.name, setting.default, ConfigSource.DEFAULT_CONFIG)
    return _entry(
        setting.name, in_force, chain if synonyms else [], setting.kind, setting.doc if documentation else None
    )


def _layers(name: str, layers: Sequence[Layer]) -> Chain:
    return [(name, layer.value, _source(layer.by)) for layer in layers]


def _source(by: str) -> ConfigSource:
    if by == "static":
        return ConfigSource.STATIC_BROKER_CONFIG
    return ConfigSource.DYNAMIC_BROKER_CONFIG if by == "broker" else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


def _entry(
    name: str,
    in_force: tuple[str, str | None, ConfigSource],
    chain: Chain,
    kind: str,
    doc: str | None,
    read_only: bool = False,
) -> Message:
    return {
        "name": name,
        "value": in_force[1],
        "read_only": read_only,
        "config_source": in_force[2],
        "is_sensitive": False,
        "synonyms": [{"name": name, "value": value, "source": source} for name, value, source in chain],
        "config_type": TYPES[kind],
        "documentation": doc,
    }


def broker_entries(
    rows: Sequence[BrokerSetting],
    dynamic: DynamicPort,
    keys: Collection[str] | None,
    *,
    synonyms: bool,
    documentation: bool,
) -> list[Message]:
    """The broker's settings, or those among `keys`. `rows`: as `BrokerPort.settings` gives them; `dynamic`:
    `BrokerPort.dynamic`."""
    entries = []
    for row in rows:
        if keys is None or row.name in keys:
            changed = [layer for layer in dynamic.layers(row.name) if layer.by != "static"]
            chain: Chain = _layers(row.name, changed)
            chain.append(
                (row.name, row.value, ConfigSource.STATIC_BROKER_CONFIG if row.given else ConfigSource.DEFAULT_CONFIG)
            )
            if row.given and row.default is not None:
                chain.append((row.name, row.default, ConfigSource.DEFAULT_CONFIG))
            doc, fixed = row.doc if documentation else None, row.name not in dynamic.known
            entries.append(_entry(row.name, chain[0], chain if synonyms else [], row.kind, doc, fixed))
    return entries


def held_entries(
    settings: SettingsPort, name: str, source: ConfigSource, keys: Collection[str] | None, *, documentation: bool
) -> list[Message]:
    """The settings that were set under `name`, without defaults; or those among `keys`."""
    return [
        _entry(each, (each, value, source), [], settings.known[each].kind, _doc(settings, each, documentation))
        for each, value in sorted(settings.held(name).items())
        if keys is None or each in keys
    ]


def group_entries(
    settings: SettingsPort, group: str, keys: Collection[str] | None, *, synonyms: bool, documentation: bool
) -> list[Message]:
    """A group's settings, or those among `keys`."""
    entries = []
    for name, setting in settings.known.items():
        if keys is None or name in keys:
            held = settings.held(group).get(name)
            chain: Chain = [] if held is None else [(name, held, ConfigSource.DYNAMIC_GROUP_CONFIG)]
            chain.append((setting.broker or name, setting.default, ConfigSource.DEFAULT_CONFIG))
            shown = chain if synonyms else []
            entries.append(_entry(name, chain[0], shown, setting.kind, _doc(settings, name, documentation)))
    return entries


def _doc(settings: SettingsPort, name: str, wanted: bool) -> str | None:
    return settings.known[name].doc if wanted else None
