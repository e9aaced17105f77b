"""The partition of a key: murmur2 of the key, as by Kafka's default partitioner.

It must equal Java's exactly, because a key must go to the same partition whichever client sends it (KIP-480;
`org.apache.kafka.common.utils.Utils.murmur2`, `BuiltInPartitioner.partitionForKey`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

SEED = 0x9747B28C
_M = 0x5BD1E995
_U32 = 0xFFFFFFFF
FEW = 6  # up to this many keys of one length are hashed one by one
LONG = 1024  # keys of this many bytes or more are hashed one by one, too
LANE = 8  # bytes for each key in a number that holds many
_HASH_BITS = 31


@lru_cache(maxsize=256)
def _words(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


def murmur2_unsigned(data: bytes) -> int:
    """The 32-bit hash as an unsigned number. (Java's `Utils.murmur2` gives the same bits, signed.)"""
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


def any_elsewhere(keys: Sequence[bytes], partitions: int, index: int) -> bool:
    """Whether any of these keys belongs to another partition than `index`.

    Keys of one length are hashed together, as one large number with 64 bits for each key. That takes a tenth of the
    time, and needs no library. Long keys, or a few, are hashed one by one.
    """
    if partitions == 1 or not keys:
        return False
    if len(sizes := set(map(len, keys))) == 1:
        return not _all_in(keys, sizes.pop(), partitions, index)
    by_size: dict[int, list[bytes]] = {}
    for key in keys:
        by_size.setdefault(len(key), []).append(key)
    return not all(_all_in(alike, size, partitions, index) for size, alike in by_size.items())


def _all_in(keys: Sequence[bytes], size: int, partitions: int, index: int) -> bool:
    """Whether `index` is the partition of all of these keys, each of `size` bytes."""
    count = len(keys)
    if count <= FEW or size >= LONG:
        return all(partition_for(key, partitions) == index for key in keys)
    ones, low, by24, by13, by15 = _masks(count)
    pad = bytes(-size % LANE)
    lanes = memoryview(pad.join(keys) + pad).cast("Q")
    stride = len(lanes) // count
    h = ones * (SEED ^ size)
    octets = 0
    for at in range(0, size, 4):
        if at % LANE == 0:
            octets = int.from_bytes(lanes[at // LANE :: stride].tobytes(), "little")  # eight bytes of each key
        k = octets >> 8 * (at % LANE) & low  # four of these bytes
        if at + 4 <= size:
            k = k * _M & low
            h = (h * _M ^ (k ^ k >> 24 & by24) * _M) & low
        else:
            h = (h ^ k) * _M & low
    h = (h ^ h >> 13 & by13) * _M & low
    h ^= h >> 15 & by15
    if partitions & (partitions - 1) == 0:
        return h & ones * (partitions - 1) == ones * index
    return _remainders(h & ones * 0x7FFFFFFF, partitions, ones) == ones * index


def _remainders(h: int, partitions: int, ones: int) -> int:
    """The remainder of the 31-bit number in each lane, divided by `partitions`: by a product and a shift (Granlund and
    Montgomery, "Division by Invariant Integers using Multiplication", 1994)."""
    shift = _HASH_BITS + (partitions - 1).bit_length()
    magic = -(-(1 << shift) // partitions)
    quotients = h * magic >> shift & ones * ((1 << 8 * LANE - shift) - 1)
    return h - quotients * partitions


@lru_cache(maxsize=32)
def _masks(count: int) -> tuple[int, int, int, int, int]:
    """Numbers with the same bits in each lane: a 1, then the lowest 32, 8, 19 and 17 bits (32 bits shifted right by 0,
    24, 13 and 15)."""
    ones = int.from_bytes((1).to_bytes(LANE, "little") * count, "little")
    return ones, ones * _U32, ones * (_U32 >> 24), ones * (_U32 >> 13), ones * (_U32 >> 15)
