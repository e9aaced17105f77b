"""AlterConfigs (33): replaces all settings of a topic, broker or group by those given."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.config_changes import Wanted, change_configs, value_of
from krappy.handlers.kafka.config_targets import Target
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.settings.topic_table import Held
from krappy.wire.kafka import ApiKey

Message = dict[str, Any]


@serves(
    ApiKey.ALTER_CONFIGS,
    0,
    2,
    needs=needs.topic(Op.ALTER_CONFIGS) + needs.cluster(Op.ALTER_CONFIGS) + needs.group(Op.ALTER_CONFIGS),
)
async def alter_configs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return await change_configs(session, request, _replaced)


def _replaced(target: Target, configs: list[Message], held: Held, effective: Held) -> Wanted:
    return {**dict.fromkeys(held), **{config["name"]: value_of(config) for config in configs}}
