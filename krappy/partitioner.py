"""Which partition a key belongs to: murmur2 of the key, as Kafka's default partitioner does.

Exact parity with Java matters: a key must land in one partition whichever client sends it (KIP-480;
`org.apache.kafka.common.utils.Utils.murmur2`, `BuiltInPartitioner.partitionForKey`).
"""

from __future__ import annotations

import struct
from functools import lru_cache

SEED = 0x9747B28C
_M = 0x5BD1E995
_U32 = 0xFFFFFFFF


@lru_cache(maxsize=256)
def _words(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


def murmur2_unsigned(data: bytes) -> int:
    """The 32-bit hash as an unsigned number (Java's `Utils.murmur2` is the same bits, signed)."""
    size = len(data)
    h = SEED ^ size
    count = size >> 2
    if count:
        for k in _words(count).unpack_from(data):
            k = k * _M & _U32
            h = (h * _M & _U32) ^ ((k ^ k >> 24) * _M & _U32)
    rest = size & 3
    if rest:
        h = (h ^ int.from_bytes(data[-rest:], "little")) * _M & _U32
    h = (h ^ h >> 13) * _M & _U32
    return h ^ h >> 15


def murmur2(data: bytes) -> int:
    """The hash as Kafka uses it to pick partitions: `Utils.toPositive`, 0 <= h < 2**31."""
    return murmur2_unsigned(data) & 0x7FFFFFFF


@lru_cache(maxsize=65_536)
def partition_for(key: bytes, partitions: int) -> int:
    """The partition (0 <= p < `partitions`) of `key`. Cached: keys repeat."""
    return (murmur2_unsigned(key) & 0x7FFFFFFF) % partitions
