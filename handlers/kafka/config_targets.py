"""The resources whose settings clients may change: topics, brokers (the name "" means all of them) and groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from krappy.core.security.operations import Op
from krappy.handlers.kafka.config_entries import ConfigResource
from krappy.handlers.kafka.refusals import SHOWN, RefusedApi
from krappy.handlers.kafka.sources import check_not_internal
from krappy.ports import KafkaSessionPort, SettingsPort
from krappy.settings.topic import SETTINGS, Setting, check_topic_name, merge
from krappy.settings.topic_table import Changes, Given, Held
from krappy.wire.kafka import Code


class Target(NamedTuple):
    """`known`: the settings it can have; `held`: those set for it now; `effective`: those in force now. `check` raises
    when changes are wrong. `alter` makes changes; it calls a function for them when nobody else can change any."""

    what: str  # for people: "topic", "broker", "group"
    known: Mapping[str, Setting]
    held: Held
    effective: Held
    check: Callable[[Mapping[str, Given]], object]
    alter: Callable[[Changes], Awaitable[None]]


def target(session: KafkaSessionPort, kind: int, name: str) -> Target:
    """The resource. Raises RefusedApi, KrappyError when it does not exist or has no settings to change."""
    access = session.access
    if kind == ConfigResource.TOPIC:
        check_not_internal(session, check_topic_name(name), Op.ALTER_CONFIGS)
        topic = access.find_topic(name, Op.ALTER_CONFIGS)
        if topic is None:
            raise RefusedApi(Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        held = topic.given
        return Target(
            "topic",
            SETTINGS,
            held,
            topic.settings,
            lambda wanted: merge(held, wanted),
            lambda wanted: access.alter_topic(name, wanted, None),
        )
    if kind == ConfigResource.BROKER:
        if name:
            check_broker(session, name)
        return _of("broker", access.cluster(Op.ALTER_CONFIGS).dynamic, name)
    if kind == ConfigResource.GROUP:
        return _of("group", access.kafka_group(name, Op.ALTER_CONFIGS).settings, name)
    if kind == ConfigResource.BROKER_LOGGER:
        check_broker(session, name)
        raise RefusedApi(Code.INVALID_REQUEST, "the log level is set when the broker starts: see `krappy serve --help`")
    if kind == ConfigResource.CLIENT_METRICS:
        raise RefusedApi(Code.INVALID_REQUEST, "clients' metrics are not collected by this broker")
    raise RefusedApi(Code.INVALID_REQUEST, f"resources of type {kind} are not known")


def _of(what: str, settings: SettingsPort, name: str) -> Target:
    return Target(
        what,
        settings.known,
        settings.held(name),
        settings.effective(name),
        lambda wanted: settings.check(name, wanted),
        lambda wanted: settings.alter(name, wanted),
    )


def check_broker(session: KafkaSessionPort, name: str) -> None:
    """Raises RefusedApi unless a resource's name is this broker's id."""
    node = session.broker.id
    if name != str(node):
        text = f"Unexpected broker id, expected {node} or empty string, but received '{name:.{SHOWN}}'"
        raise RefusedApi(Code.INVALID_REQUEST, text)
