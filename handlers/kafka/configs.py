"""Reading and changing the settings of topics, brokers (the name "" means all of them) and groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from krappy.core.security import needs
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.errors import InvalidConfig
from krappy.handlers.kafka.config_entries import (
    ConfigResource,
    ConfigSource,
    SettingsShown,
    broker_entries,
    group_entries,
    held_entries,
    topic_entries,
)
from krappy.handlers.kafka.refusals import DONE, NO, SHOWN, RefusedApi, denied_on_cluster, more_than_once, refusal
from krappy.handlers.kafka.registry import Message, serves
from krappy.handlers.kafka.sources import topic_named
from krappy.ports import KafkaSessionPort, SettingsPort
from krappy.settings.topic import check_topic_name, merge
from krappy.settings.topic_table import SETTINGS, Changes, Given, Held, Setting, nearest
from krappy.wire.kafka import ApiKey, Code

_NO_LOGGERS = "the log level is set when the broker starts: see `krappy serve --help`"


class Target(NamedTuple):
    """`known`: the settings it can have; `held`: those set for it now; `effective`: those in force now. `check` raises
    when changes are wrong. `alter` makes changes: it is given a function, and calls it for the changes while nobody
    else can change settings."""

    what: str  # for people: "topic", "broker", "group"
    known: Mapping[str, Setting]
    held: Held
    effective: Held
    check: Callable[[Mapping[str, Given]], object]
    alter: Callable[[Changes], Awaitable[None]]


async def target(session: KafkaSessionPort, kind: int, name: str) -> Target:
    """The resource. Raises RefusedApi, KrappyError when it does not exist or has no settings to change."""
    access = session.access
    if kind == ConfigResource.TOPIC:
        topic = await access.topic_to_change(check_topic_name(name), Op.ALTER_CONFIGS)
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
    if kind == ConfigResource.GROUP:
        access.check(Resource.GROUP, name, Op.ALTER_CONFIGS)
    else:
        access.check(Resource.CLUSTER, CLUSTER_NAME, Op.ALTER_CONFIGS)
    if kind == ConfigResource.BROKER:
        if name:
            check_broker(session, name)
        dynamic = access.cluster(Op.ALTER_CONFIGS).dynamic
        return _of("broker", dynamic, name)._replace(
            check=lambda wanted: dynamic.check(name, wanted, access.sees),
            alter=lambda wanted: dynamic.alter(name, wanted, access.sees),
        )
    if kind == ConfigResource.GROUP:
        return _of("group", access.kafka_group(name, Op.ALTER_CONFIGS).settings, name)
    if kind == ConfigResource.BROKER_LOGGER:
        check_broker(session, name)
        raise RefusedApi(Code.INVALID_REQUEST, _NO_LOGGERS)
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


Wanted = dict[str, str | None]  # None resets a setting to its default
Asked = Callable[[Target, list[Message], Held, Held], Wanted]


async def change_configs(session: KafkaSessionPort, request: Message, asked_of: Asked) -> Message:
    """The answer. `asked_of(target, configs, held, effective)` gives the changes that a resource's entry asks for.
    `held`: the settings set for the target; `effective`: those in force. It is called twice: to check the changes, and
    again when they are made, while nobody else can change the same settings."""
    resources = request["resources"]
    asked = {(each["resource_type"], each["resource_name"]): each for each in resources}
    twice = more_than_once((each["resource_type"], each["resource_name"]) for each in resources)
    responses = []
    for (kind, name), resource in asked.items():
        try:
            if (kind, name) in twice:
                raise RefusedApi(Code.INVALID_REQUEST, "Each resource must appear at most once.")
            found = await target(session, kind, name)
            configs = resource["configs"]
            if more := more_than_once(config["name"] for config in configs):
                raise RefusedApi(Code.INVALID_REQUEST, f"Error due to duplicate config keys: '{min(more):.{SHOWN}}'")
            changes = partial(asked_of, found, configs)
            wanted = changes(found.held, found.effective)
            found.check(wanted)
            if wanted and not request["validate_only"]:
                await found.alter(changes)
            responses.append({"resource_type": kind, "resource_name": name, **DONE})
        except NO as error:
            responses.append({"resource_type": kind, "resource_name": name, **refusal(error)})
        await session.pause()
    return {"responses": responses}


def value_of(config: Message) -> str:
    """The value. Raises RefusedApi for null, which has no meaning in these requests."""
    value = config["value"]
    if value is None:
        raise RefusedApi(Code.INVALID_REQUEST, f"Null value not supported for '{config['name']:.{SHOWN}}'")
    return str(value)


@serves(
    ApiKey.ALTER_CONFIGS,
    needs=needs.topic(Op.ALTER_CONFIGS) + needs.cluster(Op.ALTER_CONFIGS) + needs.group(Op.ALTER_CONFIGS),
)
async def alter_configs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Replaces all settings of a resource by those given."""
    return await change_configs(session, request, _replaced)


def _replaced(target: Target, configs: list[Message], held: Held, effective: Held) -> Wanted:
    return {**dict.fromkeys(held), **{config["name"]: value_of(config) for config in configs}}


class ConfigOperation(IntEnum):
    """Kafka's AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@serves(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    needs=needs.topic(Op.ALTER_CONFIGS) + needs.cluster(Op.ALTER_CONFIGS) + needs.group(Op.ALTER_CONFIGS),
)
async def incremental_alter_configs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """SET, DELETE, and on lists APPEND and SUBTRACT (KIP-339)."""
    return await change_configs(session, request, _changed)


def _changed(target: Target, configs: list[Message], held: Held, effective: Held) -> Wanted:
    return {config["name"]: _after(target, config, effective) for config in configs}


def _after(target: Target, config: Message, effective: Held) -> str | None:
    """A setting's value after one operation; None: its default."""
    name, operation = config["name"], config["config_operation"]
    if operation == ConfigOperation.DELETE:
        return None
    if operation == ConfigOperation.SET:
        return value_of(config)
    if operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise RefusedApi(
            Code.INVALID_REQUEST, f"there is no operation {operation}: 0 to 3 are SET, DELETE, APPEND, SUBTRACT"
        )
    given = _items(value_of(config))
    setting = target.known.get(name)
    if setting is None:
        raise InvalidConfig(f"there is no {target.what} setting '{name:.80}'{nearest(name, target.known)}")
    if setting.kind != "LIST":
        word = ConfigOperation(operation).name
        raise RefusedApi(Code.INVALID_CONFIG, f"Can't {word} to key '{name:.{SHOWN}}' because its type is not LIST.")
    held = _items(effective[name])
    if operation == ConfigOperation.APPEND:
        return ",".join([*held, *(item for item in given if item not in held)])
    return ",".join(item for item in held if item not in given)


def _items(text: str) -> list[str]:
    return [item for item in map(str.strip, text.split(",")) if item]


MAX_ANSWER = 32 << 20
ENTRY, ENTRY_DOCUMENTED = 150, 250  # about how many bytes one setting takes at most, without and with documentation


@serves(
    ApiKey.DESCRIBE_CONFIGS,
    needs=needs.topic(Op.DESCRIBE_CONFIGS) + needs.cluster(Op.DESCRIBE_CONFIGS) + needs.group(Op.DESCRIBE_CONFIGS),
)
async def describe_configs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The settings of topics, groups and this broker, with their sources (KIP-133, KIP-226)."""
    results = []
    size = 0
    for resource in request["resources"]:
        named = {"resource_type": resource["resource_type"], "resource_name": resource["resource_name"]}
        try:
            if size > MAX_ANSWER:
                raise RefusedApi(
                    Code.INVALID_REQUEST, f"more than {MAX_ANSWER} bytes: ask for fewer resources or keys at once"
                )
            entries = _describe(session, resource, request)
            size += len(entries) * (ENTRY_DOCUMENTED if request["include_documentation"] else ENTRY)
            results.append({**DONE, **named, "configs": entries})
        except NO as error:
            results.append({**refusal(error), **named, "configs": []})
        await session.pause()
    return {"results": results}


def _describe(session: KafkaSessionPort, resource: Message, request: Message) -> list[Message]:
    kind, name, chosen = resource["resource_type"], resource["resource_name"], resource["configuration_keys"]
    shown = SettingsShown(
        None if chosen is None else frozenset(chosen), request["include_synonyms"], request["include_documentation"]
    )
    if kind == ConfigResource.TOPIC:
        topic = topic_named(session, check_topic_name(name), Op.DESCRIBE_CONFIGS)
        if topic is None:
            raise RefusedApi(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
        return topic_entries(topic.given, session.access.topic_layers(), topic.defaults, shown)
    if kind == ConfigResource.GROUP:
        session.access.check(Resource.GROUP, name, Op.DESCRIBE_CONFIGS)
    else:
        session.access.check(Resource.CLUSTER, CLUSTER_NAME, Op.DESCRIBE_CONFIGS)
    if kind == ConfigResource.BROKER:
        cluster = session.access.cluster(Op.DESCRIBE_CONFIGS)
        dynamic = cluster.dynamic
        if name == "":
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            return held_entries(dynamic, name, source, shown)
        check_broker(session, name)
        told = session.nodes()[session.broker.id]
        host = f"[{told.host}]" if ":" in told.host else told.host
        return broker_entries(cluster.settings(f"{host}:{told.port}"), dynamic, shown)
    if kind == ConfigResource.GROUP:
        if not name:
            raise RefusedApi(Code.INVALID_REQUEST, "Group name must not be empty.")
        return group_entries(session.access.kafka_group(name, Op.DESCRIBE_CONFIGS).settings, name, shown)
    if kind == ConfigResource.CLIENT_METRICS:
        return []
    if kind == ConfigResource.BROKER_LOGGER:
        check_broker(session, name)
        raise RefusedApi(Code.INVALID_REQUEST, _NO_LOGGERS)
    raise RefusedApi(
        Code.INVALID_REQUEST,
        f"resources of type {kind} have no settings here: topics (2), brokers (4) and groups (32) do",
    )


SINCE_ALL = 1  # the version from which any type may be asked for


@serves(ApiKey.LIST_CONFIG_RESOURCES, needs=needs.cluster(Op.DESCRIBE_CONFIGS))
def list_config_resources(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The resources that have settings (KIP-1142). Version 0 asks for client metrics (KIP-714): there are none."""
    if (denied := denied_on_cluster(session, Op.DESCRIBE_CONFIGS)) is not None:
        return {**denied, "config_resources": []}
    wanted = request["resource_types"] if version >= SINCE_ALL else [ConfigResource.CLIENT_METRICS]
    types = set(wanted) or set(ConfigResource)
    if types - set(ConfigResource):
        return {"error_code": Code.UNSUPPORTED_VERSION, "config_resources": []}
    found = []
    if ConfigResource.TOPIC in types:
        topics = sorted(session.access.topics(Op.DESCRIBE_CONFIGS))
        found += [{"resource_name": name, "resource_type": ConfigResource.TOPIC} for name in topics]
    if ConfigResource.BROKER in types:
        brokers = sorted(session.broker.image.brokers)
        found += [{"resource_name": str(id), "resource_type": ConfigResource.BROKER} for id in brokers]
    if ConfigResource.GROUP in types:
        names = session.access.configured_groups(Op.DESCRIBE_CONFIGS)
        found += [{"resource_name": name, "resource_type": ConfigResource.GROUP} for name in names]
    return {"error_code": 0, "config_resources": found}
