"""The events that a bench sends. They are made before the measured time, and are the same each time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

VARIETY = 1024  # different values; more would only spend memory


class Load(NamedTuple):
    """Events as columns of equal length."""

    keys: list[bytes]
    values: list[bytes]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, self.values))

    def batches(self, rows: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Keys and values, `rows` at a time."""
        for first in range(0, len(self.values), rows):
            yield self.keys[first : first + rows], self.values[first : first + rows]


def key(number: int) -> bytes:
    """The key with this number: 12 bytes, which sort as the numbers do."""
    return b"k%011d" % number


def make(events: int, record_bytes: int, keys: int, seed: int = 1) -> Load:
    """`events` events of `record_bytes` bytes each (key and value), with keys drawn at random from `keys` keys.

    Values are text that compresses to about half, as JSON does.
    """
    chance = random.Random(seed)
    length = max(0, record_bytes - len(key(0)))
    values = [_value(chance, length) for _ in range(min(events, VARIETY))]
    names = [key(number) for number in range(keys)]
    return Load(chance.choices(names, k=events), [values[index % len(values)] for index in range(events)])


def every_key(keys: int, record_bytes: int, seed: int = 1) -> Load:
    """One event for each of `keys` keys, to fill a table."""
    load = make(keys, record_bytes, 1, seed)
    return Load([key(number) for number in range(keys)], load.values)


def _value(chance: random.Random, length: int) -> bytes:
    noise = chance.randbytes(length // 3 + 1).hex().encode()
    return (noise + b'{"name": "value", "count": 12345}' * (length // 30 + 1))[:length]
