"""What the handlers of groups have in common."""

from __future__ import annotations

from typing import Any

from krappy.core.kafka.assignors import Partition
from krappy.core.kafka.faults import Fault, Refused
from krappy.errors import KrappyError, ShuttingDown, StorageError
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import code_for

Message = dict[str, Any]


def group_code(error: KrappyError) -> int:
    """The code for an error of the coordinator. When the disk fails, it is COORDINATOR_NOT_AVAILABLE: clients retry."""
    if isinstance(error, Refused):
        return error.fault
    if isinstance(error, StorageError | ShuttingDown):
        return Fault.COORDINATOR_NOT_AVAILABLE
    return code_for(error)


def kafka_host(session: KafkaSessionPort) -> str:
    """The client's host as Kafka's tools show it."""
    return f"/{session.client_host}"


def by_topic(partitions: frozenset[Partition]) -> list[tuple[bytes, list[int]]]:
    """(topic id, its partitions), both sorted."""
    found: dict[bytes, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return [*found.items()]
