"""One partition in one group: its leases (core/leases.py), and what follows from a change of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from krappy.core.leases import Leases
from krappy.errors import KrappyError
from krappy.ports import PositionFacts

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition


class SharedSettings(NamedTuple):
    """What is stored of a group beside its states. `kind`: "shared", or "positions" when only Commit made it."""

    kind: str = "shared"
    order: str = "none"
    max_deliveries: int = 10
    dead_letter: str | None = None  # None: "<topic>.<group>.dead"


class Owner(Protocol):
    """The group that has the partition."""

    name: str
    settings: SharedSettings
    gone: bool
    ended: KrappyError | None  # why: another broker coordinates it now

    def stir(self, shared: SharedPartition | None = None) -> None: ...
    def changed(self, shared: SharedPartition) -> None: ...
    def attend(self, shared: SharedPartition) -> None: ...


class SharedPartition:
    """One partition in one group."""

    def __init__(self, group: Owner, partition: Partition, leases: Leases) -> None:
        self.group = group
        self.partition = partition
        self.at = (partition.topic, partition.index)
        self.leases = leases
        self.alarm: int | None = None  # set by Alarms
        self.version = self.durable = 0  # set by GroupWriter: the version of the state now, and of that on disk
        self.burying = False
        self.gone = False
        self.reading = trio.Lock()  # one read from the disk at a time: the others would read the same

    def wanted(self, now: int, *, alone: bool = True) -> int | None:
        """The offset at which to read for events to lease; None when there are none."""
        partition, leases = self.partition, self.leases
        if partition.gone is not None:
            return None
        if leases.due is not None and leases.due <= now:
            leases.expire(now)
            self.changed()
        self.trim()
        offset = leases.wanted(now, alone=alone)
        return None if offset is None or offset >= partition.last_stable_offset else offset

    def trim(self) -> None:
        """Settles events that were deleted from the log's start."""
        start = self.partition.start_offset
        if start > self.leases.floor:
            self.leases.trim(start)
            self.changed()

    def changed(self) -> None:
        """Call it after every change of the leases."""
        self.group.changed(self)

    def attend(self) -> None:
        """Sets the alarm for the next end of a lease or delay, and has dead events published."""
        self.group.attend(self)

    def ring(self, now: int) -> None:
        """A lease or a delay has ended."""
        self.leases.expire(now)
        self.changed()
        self.group.stir(self)

    def moved(self) -> None:
        """Call it when the last stable offset may have gone up."""
        self.group.stir(self)

    def describe(self) -> PositionFacts:
        self.trim()
        leases, end = self.leases, self.partition.last_stable_offset
        return {
            "topic": self.at[0],
            "partition": self.at[1],
            "floor": leases.floor,
            "end": end,
            "lag": max(0, end - leases.frontier) + leases.unsettled,
            "leased": leases.leased,
            "redelivering": leases.redelivering,
            "dead": leases.dead + leases.buried,
        }
