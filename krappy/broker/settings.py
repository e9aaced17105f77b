"""The broker's own settings for Kafka's admin tools: under Kafka's name where Kafka has the same setting, else as
`krappy.NAME`.

They are as the process was started, and read-only here. Beside them are fixed values of Kafka's settings that some
tools look for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from krappy.broker.dynamic import RATES, THREADS
from krappy.broker.runtime import DISK_THREADS
from krappy.ports import BrokerSetting
from krappy.settings.kafka_names import KAFKA_NAMES
from krappy.settings.server import ServerConfig
from krappy.settings.spec import is_secret
from krappy.settings.topic_table import OF_BROKER

# Two settings of Kafka may be one here. offsets.retention.minutes has another unit than ours: see `_own`.
_NAMES: dict[str, list[str]] = {}
for _kafka, _ours in KAFKA_NAMES.items():
    _NAMES.setdefault(_ours, []).append(_kafka)
_NAMES.setdefault("group_max_members", ["group.max.size"])
ALONE = ("default_replication_factor", "transaction_state_log_replication_factor", "transaction_state_log_min_isr")
_FIXED = (
    (THREADS, str(DISK_THREADS), "INT", "threads that wait for the disk"),
    ("delete.topic.enable", "true", "BOOLEAN", "topics can be deleted"),
    ("log.cleaner.enable", "true", "BOOLEAN", "compacted topics are compacted"),
    ("offsets.topic.replication.factor", "1", "SHORT", "groups' offsets are not in a topic"),
    ("process.roles", "broker,controller", "LIST", "one process is all there is"),
)


def broker_settings(config: ServerConfig, advertised: str) -> list[BrokerSetting]:
    """Every setting in force, sorted by name. `advertised`: the HOST:PORT that is advertised to the asking client."""
    rows = [*_own(config, advertised), *_topics(config)]
    rows += [BrokerSetting(name, value, kind, doc, False) for name, value, kind, doc in _FIXED]
    if not config.zookeeper_connect:
        rows.append(BrokerSetting("default.replication.factor", "1", "INT", "there is one broker", False))
    rows += [BrokerSetting(each.name, each.default, each.kind, each.doc, False) for each in RATES]
    security = ",".join(f"{each.name}:{each.protocol}" for each in config.kafka_listeners)
    map_doc = "the security protocol of each listener"
    rows.append(BrokerSetting("listener.security.protocol.map", security, "STRING", map_doc, False))
    return sorted({row.name: row for row in rows}.values())


def _own(config: ServerConfig, advertised: str) -> Iterator[BrokerSetting]:
    for spec in fields(config):
        if spec.name in ("topic_defaults", "listener_security_protocol_map"):
            continue
        value, doc = getattr(config, spec.name), spec.metadata["doc"]
        given = value != spec.default
        if spec.name == "listen_kafka" and value:
            value = ",".join(f"{each.name}://{each.address}" for each in config.kafka_listeners)
        if spec.name == "advertised_listeners":
            value = _advertised(config, advertised)
        if spec.name in ALONE and not config.zookeeper_connect:
            value = 1  # a broker that is alone can give no more
        if is_secret(spec):
            value = None
        for name in _NAMES.get(spec.name, ["krappy." + spec.name]):
            default = _text(spec.name, spec.default)
            yield BrokerSetting(name, _text(spec.name, value), _kind(value), doc, given, default)
        if spec.name == "offsets_retention_ms":
            yield BrokerSetting("offsets.retention.minutes", str(value // 60_000), "INT", doc, given)


def _advertised(config: ServerConfig, told: str) -> str:
    """The setting advertised.listeners, as Kafka writes it. A listener without one of its own advertises the address
    that each client used: `told` is that of the asking client."""
    listeners = config.kafka_listeners
    alone = told if len(listeners) == 1 else ""
    return ",".join(f"{each.name}://{each.advertised or alone or each.address}" for each in listeners)


def _topics(config: ServerConfig) -> Iterator[BrokerSetting]:
    """The defaults of topics' settings, under Kafka's broker-level names for them."""
    for name, setting in OF_BROKER.items():
        given = config.topic_defaults.get(name)
        value, default = setting.default if given is None else given, setting.default
        yield BrokerSetting(name, value, setting.kind, setting.doc, given is not None, default)


def _text(name: str, value: Any) -> str | None:
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "LONG"
    return "STRING" if value is None or isinstance(value, str | Path) else "LIST"
