"""The ranges of keys that a snapshot is read by, cut so that they hold about equal numbers of entries.

Counting a key costs half of what reading its entry does, so a table is counted only while it is small. A large one is
cut between its files. Within a file it is halved again and again. The size of a half is estimated by going down the
tree of its halves at random (Knuth, "Estimating the Efficiency of Backtrack Programs", 1975). That takes some ten
milliseconds, however large the table is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from krappy.core import splits
from krappy.core.splits import FINE, WeightedPiece
from krappy.store.keys import PREFIX_SIZE, key_range

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.tables.table import Chosen
    from krappy.store.views import Views

Range = tuple[int, bytes | None, bytes | None]
FEW = 1_000_000  # up to so many entries, all are counted, in a quarter of a second
STRETCH = 2_048  # keys counted at a time: half a millisecond
STEP = 16  # keys that a counted piece holds
ROOM = 4 << 20  # bytes of the keys where counted pieces begin; keys behind these belong to the last piece
TINY = 16  # a half with so few keys is not split further: its keys are counted
SAMPLES = 2  # estimates of a half's size
MOST, MOST_IN_ALL = 32, 512  # about the most pieces that sampling makes of one piece, and of all pieces
PROBES = 300  # the most probes for the middle of a range


async def ranges(views: Views, partitions: Sequence[Partition], chosen: Chosen, parts: int) -> list[Range]:
    """At most about `parts` ranges, or one for each partition. Raises StorageError."""
    whole: list[Range] = [(partition.index, chosen.start, chosen.end) for partition in partitions]
    if parts <= len(partitions):
        return whole
    bounds = [key_range(partition.number, chosen.start, chosen.end, chosen.prefix) for partition in partitions]
    known = await _refined(views, bounds, parts)
    found: list[Range] = []
    for (index, start, end), some, share in zip(
        whole, known, splits.allot([splits.weight(each) for each in known], parts), strict=True
    ):
        cuts = [key[PREFIX_SIZE:] for key in splits.cut(some, share)]
        found += [(index, *each) for each in zip([start, *cuts], [*cuts, end], strict=True)]
    return found


def reckoned(views: Views, partitions: Sequence[Partition], chosen: Chosen) -> float:
    """About how many entries there are, from files' sizes alone. Often too many: it counts overwritten ones too."""
    files = views.files()
    bounds = [key_range(partition.number, chosen.start, chosen.end, chosen.prefix) for partition in partitions]
    return sum(splits.weight(splits.pieces(first, end, files)) for first, end in bounds) + views.unflushed()


async def _refined(views: Views, bounds: Sequence[tuple[bytes, bytes]], parts: int) -> list[list[WeightedPiece]]:
    """Splits each range into pieces that are not much too heavy for `parts` ranges."""
    files = views.files()
    known = [splits.pieces(first, end, files) for first, end in bounds]
    unflushed = views.unflushed()  # entries of all topics that are in no file yet
    total = sum(map(splits.weight, known))
    few = total + unflushed <= FEW
    heavy = max(total, unflushed) / parts / FINE
    sampled = sum(piece.weight > heavy or len(some) == 1 for some in known for piece in some)
    most = max(2, min(MOST, MOST_IN_ALL // max(1, sampled)))
    room = max(1, ROOM // max(1, sum(map(len, known))))
    found: list[list[WeightedPiece]] = []
    for some, (_, end) in zip(known, bounds, strict=True):
        fine: list[WeightedPiece] = []
        for piece, following in zip(some, [*(each.start for each in some[1:]), end], strict=True):
            if few:
                fine += await _counted(views, piece.start, following, room)
            elif piece.weight > heavy or len(some) == 1:
                fine += await _sampled(views, piece, following, heavy, most)
            else:
                fine.append(piece)
        found.append(fine)
    return found


async def _counted(views: Views, first: bytes, end: bytes, room: int) -> list[WeightedPiece]:
    """Counts all keys. The first key always begins a piece; others begin pieces until these keys take `room` bytes."""
    found: list[WeightedPiece] = []
    start: bytes | None = first
    while start is not None:
        keys, start = views.keys(start, end, STRETCH)
        if room > 0:
            found += [WeightedPiece(keys[at], min(STEP, len(keys) - at)) for at in range(0, len(keys), STEP)]
            room -= sum(map(len, keys[::STEP]))
        else:
            found[-1] = WeightedPiece(found[-1].start, found[-1].weight + len(keys))
        await trio.lowlevel.checkpoint()
    return found


class _Part(NamedTuple):
    """Keys from `start` to before `end`, about `weight` of them; `whole`: they are too few to be halved."""

    weight: float
    start: bytes
    end: bytes
    whole: bool


class _Halves(NamedTuple):
    """A range split into two halves, neither of them tiny, and the pieces that were cut off before. Without halves when
    the range is too small."""

    tiny: list[_Part]
    two: tuple[tuple[bytes, bytes], tuple[bytes, bytes]] | None


async def _sampled(views: Views, piece: WeightedPiece, end: bytes, heavy: float, most: int) -> list[WeightedPiece]:
    """Splits a piece: halves its heaviest part again and again, as long as that is heavier than `heavy`."""
    chance = random.Random(0)
    parts = [_Part(await _estimate(views, piece.start, end, chance), piece.start, end, False)]
    while len(parts) < most:
        parts.sort()
        heaviest = parts[-1]
        if heaviest.whole or heaviest.weight <= heavy:
            break
        halves = _halve(views, heaviest.start, heaviest.end)
        parts[-1:] = halves.tiny
        for half in halves.two or ():
            parts.append(_Part(await _estimate(views, *half, chance), *half, False))
    parts.sort(key=lambda part: part.start)
    scale = piece.weight / sum(part.weight for part in parts) if piece.weight else 1.0
    return [WeightedPiece(part.start, part.weight * scale) for part in parts]


async def _estimate(views: Views, start: bytes, end: bytes, chance: random.Random) -> float:
    """An estimate of how many keys a range holds: right on average, and better the more equal its halves are."""
    total = 0.0
    for _ in range(SAMPLES):
        await trio.lowlevel.checkpoint()
        half, times = (start, end), 1.0
        while True:
            halves = _halve(views, *half)
            total += times * sum(part.weight for part in halves.tiny)
            if halves.two is None:
                break
            half = halves.two[chance.randrange(2)]
            times *= 2
    return total / SAMPLES


def _halve(views: Views, start: bytes, end: bytes) -> _Halves:
    tiny: list[_Part] = []
    keys, _ = views.keys(start, end, TINY)
    for _ in range(PROBES):
        if len(keys) < TINY:
            break
        middle = splits.midpoint(keys[0], end)
        if middle <= keys[-1]:  # so few on this side that they are no half
            following = keys[-1] + b"\0"
            tiny.append(_Part(len(keys), start, following, True))
            start = following
            keys, _ = views.keys(start, end, TINY)
            continue
        right = len(views.keys(middle, end, TINY)[0])
        if right == TINY:
            return _Halves(tiny, ((start, middle), (middle, end)))
        if right:
            tiny.append(_Part(right, middle, end, True))
        end = middle
    return _Halves([*tiny, _Part(len(keys), start, end, True)], None)
