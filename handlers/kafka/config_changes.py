"""What AlterConfigs and IncrementalAlterConfigs share: each resource once, its changes checked, then made or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from krappy.handlers.kafka.config_entries import Resource
from krappy.handlers.kafka.describe_configs import check_broker
from krappy.handlers.kafka.refusals import DONE, NO, SHOWN, Refused, bounded, more_than_once, refusal
from krappy.handlers.kafka.sources import check_not_internal
from krappy.ports import KafkaSessionPort, TopicPort
from krappy.topic_config import check_topic_name, merge
from krappy.wire.kafka import Code

Message = dict[str, Any]
Changes = Callable[[TopicPort, list[Message]], Mapping[str, str | None]]


async def change_configs(session: KafkaSessionPort, request: Message, changes: Changes) -> Message:
    """The answer. `changes` says what a resource's entry asks of a topic: None takes a setting back to its default."""
    resources = bounded(request["resources"])
    asked = {(each["resource_type"], each["resource_name"]): each for each in resources}
    twice = more_than_once((each["resource_type"], each["resource_name"]) for each in resources)
    responses = []
    for (kind, name), resource in asked.items():
        try:
            if (kind, name) in twice:
                raise Refused(Code.INVALID_REQUEST, "Each resource must appear at most once.")
            if kind != Resource.TOPIC:
                _refuse(session, kind, name)
            check_not_internal(session, check_topic_name(name))
            topic = session.broker.topics.get(name)
            if topic is None:
                raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            configs = resource["configs"]
            if more := more_than_once(config["name"] for config in configs):
                raise Refused(Code.INVALID_REQUEST, f"Error due to duplicate config keys: '{min(more):.{SHOWN}}'")
            wanted = changes(topic, configs)
            merge(topic.given, wanted)
            if wanted and not request["validate_only"]:
                await session.broker.alter_topic(name, wanted, None)
            responses.append({"resource_type": kind, "resource_name": name, **DONE})
        except NO as error:
            responses.append({"resource_type": kind, "resource_name": name, **refusal(error)})
        await session.pause()
    return {"throttle_time_ms": 0, "responses": responses}


def value_of(config: Message) -> str:
    """Raises Refused for a null, which stands for nothing in these requests."""
    value = config["value"]
    if value is None:
        raise Refused(Code.INVALID_REQUEST, f"Null value not supported for '{config['name']:.{SHOWN}}'")
    return str(value)


def _refuse(session: KafkaSessionPort, kind: int, name: str) -> None:
    if kind in (Resource.BROKER, Resource.BROKER_LOGGER):
        if name:
            check_broker(session, name)
        text = (
            "a broker's settings are read when it starts and can't be changed while it runs: see `krappy serve --help`"
        )
        raise Refused(Code.INVALID_REQUEST, text)
    if kind in (Resource.GROUP, Resource.CLIENT_METRICS):
        what = "groups" if kind == Resource.GROUP else "client metrics"
        raise Refused(Code.INVALID_REQUEST, f"{what} have no settings of their own in this broker")
    raise Refused(Code.INVALID_REQUEST, f"resources of type {kind} are not known")
