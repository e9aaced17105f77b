"""What is kept of a share group in a partition (KIP-932), so that the next leader of the partition goes on.

A write has the whole state from the start offset on. It counts only if it is by the leader that has read the state last
(`leader_epoch`), if nobody has moved the group meanwhile (`state_epoch`), and if no later one came before it
(`version`): a request may be on its way for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from krappy.core.kafka.faults import Fault, Refused
from krappy.core.leases import MAX_RUNS, Leases
from krappy.core.lineage import Lineage, split_lineage, with_lineage

NOT_BEGUN = -1  # the start offset, and the leader epoch, where no leader has begun to read
_HEAD = 4  # numbers before the leases in a state
_RUNS = 3  # where the runs begin in what `Leases.dump` gives
_LAYOUT = 2  # of `dump`; what `Leases.dump` gives, without epochs, begins with another number
MAX_LOCKS = 10_000  # records of a partition that are not acknowledged: the highest value of Kafka's setting
MOST_BATCHES = 2 * (MAX_LOCKS + MAX_RUNS)  # of a state


class DeliveryState(IntEnum):
    """The state of records in a batch, as KIP-932 numbers it."""

    AVAILABLE = 0
    ACKNOWLEDGED = 2
    ARCHIVED = 4


StateBatch = tuple[int, int, int, int]  # first and last record, both included; a DeliveryState; how often delivered


class ShareState(NamedTuple):
    """`leases`: as `Leases.dump` gives it; empty: the group has not begun to read."""

    state_epoch: int
    leader_epoch: int = NOT_BEGUN
    version: int = 0
    leases: Sequence[int] = ()

    def dump(self) -> list[int]:
        return [_LAYOUT, self.state_epoch, self.leader_epoch, self.version, *self.leases]

    @classmethod
    def load(cls, flat: list[int]) -> ShareState:
        """The state that `dump` gave, or `Leases.dump` alone. Raises ValueError for anything else."""
        if flat[:1] == [_LAYOUT]:
            _, state_epoch, leader_epoch, version, *leases = flat
            state = cls(state_epoch, leader_epoch, version, leases)
        else:
            state = cls(0, leases=flat)
        if state.leases or flat[:1] != [_LAYOUT]:
            Leases.load(state.leases, max_deliveries=1)  # raises what is wrong with it
        return state

    @property
    def lineage(self) -> Sequence[int]:
        """As `Lineage.dump` gives it."""
        return split_lineage(self.leases)[0]

    @property
    def _plain(self) -> Sequence[int]:
        """The leases without the lineage."""
        return split_lineage(self.leases)[1]

    @property
    def start(self) -> int:
        """Before this offset everything is settled."""
        leases = self._plain
        return NOT_BEGUN if not leases else leases[_RUNS] if len(leases) > _RUNS else leases[1]

    @property
    def complete(self) -> int:
        """How many records behind the start are settled."""
        leases = self._plain
        return leases[1] - self.start - sum(leases[_RUNS + 1 :: 4]) if leases else 0

    def batches(self) -> list[StateBatch]:
        """The state from the start on. What is settled counts as acknowledged."""
        leases, found = self._plain, list[StateBatch]()
        end = self.start
        for index in range(_RUNS, len(leases), 4):
            at = leases[index] if index == _RUNS else end + leases[index]
            if at > end:
                found += ((end, at - 1, DeliveryState.ACKNOWLEDGED, 0),)
            end = at + leases[index + 1]
            found += ((at, end - 1, DeliveryState.AVAILABLE, leases[index + 2]),)
        if leases and end < leases[1]:
            found += ((end, leases[1] - 1, DeliveryState.ACKNOWLEDGED, 0),)
        return found

    def check_after(self, before: ShareState) -> None:
        """Raises Refused unless this may be written after `before`: FENCED_STATE_EPOCH, FENCED_LEADER_EPOCH."""
        if self.state_epoch != before.state_epoch:
            text = f"state epoch {self.state_epoch}, and it is {before.state_epoch}: the group was moved or deleted"
            raise Refused(Fault.FENCED_STATE_EPOCH, text)
        if self.leader_epoch < before.leader_epoch:
            text = f"leader epoch {self.leader_epoch}, and one of epoch {before.leader_epoch} has read the state"
            raise Refused(Fault.FENCED_LEADER_EPOCH, text)

    def is_late(self, before: ShareState) -> bool:
        """Whether a later state of the same leader is there already."""
        return self.leader_epoch == before.leader_epoch and self.version <= before.version


def plain_state(flat: list[int]) -> tuple[Sequence[int], list[int]]:
    """(the lineage, the rest) of what `ShareState.dump` or `Leases.dump` gave. Raises as `split_lineage`."""
    head = _HEAD if flat[:1] == [_LAYOUT] else 0
    lineage, leases = split_lineage(flat[head:])
    return lineage, [*flat[:head], *leases]


def whole_state(lineage: Sequence[int], flat: list[int]) -> list[int]:
    """What `plain_state` was given."""
    head = _HEAD if flat[:1] == [_LAYOUT] else 0
    return [*flat[:head], *with_lineage(lineage, flat[head:])]


def leases_of(start: int, batches: Sequence[StateBatch], lineage: Sequence[int] = ()) -> list[int]:
    """The leases in the form of `Leases.dump`. Raises Refused, INVALID_REQUEST, for batches that are no valid state,
    and for a lineage that is none, or does not fit them."""
    if start == NOT_BEGUN:
        return []
    flat, end, frontier = [1, start, 0], 0, start
    ordered = start >= 0 and len(batches) <= MOST_BATCHES
    for first, last, delivery, deliveries in batches if ordered else ():
        ordered &= first == frontier and last >= first and deliveries >= 0
        if delivery == DeliveryState.AVAILABLE:
            flat += (first - end, last + 1 - first, deliveries, 0)
            end = last + 1
        frontier = last + 1
    flat[1] = frontier
    if not ordered:
        raise Refused(Fault.INVALID_REQUEST, "the batches of a state must follow each other from its start on")
    if frontier != start and flat[_RUNS : _RUNS + 1] != [start]:
        raise Refused(Fault.INVALID_REQUEST, "the first record of a state must be available")
    try:
        Lineage.load(lineage)
    except ValueError as error:
        raise Refused(Fault.INVALID_REQUEST, str(error)) from error
    if lineage and lineage[-1] >= frontier:
        raise Refused(Fault.INVALID_REQUEST, "the leader epochs of a state begin before its end")
    return with_lineage(lineage, flat)
