"""The operations that a client may do on a resource, as bits of Kafka's AclOperation (KIP-430)."""

from __future__ import annotations

from krappy.core.security.operations import CLUSTER_NAME, Resource
from krappy.ports import KafkaSessionPort

NOT_ASKED = -(2**31)


def authorized(session: KafkaSessionPort, resource: Resource, name: str) -> int:
    return sum(1 << op for op in session.access.operations(resource, name))


def authorized_on_cluster(session: KafkaSessionPort, asked: bool) -> int:
    return authorized(session, Resource.CLUSTER, CLUSTER_NAME) if asked else NOT_ASKED
