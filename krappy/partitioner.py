"""The partition of a key: murmur2 of the key, as by Kafka's default partitioner.

It must equal Java's exactly, because a key must go to the same partition whichever client sends it (KIP-480;
`org.apache.kafka.common.utils.Utils.murmur2`, `BuiltInPartitioner.partitionForKey`).
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from functools import lru_cache

from krappy.errors import InvalidRequest

SEED = 0x9747B28C
_M = 0x5BD1E995
_U32 = 0xFFFFFFFF
FEW = 6  # up to so many keys of one length are hashed one by one
SOME = 15  # the same, for keys with PREPARED words or more
PREPARED = 32  # from so many words on, the part that needs no earlier word is computed for all words together
PIECE = 4096  # words for which that is done at once
SHORT = 256  # bytes of the longest key whose partition is kept in memory: others would take much
LONG = 1024  # keys of this many bytes or more are hashed one by one, too
MOST_HASHED = 1 << 20  # bytes of long keys that are hashed in one go: 0.06 s
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
    if count >= PREPARED:
        h = _mixed_in(h, data, 0, count)
    elif count:
        for k in _words(count).unpack_from(data):
            k = k * _M & _U32
            h = (h * _M & _U32) ^ ((k ^ k >> 24) * _M & _U32)
    return _ended(h, data)


def _ended(h: int, data: bytes) -> int:
    """The final hash, from the hash after all whole words."""
    rest = len(data) & 3
    if rest:
        h = (h ^ int.from_bytes(data[-rest:], "little")) * _M & _U32
    h = (h ^ h >> 13) * _M & _U32
    return h ^ h >> 15


def _mixed_in(h: int, data: bytes, start: int, end: int) -> int:
    """The hash after these words. Each word is first multiplied, shifted and multiplied, whatever the hash is. That is
    done for many words together, as lanes of two large numbers (see `_all_in`), in less than half the time."""
    _, low, by24, _, _ = _masks(PIECE // 2)
    view = memoryview(data)
    for first in range(start, end, PIECE):
        words = min(PIECE, end - first)
        pairs = int.from_bytes(view[4 * first : 4 * (first + words)], "little")
        even, odd = (pairs & low) * _M & low, (pairs >> 32 & low) * _M & low
        even = (even ^ even >> 24 & by24) * _M & low
        odd = (odd ^ odd >> 24 & by24) * _M & low
        for k in _words(words).unpack_from((even | odd << 32).to_bytes(4 * words + 4, "little")):
            h = (h * _M & _U32) ^ k
    return h


def murmur2(data: bytes) -> int:
    """The hash as Kafka uses it to pick partitions: `Utils.toPositive`, 0 <= h < 2**31."""
    return murmur2_unsigned(data) & 0x7FFFFFFF


def murmur2_in_steps(data: bytes, step: int) -> Generator[None, None, int]:
    """As `murmur2`, but it pauses between steps of so many bytes, a multiple of 4."""
    h, end = SEED ^ len(data), len(data) & ~3
    for start in range(0, end, step):
        if start:
            yield
        h = _mixed_in(h, data, start >> 2, min(end, start + step) >> 2)
    return _ended(h, data) & 0x7FFFFFFF


def partition_for(key: bytes, partitions: int) -> int:
    """The partition (0 <= p < `partitions`) of `key`. The results for short keys are kept, because keys repeat."""
    return _kept(key, partitions) if len(key) <= SHORT else murmur2(key) % partitions


def home_of(key: bytes, partitions: int) -> int:
    """As `partition_for`, for a key that somebody sends. Raises InvalidRequest for one that would take long to hash."""
    check_length(key, partitions)
    return partition_for(key, partitions) if partitions > 1 else 0


def check_length(key: bytes, partitions: int) -> None:
    """Raises InvalidRequest for a key that is too long to be hashed."""
    if len(key) > MOST_HASHED and partitions > 1:
        what = f"a key of {len(key)} bytes: over {MOST_HASHED} its partition has to be named"
        raise InvalidRequest(what, field="partition")


def home_for(key: bytes, partitions: int) -> int:
    """The partition whose event counts as the newest when several events of one key are equally new. As
    `partition_for`, but a key that would take long to hash belongs to the first partition."""
    return partition_for(key, partitions) if len(key) <= MOST_HASHED else 0


@lru_cache(maxsize=65_536)
def _kept(key: bytes, partitions: int) -> int:
    return murmur2(key) % partitions


def any_elsewhere(keys: Sequence[bytes], partitions: int, index: int) -> bool:
    """Whether any of these keys belongs to another partition than `index`, or may belong there: if the long keys have
    so many bytes that hashing them would take long, the answer is True.

    Keys of one length are hashed together, as one large number with 64 bits for each key. That takes a tenth of the
    time, and needs no library. Long keys, or a few, are hashed one by one.
    """
    if partitions == 1 or not keys:
        return False
    if sum([len(key) for key in keys if len(key) >= LONG]) > MOST_HASHED:
        return True
    if len(sizes := set(map(len, keys))) == 1:
        return not _all_in(keys, sizes.pop(), partitions, index)
    by_size: dict[int, list[bytes]] = {}
    for key in keys:
        by_size.setdefault(len(key), []).append(key)
    return not all(_all_in(alike, size, partitions, index) for size, alike in by_size.items())


def _all_in(keys: Sequence[bytes], size: int, partitions: int, index: int) -> bool:
    """Whether `index` is the partition of all of these keys, each of `size` bytes."""
    count = len(keys)
    if size >= LONG or count <= (FEW if size < 4 * PREPARED else SOME):
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
