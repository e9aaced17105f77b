"""AlterConfigs (33): a topic's settings are from now on those given; all others go back to their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from krappy.handlers.kafka.config_changes import change_configs, value_of
from krappy.ports import KafkaSessionPort, TopicPort

Message = dict[str, Any]


async def alter_configs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return await change_configs(session, request, _replaced)


def _replaced(topic: TopicPort, configs: list[Message]) -> Mapping[str, str | None]:
    return {**dict.fromkeys(topic.given), **{config["name"]: value_of(config) for config in configs}}
