"""UpdateFeatures (57): each feature has one level, and any other is refused (KIP-584, KIP-778)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.refusals import DONE, SHOWN, RefusedApi, refusal
from krappy.handlers.kafka.registry import REGISTRY, serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

Message = dict[str, Any]


@serves(ApiKey.UPDATE_FEATURES, 0, 2, needs=needs.cluster(Op.ALTER))
def update_features(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """If one update is refused, all are, as by Kafka's controller."""
    updates = request["feature_updates"]
    try:
        for update in updates:
            _check(update["feature"], update["max_version_level"])
    except RefusedApi as error:
        return {"throttle_time_ms": 0, **refusal(error), "results": []}
    results = [{"feature": update["feature"], **DONE} for update in updates]
    return {"throttle_time_ms": 0, **DONE, "results": results}


def _check(name: str, level: int) -> None:
    only = REGISTRY.features.get(name)
    if only is None:
        text = f"Invalid update version {level} for feature {name:.{SHOWN}}. This broker does not support it."
        raise RefusedApi(Code.INVALID_UPDATE_VERSION, text)
    if level != only:
        text = f"Invalid update version {level} for feature {name}. This broker supports only version {only} of it."
        raise RefusedApi(Code.INVALID_UPDATE_VERSION, text)
