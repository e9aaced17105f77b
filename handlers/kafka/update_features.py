"""UpdateFeatures (57): features are at the only level that there is of them; others are refused (KIP-584, KIP-778)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from krappy.handlers.kafka.refusals import DONE, SHOWN, Refused, refusal
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code

Message = dict[str, Any]


class UpdateFeatures:
    """`features`: the levels of those there are. One update that fails fails them all, as with Kafka's controller."""

    def __init__(self, features: Mapping[str, int]) -> None:
        self._features = features

    def __call__(self, session: KafkaSessionPort, request: Message, version: int) -> Message:
        updates = request["feature_updates"]
        try:
            for update in updates:
                self._check(update["feature"], update["max_version_level"])
        except Refused as error:
            return {"throttle_time_ms": 0, **refusal(error), "results": []}
        results = [{"feature": update["feature"], **DONE} for update in updates]
        return {"throttle_time_ms": 0, **DONE, "results": results}

    def _check(self, name: str, level: int) -> None:
        only = self._features.get(name)
        if only is None:
            text = f"Invalid update version {level} for feature {name:.{SHOWN}}. This broker does not support it."
            raise Refused(Code.INVALID_UPDATE_VERSION, text)
        if level != only:
            text = f"Invalid update version {level} for feature {name}. This broker supports only version {only} of it."
            raise Refused(Code.INVALID_UPDATE_VERSION, text)
