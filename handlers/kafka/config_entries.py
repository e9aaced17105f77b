"""How settings are shown to Kafka's tools: with their sources, types, documentation and synonyms (KIP-226, KIP-569).

Some tools ask for all settings of all topics at once. What a topic has not set is the same for all of them, so these
entries are made once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

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


Chain = list[tuple[str, str | None, ConfigSource]]  # (name, value, source): the value in force, then those it hides


class SettingsShown(NamedTuple):
    """Which settings are shown, and what of each. `keys`: only these settings; None: all."""

    keys: Collection[str] | None = None
    synonyms: bool = False
    documentation: bool = False

    def wants(self, name: str) -> bool:
        return self.keys is None or name in self.keys

    def entry(self, name: str, chain: Chain, kind: str, doc: str, read_only: bool = False) -> Message:
        return {
            "name": name,
            "value": chain[0][1],
            "read_only": read_only,
            "config_source": chain[0][2],
            "is_sensitive": False,
            "synonyms": [{"name": n, "value": v, "source": s} for n, v, s in chain] if self.synonyms else [],
            "config_type": TYPES[kind],
            "documentation": doc if self.documentation else None,
        }


def topic_entries(
    given: Mapping[str, str], inherited: Mapping[str, Sequence[Layer]], older: Mapping[str, str], shown: SettingsShown
) -> list[Message]:
    """A topic's settings. `given`: values set for the topic. `inherited`: values set for the broker (layers, as
    `BrokerPort.dynamic` has them). `older`: defaults that the topic keeps from when it was created. The caller must not
    change the entries: some are shared."""
    return [
        _topic_entry(
            SETTINGS[name]._replace(default=older.get(name, SETTINGS[name].default)),
            given.get(name),
            inherited.get(name, ()),
            shown,
        )
        if name in given or name in inherited or name in older
        else entry
        for name, entry in _defaults(shown._replace(keys=None)).items()
        if shown.wants(name)
    ]


@lru_cache(maxsize=4)
def _defaults(shown: SettingsShown) -> dict[str, Message]:
    return {setting.name: _topic_entry(setting, None, (), shown) for setting in SETTINGS.values()}


def _topic_entry(setting: Setting, given: str | None, inherited: Sequence[Layer], shown: SettingsShown) -> Message:
    chain: Chain = [] if given is None else [(setting.name, given, ConfigSource.DYNAMIC_TOPIC_CONFIG)]
    if setting.broker is not None:
        chain += [*_layers(setting.broker, inherited), (setting.broker, setting.default, ConfigSource.DEFAULT_CONFIG)]
    if not chain:  # a default that no broker's setting stands behind has no synonym
        chain, shown = [(setting.name, setting.default, ConfigSource.DEFAULT_CONFIG)], shown._replace(synonyms=False)
    return shown.entry(setting.name, chain, setting.kind, setting.doc)


def _layers(name: str, layers: Sequence[Layer]) -> Chain:
    return [(name, layer.value, _source(layer.by)) for layer in layers]


def _source(by: str) -> ConfigSource:
    if by == "static":
        return ConfigSource.STATIC_BROKER_CONFIG
    return ConfigSource.DYNAMIC_BROKER_CONFIG if by == "broker" else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


def broker_entries(rows: Sequence[BrokerSetting], dynamic: DynamicPort, shown: SettingsShown) -> list[Message]:
    """The broker's settings. `rows`: as `BrokerPort.settings` gives them; `dynamic`: `BrokerPort.dynamic`."""
    entries = []
    for row in rows:
        if shown.wants(row.name):
            chain = _layers(row.name, [layer for layer in dynamic.layers(row.name) if layer.by != "static"])
            source = ConfigSource.STATIC_BROKER_CONFIG if row.given else ConfigSource.DEFAULT_CONFIG
            chain.append((row.name, row.value, source))
            if row.given and row.default is not None:
                chain.append((row.name, row.default, ConfigSource.DEFAULT_CONFIG))
            entries.append(shown.entry(row.name, chain, row.kind, row.doc, row.name not in dynamic.known))
    return entries


def held_entries(settings: SettingsPort, name: str, source: ConfigSource, shown: SettingsShown) -> list[Message]:
    """The settings that were set under `name`, without defaults and synonyms."""
    shown = shown._replace(synonyms=False)
    return [
        shown.entry(each, [(each, value, source)], settings.known[each].kind, settings.known[each].doc)
        for each, value in sorted(settings.held(name).items())
        if shown.wants(each)
    ]


def group_entries(settings: SettingsPort, group: str, shown: SettingsShown) -> list[Message]:
    """A group's settings."""
    entries = []
    for name, setting in settings.known.items():
        if shown.wants(name):
            held = settings.held(group).get(name)
            chain: Chain = [] if held is None else [(name, held, ConfigSource.DYNAMIC_GROUP_CONFIG)]
            chain.append((setting.broker or name, setting.default, ConfigSource.DEFAULT_CONFIG))
            entries.append(shown.entry(name, chain, setting.kind, setting.doc))
    return entries
