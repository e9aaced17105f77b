"""DescribeCluster (60): the brokers and the controller (KIP-700)."""

from __future__ import annotations

from typing import Any

from krappy.core.cluster.state import NOBODY
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.operations import NOT_ASKED, ON_CLUSTER
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

BROKERS = 1  # the endpoint type; controllers have 2 (KIP-919)


@serves(ApiKey.DESCRIBE_CLUSTER, 0, 2, needs=needs.cluster(Op.DESCRIBE))
def describe_cluster(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    if request["endpoint_type"] != BROKERS:
        text = "this listener is a broker's, not a controller's"
        return {"error_code": Code.MISMATCHED_ENDPOINT_TYPE, "error_message": text, "controller_id": -1, "brokers": []}
    controller = session.broker.image.controller
    brokers = [
        {"broker_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack, "is_fenced": False}
        for node in session.nodes().values()
    ]
    return {
        "error_code": 0,
        "endpoint_type": BROKERS,
        "cluster_id": session.broker.cluster_id,
        "controller_id": NOBODY if controller is None else controller,
        "brokers": brokers,
        "cluster_authorized_operations": ON_CLUSTER if request["include_cluster_authorized_operations"] else NOT_ASKED,
    }
