"""DescribeConfigs (32): the settings of topics, groups and this broker, with their sources (KIP-133, KIP-226)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.config_entries import (
    ConfigResource,
    ConfigSource,
    broker_entries,
    group_entries,
    held_entries,
    topic_entries,
)
from krappy.handlers.kafka.config_targets import check_broker
from krappy.handlers.kafka.refusals import DONE, NO, RefusedApi, refusal
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.sources import topic_named
from krappy.ports import KafkaSessionPort
from krappy.settings.topic import check_topic_name
from krappy.wire.kafka import ApiKey, Code

Message = dict[str, Any]
MAX_ANSWER = 32 << 20
ENTRY, ENTRY_DOCUMENTED = 150, 250  # about how many bytes one setting takes at most, without and with documentation


@serves(
    ApiKey.DESCRIBE_CONFIGS,
    1,
    4,
    needs=needs.topic(Op.DESCRIBE_CONFIGS) + needs.cluster(Op.DESCRIBE_CONFIGS) + needs.group(Op.DESCRIBE_CONFIGS),
)
async def describe_configs(session: KafkaSessionPort, request: Message, version: int) -> Message:
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
    return {"throttle_time_ms": 0, "results": results}


def _describe(session: KafkaSessionPort, resource: Message, request: Message) -> list[Message]:
    kind, name, chosen = resource["resource_type"], resource["resource_name"], resource["configuration_keys"]
    shown = {"synonyms": request["include_synonyms"], "documentation": request["include_documentation"]}
    if kind == ConfigResource.TOPIC:
        topic = topic_named(session, check_topic_name(name), Op.DESCRIBE_CONFIGS)
        if topic is None:
            raise RefusedApi(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
        layers = session.access.cluster(Op.DESCRIBE_CONFIGS).dynamic.topic_layers()
        return topic_entries(topic.given, chosen, layers, topic.defaults, **shown)
    if kind == ConfigResource.BROKER:
        cluster = session.access.cluster(Op.DESCRIBE_CONFIGS)
        dynamic = cluster.dynamic
        if name == "":
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            return held_entries(dynamic, name, source, chosen, documentation=request["include_documentation"])
        check_broker(session, name)
        told = session.nodes()[session.broker.id]
        host = f"[{told.host}]" if ":" in told.host else told.host
        return broker_entries(cluster.settings(f"{host}:{told.port}"), dynamic, chosen, **shown)
    if kind == ConfigResource.GROUP:
        if not name:
            raise RefusedApi(Code.INVALID_REQUEST, "Group name must not be empty.")
        return group_entries(session.access.kafka_group(name, Op.DESCRIBE_CONFIGS).settings, name, chosen, **shown)
    if kind == ConfigResource.CLIENT_METRICS:
        return []
    raise RefusedApi(
        Code.INVALID_REQUEST,
        f"resources of type {kind} have no settings here: topics (2), brokers (4) and groups (32) do",
    )
