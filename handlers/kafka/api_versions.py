"""ApiVersions (18): the APIs and versions that this broker serves, as the registry has them (KIP-35, KIP-511)."""

from __future__ import annotations

import re

from krappy.core.security import needs
from krappy.handlers.kafka.registry import REGISTRY, Message, serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey

INVALID_REQUEST = 42
GROUPS, LEVEL = "group.version", 1  # the only feature (KIP-584): KIP-848
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # KIP-511
_NAMED_SINCE = 3  # the version from which clients name their software


@serves(ApiKey.API_VERSIONS, needs=needs.NOTHING)
def api_versions(session: KafkaSessionPort, request: Message, version: int) -> Message:
    if version >= _NAMED_SINCE and not (
        _SOFTWARE.fullmatch(request["client_software_name"]) and _SOFTWARE.fullmatch(request["client_software_version"])
    ):
        return what_is_served(INVALID_REQUEST)
    return what_is_served()


def what_is_served(error: int = 0) -> Message:
    """The answer, with an error code. The server sends it too, when a request's version of this API is not served."""
    return {
        "error_code": error,
        "api_keys": [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in REGISTRY.ranges()],
        "supported_features": [{"name": GROUPS, "min_version": LEVEL, "max_version": LEVEL}],
        "finalized_features_epoch": 0,
        "finalized_features": [{"name": GROUPS, "max_version_level": LEVEL, "min_version_level": LEVEL}],
    }
