"""Where to cut the keys of a table so that the parts hold about equal numbers of entries. Pure.

A range is described by a list of pieces: a start key, and about how many entries there are up to the next piece. Table
files give rough pieces without reading any key. Pieces that are too heavy are split further by counting or sampling.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

FINE = 8  # pieces that a part should consist of, so that it is cut to within an eighth of its size
PRECISION = 16  # bytes behind the common prefix of two keys that their midpoint uses
LEAST = 200  # entries that are worth a part of their own


class WeightedPiece(NamedTuple):
    start: bytes
    weight: float


class KeyFile(NamedTuple):
    """A table file: the first and the last key in it, and how many entries it has."""

    first: bytes
    last: bytes
    entries: float


def pieces(first: bytes, end: bytes, files: Iterable[KeyFile]) -> list[WeightedPiece]:
    """The pieces of the range from `first` to before `end`, by the table files.

    A file's entries count evenly for all pieces that it overlaps; all of them, even if it reaches beyond the range:
    counting later corrects too high a weight, but not too low a one.
    """
    here = [file for file in files if file.first < end and file.last >= first]
    starts = sorted({first, *(file.first for file in here if file.first > first)})
    weights = [0.0] * len(starts)
    for file in here:
        begin = max(0, bisect_left(starts, file.first))
        stop = max(begin + 1, bisect_left(starts, file.last))
        for at in range(begin, stop):
            weights[at] += file.entries / (stop - begin)
    return [WeightedPiece(start, weight) for start, weight in zip(starts, weights, strict=True)]


def midpoint(low: bytes, high: bytes) -> bytes:
    """A key half-way between two, taken as numbers; `low` if there is none that is not much longer than they are."""
    same = next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    a = int.from_bytes(low[same : same + PRECISION].ljust(PRECISION, b"\0"), "big")
    b = int.from_bytes(high[same : same + PRECISION].ljust(PRECISION, b"\0"), "big")
    return max(low, low[:same] + ((a + b) // 2).to_bytes(PRECISION, "big").rstrip(b"\0"))


def weight(some: Iterable[WeightedPiece]) -> float:
    return sum(piece.weight for piece in some)


def allot(weights: Sequence[float], parts: int) -> list[int]:
    """How many parts to cut each of several ranges into: at least one, and more for heavier ones. `parts`: about in
    total."""
    total = sum(weights)
    most = min(float(parts), total / LEAST)
    return [max(1, round(most * weight / total)) if total else 1 for weight in weights]


def cut(some: Sequence[WeightedPiece], parts: int) -> list[bytes]:
    """The start keys of all parts but the first, chosen from the pieces' starts so that weights are about equal."""
    sums = [0.0, *accumulate(piece.weight for piece in some)]
    found: list[bytes] = []
    for part in range(1, parts):
        wanted = sums[-1] * part / parts
        at = bisect_left(sums, wanted)
        if at and wanted - sums[at - 1] < sums[at] - wanted:
            at -= 1
        if 0 < at < len(some) and (not found or some[at].start > found[-1]):
            found.append(some[at].start)
    return found
