"""Operations and resource types, by Kafka's names and numbers (AclOperation, ResourceType)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Op(IntEnum):
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Resource(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


CLUSTER_NAME = "kafka-cluster"  # the only name of a resource of the type CLUSTER


class Need(NamedTuple):
    """An operation that a request does to a resource that it names; declared where its handler is registered."""

    resource: Resource
    op: Op


class Grant(NamedTuple):
    """An operation on one resource, which somebody was allowed."""

    resource: Resource
    name: str
    op: Op
