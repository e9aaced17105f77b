"""ApiVersions (18): what this broker speaks, from the registry itself (KIP-35, KIP-511)."""

from __future__ import annotations

import re
from typing import Any

from krappy.handlers.kafka.registry import KafkaRegistry
from krappy.ports import KafkaSessionPort

INVALID_REQUEST = 42
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # KIP-511
_NAMED_SINCE = 3  # the version from which clients say what software they are


class ApiVersions:
    """The handler, and the server's answer to a version of this API that does not exist."""

    def __init__(self, registry: KafkaRegistry) -> None:
        self._registry = registry

    def __call__(self, session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
        if version >= _NAMED_SINCE and not (
            _SOFTWARE.fullmatch(request["client_software_name"])
            and _SOFTWARE.fullmatch(request["client_software_version"])
        ):
            return self.answer(INVALID_REQUEST)
        return self.answer()

    def answer(self, error: int = 0) -> dict[str, Any]:
        features = self._registry.features.items()
        return {
            "error_code": error,
            "api_keys": [
                {"api_key": key, "min_version": low, "max_version": high} for key, low, high in self._registry.ranges()
            ],
            "throttle_time_ms": 0,
            "supported_features": [
                {"name": name, "min_version": level, "max_version": level} for name, level in features
            ],
            "finalized_features_epoch": 0 if features else -1,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level} for name, level in features
            ],
        }
