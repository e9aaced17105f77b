"""What AlterConfigs and IncrementalAlterConfigs share: a resource's changes are checked, then all made or none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from krappy.handlers.kafka.config_targets import Target, target
from krappy.handlers.kafka.refusals import DONE, NO, SHOWN, RefusedApi, more_than_once, refusal
from krappy.ports import KafkaSessionPort
from krappy.settings.topic_table import Held
from krappy.wire.kafka import Code

Message = dict[str, Any]
Wanted = dict[str, str | None]  # None resets a setting to its default
Asked = Callable[[Target, list[Message], Held, Held], Wanted]


async def change_configs(session: KafkaSessionPort, request: Message, asked_of: Asked) -> Message:
    """The answer. `asked_of(target, configs, held, effective)` gives the changes that a resource's entry asks for, by
    the settings set for the target and those in force. It is called twice: to check the changes, and again when they
    are made, while nobody else can change the same settings."""
    resources = request["resources"]
    asked = {(each["resource_type"], each["resource_name"]): each for each in resources}
    twice = more_than_once((each["resource_type"], each["resource_name"]) for each in resources)
    responses = []
    for (kind, name), resource in asked.items():
        try:
            if (kind, name) in twice:
                raise RefusedApi(Code.INVALID_REQUEST, "Each resource must appear at most once.")
            found = target(session, kind, name)
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
    return {"throttle_time_ms": 0, "responses": responses}


def value_of(config: Message) -> str:
    """The value. Raises RefusedApi for null, which has no meaning in these requests."""
    value = config["value"]
    if value is None:
        raise RefusedApi(Code.INVALID_REQUEST, f"Null value not supported for '{config['name']:.{SHOWN}}'")
    return str(value)
