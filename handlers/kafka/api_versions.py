"""ApiVersions (18): the APIs and versions that this broker serves, as the registry has them (KIP-35, KIP-511). And the
levels of its features (UpdateFeatures, 57)."""

from __future__ import annotations

import re

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.refusals import DONE, SHOWN, RefusedApi, denied_on_cluster, refusal
from krappy.handlers.kafka.registry import REGISTRY, Message, serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

INVALID_REQUEST = 42
# The levels of the features (KIP-584): KIP-848, KIP-932, KIP-890.
LEVELS = {"group.version": 1, "share.version": 1, "transaction.version": 2}
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
        "supported_features": [
            {"name": name, "min_version": level, "max_version": level} for name, level in LEVELS.items()
        ],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level} for name, level in LEVELS.items()
        ],
    }


@serves(ApiKey.UPDATE_FEATURES, needs=needs.cluster(Op.ALTER))
def update_features(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Each feature has one level, and any other is refused (KIP-584, KIP-778). If one update is refused, all are, as by
    Kafka's controller."""
    if (denied := denied_on_cluster(session, Op.ALTER)) is not None:
        return {**denied, "results": []}
    updates = request["feature_updates"]
    try:
        for update in updates:
            _check_feature(update["feature"], update["max_version_level"])
    except RefusedApi as error:
        return refusal(error)
    return {**DONE, "results": [{"feature": update["feature"], **DONE} for update in updates]}


def _check_feature(name: str, level: int) -> None:
    if LEVELS.get(name) != level:
        which = f"supports only version {LEVELS[name]} of it" if name in LEVELS else "does not support it"
        text = f"Invalid update version {level} for feature {name:.{SHOWN}}. This broker {which}."
        raise RefusedApi(Code.INVALID_UPDATE_VERSION, text)
