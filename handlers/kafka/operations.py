"""What anybody may do with a resource, as bits of Kafka's AclOperation: everything, as long as nobody is authorised.

The same as Kafka answers without an authorizer (KIP-430; AclEntry.supportedOperations).
"""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
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


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_O = Operation
_CONFIGS = (_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)
NOT_ASKED = -(2**31)
ON_TOPIC = _bits(_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, *_CONFIGS)
ON_GROUP = _bits(_O.READ, _O.DELETE, _O.DESCRIBE, *_CONFIGS)
ON_CLUSTER = _bits(_O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.IDEMPOTENT_WRITE, *_CONFIGS)
