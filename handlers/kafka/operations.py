"""The operations that a client may do on a resource, as bits of Kafka's AclOperation.

There is no authorizer, so clients may do all, as Kafka answers without one (KIP-430; AclEntry.supportedOperations).
"""

from __future__ import annotations

from krappy.core.security.operations import Op


def _bits(*operations: Op) -> int:
    return sum(1 << operation for operation in operations)


_CONFIGS = (Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS)
NOT_ASKED = -(2**31)
ON_TOPIC = _bits(Op.READ, Op.WRITE, Op.CREATE, Op.DELETE, Op.ALTER, Op.DESCRIBE, *_CONFIGS)
ON_GROUP = _bits(Op.READ, Op.DELETE, Op.DESCRIBE, *_CONFIGS)
ON_CLUSTER = _bits(Op.CREATE, Op.ALTER, Op.DESCRIBE, Op.CLUSTER_ACTION, Op.IDEMPOTENT_WRITE, *_CONFIGS)
