"""What AlterConfigs and IncrementalAlterConfigs share: each resource once, its changes checked, then made or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from krappy.handlers.kafka.config_targets import Target, Wanted, target
from krappy.handlers.kafka.refusals import DONE, NO, SHOWN, Refused, more_than_once, refusal
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code

Message = dict[str, Any]
Changes = Callable[[Target, list[Message]], Wanted]


async def change_configs(session: KafkaSessionPort, request: Message, changes: Changes) -> Message:
    """The answer. `changes` says what a resource's entry asks of its target."""
    resources = request["resources"]
    asked = {(each["resource_type"], each["resource_name"]): each for each in resources}
    twice = more_than_once((each["resource_type"], each["resource_name"]) for each in resources)
    responses = []
    for (kind, name), resource in asked.items():
        try:
            if (kind, name) in twice:
                raise Refused(Code.INVALID_REQUEST, "Each resource must appear at most once.")
            found = target(session, kind, name)
            configs = resource["configs"]
            if more := more_than_once(config["name"] for config in configs):
                raise Refused(Code.INVALID_REQUEST, f"Error due to duplicate config keys: '{min(more):.{SHOWN}}'")
            wanted = changes(found, configs)
            found.check(wanted)
            if wanted and not request["validate_only"]:
                await found.alter(wanted)
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
