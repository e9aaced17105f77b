"""Finds the event with the highest timestamp when the segments' `max_timestamp` does not lead to it.

Compaction keeps a batch's max timestamp even if the event that had it is gone; and that event may be at or behind the
limit of the search. So all batches' headers are read, and then the few batches that may have the event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest

from krappy.errors import CorruptBatch
from krappy.store.opening import latest
from krappy.store.segment import Segment
from krappy.store.walk import Damage, headers

AT_ONCE = 100  # batches that one walk over the headers collects
Found = tuple[int, int]  # timestamp, and the negated offset: so of equal timestamps the first event is the greatest
Place = tuple[int, int, int]  # max timestamp of a batch, its negated position, its size


def search(segments: Iterable[Segment], start: int, stop: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record with the highest timestamp among those from `start` to before `stop`.

    Raises CorruptBatch that names file and position, OSError.
    """
    best: Found = (-1, 0)
    for segment in sorted(segments, key=lambda each: (-each.max_timestamp, each.base_offset)):
        if segment.max_timestamp < max(best[0], 0):
            break
        if segment.base_offset < stop:
            best = max(best, _in_segment(segment, start, stop))
    return None if best[0] < 0 else (-best[1], best[0])


def _in_segment(segment: Segment, start: int, stop: int) -> Found:
    best: tuple[Found, int] = (-1, 0), 0  # and its batch's negated position
    below: Place | None = None
    while True:
        some = nlargest(AT_ONCE, _places(segment, start, stop, below))
        for place in some:
            if place[:2] <= (best[0][0], best[1]):  # no other batch has a later time, or an equal one further in front
                return best[0]
            best = max(best, (_in_batch(segment, place, start, stop), place[1]))
        if len(some) < AT_ONCE:
            return best[0]
        below = some[-1]


def _places(segment: Segment, start: int, stop: int, below: Place | None) -> Iterator[Place]:
    position, expected = segment.find(max(start, segment.base_offset))
    try:
        for at, header in headers(segment.handle().file, position, segment.size, expected, dense=segment.dense):
            if header.base_offset >= stop:
                return
            place = header.max_timestamp, -at, header.size
            if header.count and (below is None or place < below):
                yield place
    except Damage as damage:
        raise segment.corrupt(damage.position, damage.text) from None


def _in_batch(segment: Segment, place: Place, start: int, stop: int) -> Found:
    _, position, size = place
    data = segment.handle().file.pread(size, -position)
    try:
        return latest(data, start, stop)
    except CorruptBatch as error:
        raise segment.corrupt(-position, error.text) from None
