"""ApiVersions (18): the APIs and versions that this broker serves, as the registry has them (KIP-35, KIP-511)."""

from __future__ import annotations

import re
from typing import Any

from krappy.core.security import needs
from krappy.handlers.kafka.registry import REGISTRY, serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey

INVALID_REQUEST = 42
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # KIP-511
_NAMED_SINCE = 3  # the version from which clients name their software


@serves(ApiKey.API_VERSIONS, 0, 4, needs=needs.NOTHING)
def api_versions(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    if version >= _NAMED_SINCE and not (
        _SOFTWARE.fullmatch(request["client_software_name"]) and _SOFTWARE.fullmatch(request["client_software_version"])
    ):
        return what_is_served(INVALID_REQUEST)
    return what_is_served()


def what_is_served(error: int = 0) -> dict[str, Any]:
    """The answer, with an error code. The server sends it too, when a request's version of this API is not served."""
    features = REGISTRY.features.items()
    return {
        "error_code": error,
        "api_keys": [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in REGISTRY.ranges()],
        "throttle_time_ms": 0,
        "supported_features": [{"name": name, "min_version": level, "max_version": level} for name, level in features],
        "finalized_features_epoch": 0 if features else -1,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level} for name, level in features
        ],
    }
