"""Doubles: keys that stand in several partitions of a topic. One pass over the keys of all partitions finds them. Its
result serves all readers of the topic as it was when the pass began, or before."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import trio

from krappy.store.keys import PREFIX_SIZE, view_end, view_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from krappy.store.views import Views

MOST, MOST_BYTES = 1_000, 64 << 10  # keys that are kept, and bytes of them
KEYS, BYTES = 8_000, 4 << 20  # keys that are held at a time, of all partitions, and bytes of them
TURN = 4_000  # keys read in one turn: some milliseconds


class Doubles(NamedTuple):
    """`applied`: by partition, the offset below which events are covered. `keys`: None: too many to be kept. Some of
    the keys may stand in one partition only, or in none any more."""

    applied: dict[int, int]
    keys: frozenset[bytes] | None

    def cover(self, applied: dict[int, int]) -> bool:
        """Whether the keys of views as of these offsets are covered."""
        return applied.keys() == self.applied.keys() and all(at <= self.applied[each] for each, at in applied.items())


class _Reading:
    """The keys of one view, in order."""

    def __init__(self, views: Views, number: int) -> None:
        self._views = views
        self._at: bytes | None = view_prefix(number)
        self._end = view_end(number)
        self.keys: list[bytes] = []  # read and not taken yet

    @property
    def ended(self) -> bool:
        """Whether the keys that are not taken yet are the last."""
        return self._at is None

    def read(self, count: int) -> None:
        if self._at is not None:
            stored, self._at = self._views.keys(self._at, self._end, count)
            self.keys += [key[PREFIX_SIZE:] for key in stored]

    def take(self, last: bytes | None) -> list[bytes]:
        """The keys up to `last`, or all."""
        count = len(self.keys) if last is None else bisect_right(self.keys, last)
        taken = self.keys[:count]
        del self.keys[:count]
        return taken


async def doubles(views: Views, numbers: Sequence[int]) -> frozenset[bytes] | None:
    """The keys that stand in several of these views; None if there are more than `MOST`. Takes half a microsecond for
    each key. Raises StorageError."""
    found: set[bytes] = set()
    left = [_Reading(views, number) for number in numbers]
    step, looked = 1, 0
    while left:
        for each in left:
            if len(each.keys) <= step // 2:
                each.read(step)
                looked += step
                if looked >= TURN:
                    looked = 0
                    await trio.lowlevel.checkpoint()
        held, size = sum(len(each.keys) for each in left), sum(sum(map(len, each.keys)) for each in left)
        last = min((each.keys[-1] for each in left if not each.ended), default=None)
        parts = [each.take(last) for each in left]
        if len(set().union(*parts)) < sum(map(len, parts)):
            found.update(key for key, times in Counter(chain.from_iterable(parts)).items() if times > 1)
            if len(found) > MOST or sum(map(len, found)) > MOST_BYTES:
                return None
        left = [each for each in left if each.keys or not each.ended]
        step = max(1, min(2 * step, KEYS // len(numbers), BYTES * held // (len(numbers) * (size + 1))))
    return frozenset(found)
