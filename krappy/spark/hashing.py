"""Hashes of a whole column of keys at once: word by word over all keys, instead of key by key.

It takes some 20 ns a key; a loop in Python takes 1,500.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from krappy.partitioner import SEED, partition_for

_M = np.uint32(0x5BD1E995)
_M64 = np.uint64(0xC6A4A7935BD1E995)
LONG = 1024  # bytes; longer keys, and keys of this size, are hashed one by one: each word costs a pass over all keys

Hashes = np.ndarray[Any, np.dtype[np.uint32]]
Prints = np.ndarray[Any, np.dtype[np.uint64]]


def partitions(keys: pa.Array, count: int) -> Hashes:
    """The partition (0 <= p < `count`) of each key of a binary column without nulls: the murmur2 of
    `krappy.partitioner`."""
    laid = _laid_out(keys, 4)
    hashed: Any = np.uint32(SEED) ^ laid.sizes.astype(np.uint32)
    for some, words in laid.steps():
        k = words * _M
        hashed[some] = (hashed[some] * _M) ^ ((k ^ k >> 24) * _M)
    hashed = np.where(laid.rest > 0, (hashed ^ laid.tails) * _M, hashed)
    hashed = (hashed ^ hashed >> 13) * _M
    hashed ^= hashed >> 15
    found: Hashes = (hashed & np.uint32(0x7FFFFFFF)) % np.uint32(count)
    for row in laid.long:
        found[row] = partition_for(keys[row].as_py(), count)
    return found


def fingerprints(keys: pa.Array) -> Prints:
    """64 bits for each key of a binary column without nulls (MurmurHash64A): equal for equal keys. Different keys
    hardly ever share one, unless somebody chose such keys."""
    laid = _laid_out(keys, 8)
    found: Any = laid.sizes.astype(np.uint64) * _M64
    for some, words in laid.steps():
        k = words * _M64
        found[some] = (found[some] ^ ((k ^ k >> 47) * _M64)) * _M64
    found = np.where(laid.rest > 0, (found ^ laid.tails) * _M64, found)
    found = (found ^ found >> 47) * _M64
    found ^= found >> 47
    for row in laid.long:
        found[row] = int.from_bytes(blake2b(keys[row].as_py(), digest_size=8).digest(), "little")
    prints: Prints = found
    return prints


class _Laid(NamedTuple):
    """Keys as words. `sizes`: bytes of each key; `tails`: its last `rest` bytes, after the whole words; `long`: rows of
    keys that are too long for this; `starts`: where each key begins in `words`; `counts`: its whole words."""

    sizes: Any
    rest: Any
    tails: Any
    long: list[int]
    starts: Any
    words: Any
    counts: Any

    def steps(self) -> Iterator[tuple[Any, Any]]:
        """The first word of each key that has one, then the second, and so on: rows, and their words."""
        if not len(self.sizes):
            return
        shortest, longest = int(self.counts.min()), int(self.counts.max())
        for word in range(longest):
            some: Any = slice(None) if word < shortest else np.flatnonzero(self.counts > word)
            yield some, self.words[self.starts[some] + self.words.itemsize * word]


def _laid_out(keys: pa.Array, width: int) -> _Laid:
    """The keys as little-endian words of `width` bytes."""
    kind = np.dtype(f"<u{width}")
    _, offsets, data = keys.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(keys) + 1, 4 * keys.offset) if len(keys) else np.zeros(1, np.int32)
    first, sizes = int(bounds[0]), np.diff(bounds)
    starts, end = bounds[:-1] - first, int(bounds[-1]) - first
    octets = np.zeros(end + width, np.uint8)  # a word may be read beyond the last key
    if end:
        octets[:end] = np.frombuffer(data, np.uint8, end, first)
    words: Any = np.ndarray((end + 1,), kind, octets, strides=(1,))  # a word begins at every byte, aligned or not
    rest = (sizes & (width - 1)).astype(kind)
    tails = words[starts + (sizes & -width)] & ((kind.type(1) << (rest << 3)) - kind.type(1))
    counts = np.where(sizes < LONG, sizes // width, 0)
    return _Laid(sizes, rest, tails, np.flatnonzero(sizes >= LONG).tolist(), starts, words, counts)
