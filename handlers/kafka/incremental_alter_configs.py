"""IncrementalAlterConfigs (44): SET, DELETE, and on lists APPEND and SUBTRACT (KIP-339)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import InvalidConfig
from krappy.handlers.kafka.config_changes import Wanted, change_configs, value_of
from krappy.handlers.kafka.config_targets import Target
from krappy.handlers.kafka.refusals import SHOWN, RefusedApi
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.settings.topic import nearest
from krappy.settings.topic_table import Held
from krappy.wire.kafka import ApiKey, Code

Message = dict[str, Any]


class ConfigOperation(IntEnum):
    """Kafka's AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@serves(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    0,
    1,
    needs=needs.topic(Op.ALTER_CONFIGS) + needs.cluster(Op.ALTER_CONFIGS) + needs.group(Op.ALTER_CONFIGS),
)
async def incremental_alter_configs(session: KafkaSessionPort, request: Message, version: int) -> Message:
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
