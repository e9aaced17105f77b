"""Which replicas to move so that brokers have as many as each other, and partitions are on several racks.

It proposes as few copies as it can, in this order:

1. A replica leaves a broker that is to be emptied.
2. Replicas of a partition that share a rack are spread over racks, while there are racks without one.
3. A broker with two replicas more than another gives it one, if the partition is on as many racks afterwards.
4. Brokers are preferred to lead as many partitions as each other. This only puts replicas into another order: nothing
   is copied.

All of it counts replicas, not bytes. A partition that is being reassigned counts with its new replicas, and is not
moved. Brokers that are not registered keep what they have, unless they are to be emptied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from krappy.core.cluster.image import Image
from krappy.core.cluster.reassign import is_moving, wanted
from krappy.errors import InvalidRequest

Place = tuple[str, int]  # topic, partition
Replicas = tuple[int, ...]


class ProposedMove(NamedTuple):
    """`before`, `after`: the replicas; the first is preferred to lead."""

    topic: str
    partition: int
    before: Replicas
    after: Replicas

    @property
    def copies(self) -> Replicas:
        """The brokers that have to copy the partition."""
        return tuple(each for each in self.after if each not in self.before)


def propose(image: Image, without: Collection[int] = ()) -> list[ProposedMove]:
    """The moves, in the order of topics and partitions. `without`: brokers that are to have no replicas. Raises
    InvalidRequest if too few brokers would be left."""
    placing = _Placing(image, without)
    placing.empty()
    placing.spread()
    placing.even()
    placing.prefer()
    return placing.moves()


class _Placing:
    """The replicas of all partitions, while they are being moved on paper."""

    def __init__(self, image: Image, without: Collection[int]) -> None:
        self._racks: Mapping[int, str | None] = {id: each.rack for id, each in image.brokers.items()}
        self._without = set(without)
        self._targets = {id for id, each in image.brokers.items() if not each.draining} - self._without
        self._before = {
            (name, index): wanted(each)
            for name in sorted(image.topics)
            for index, each in enumerate(image.topics[name].partitions)
        }
        self._fixed = {
            (name, index)
            for name, topic in image.topics.items()
            for index, each in enumerate(topic.partitions)
            if is_moving(each)
        }
        self._now = dict(self._before)
        # Dicts instead of sets: the same image gives the same proposal.
        self._held: dict[int, dict[Place, None]] = {id: {} for id in self._targets}
        self._led: dict[int, dict[Place, None]] = {id: {} for id in self._targets}
        for place, replicas in self._now.items():
            self._count(place, replicas)

    def moves(self) -> list[ProposedMove]:
        return [
            ProposedMove(*place, before, self._now[place])
            for place, before in self._before.items()
            if self._now[place] != before
        ]

    # --- bookkeeping

    def _count(self, place: Place, replicas: Replicas) -> None:
        for each in replicas:
            self._held.setdefault(each, {})[place] = None
        self._led.setdefault(replicas[0], {})[place] = None

    def _put(self, place: Place, replicas: Replicas) -> None:
        before = self._now[place]
        for each in before:
            del self._held[each][place]
        del self._led[before[0]][place]
        self._now[place] = replicas
        self._count(place, replicas)

    def _replace(self, place: Place, old: int, new: int) -> None:
        self._put(place, tuple(new if each == old else each for each in self._now[place]))

    def _spread_of(self, replicas: Collection[int]) -> int:
        """On how many racks they are; a broker without a rack counts as a rack of its own."""
        return len({self._rack(each) for each in replicas})

    def _rack(self, broker: int) -> str | int:
        rack = self._racks.get(broker)
        return broker if rack is None else rack

    # --- the four rules

    def empty(self) -> None:
        for broker in sorted(self._without):
            for place in list(self._held.get(broker, ())):
                if place in self._fixed:
                    continue
                target = self._best(place, broker)
                if target is None:
                    gone, left = ", ".join(map(str, sorted(self._without))), len(self._targets)
                    raise InvalidRequest(
                        f"{place[0]}-{place[1]} has {len(self._now[place])} replicas, "
                        f"and without {gone} there are only {left} brokers for them"
                    )
                self._replace(place, broker, target)

    def _best(self, place: Place, old: int) -> int | None:
        """The best broker to take a replica's place: on another rack than the other replicas, and with few replicas."""
        others = [each for each in self._now[place] if each != old]
        racks = {self._rack(each) for each in others}
        return min(
            self._targets.difference(self._now[place]),
            key=lambda id: (self._rack(id) in racks, len(self._held[id]), id),
            default=None,
        )

    def spread(self) -> None:
        racks = self._spread_of(self._targets)
        for place in self._places():
            replicas = self._now[place]
            while (was := self._spread_of(replicas)) < min(racks, len(replicas)):
                shared = [each for each in replicas if [self._rack(it) for it in replicas].count(self._rack(each)) > 1]
                # The first replica stays if another one can go: it is preferred to lead.
                old = max(shared, key=lambda id: (id != replicas[0], len(self._held[id]), id))
                target = self._best(place, old)
                if target is None:
                    break
                self._replace(place, old, target)
                replicas = self._now[place]
                if self._spread_of(replicas) <= was:
                    break

    def even(self) -> None:
        while self._even_once():
            pass

    def _even_once(self) -> bool:
        """Moves one replica from a broker to one with at least two fewer. Returns whether there was one to move."""
        most = sorted(self._targets, key=lambda id: (-len(self._held[id]), id))
        for full in most:
            for bare in reversed(most):
                if len(self._held[full]) - len(self._held[bare]) < 2:
                    break
                place = next(self._movable(full, bare), None)
                if place is not None:
                    self._replace(place, full, bare)
                    return True
        return False

    def _movable(self, full: int, bare: int) -> Iterator[Place]:
        """The partitions of which a replica can move; first those that have moved already, and those that the broker is
        not preferred to lead."""
        fit = (
            place
            for place in self._held[full]
            if place not in self._fixed and bare not in self._now[place] and self._keeps_racks(place, full, bare)
        )
        later: list[Place] = []
        for place in fit:
            if full not in self._before[place] or self._now[place][0] != full:
                yield place
                return
            later.append(place)
        yield from later

    def _keeps_racks(self, place: Place, old: int, new: int) -> bool:
        before = self._now[place]
        after = [new if each == old else each for each in before]
        return self._spread_of(after) >= self._spread_of(before)

    def prefer(self) -> None:
        while path := self._path():
            for place, leader in path:
                replicas = self._now[place]
                self._put(place, (leader, *(each for each in replicas if each != leader)))

    def _path(self) -> list[tuple[Place, int]]:
        """A path of partitions, each with the broker that is to be preferred for it; empty if there is none. The broker
        at one end of the path is preferred for at least two partitions fewer than the one at the other end. Afterwards
        it is preferred for one more, and the other for one fewer."""
        for full in sorted(self._targets, key=lambda id: (-len(self._led[id]), id)):
            came: dict[int, tuple[Place, int]] = {}  # by broker: from where, over which partition
            seen, queue = {full}, deque([full])
            while queue:
                broker = queue.popleft()
                if len(self._led[full]) - len(self._led[broker]) >= 2:
                    path = []
                    while broker != full:
                        place, before = came[broker]
                        path.append((place, broker))
                        broker = before
                    return path
                for place in self._led[broker]:
                    for each in () if place in self._fixed else self._now[place][1:]:
                        if each in self._targets and each not in seen:
                            seen.add(each)
                            came[each] = (place, broker)
                            queue.append(each)
        return []

    def _places(self) -> list[Place]:
        return [place for place in self._now if place not in self._fixed]
