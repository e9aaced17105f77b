"""ListConfigResources (74): the resources that have settings (KIP-1142). Version 0 asks for client metrics alone
(KIP-714), of which there are none."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.config_entries import ConfigResource
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

SINCE_ALL = 1  # the version from which any type may be asked for


@serves(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, needs=needs.cluster(Op.DESCRIBE_CONFIGS))
def list_config_resources(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    wanted = request["resource_types"] if version >= SINCE_ALL else [ConfigResource.CLIENT_METRICS]
    types = set(wanted) or set(ConfigResource)
    if types - set(ConfigResource):
        return {"throttle_time_ms": 0, "error_code": Code.UNSUPPORTED_VERSION, "config_resources": []}
    found = []
    if ConfigResource.TOPIC in types:
        topics = sorted(session.access.topics(Op.DESCRIBE_CONFIGS))
        found += [{"resource_name": name, "resource_type": ConfigResource.TOPIC} for name in topics]
    if ConfigResource.BROKER in types:
        brokers = sorted(session.broker.image.brokers)
        found += [{"resource_name": str(id), "resource_type": ConfigResource.BROKER} for id in brokers]
    if ConfigResource.GROUP in types:
        names = session.access.kafka_groups(Op.DESCRIBE_CONFIGS).settings.names()
        found += [{"resource_name": name, "resource_type": ConfigResource.GROUP} for name in names]
    return {"throttle_time_ms": 0, "error_code": 0, "config_resources": found}
