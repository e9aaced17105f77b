"""One partition as one group has it: the pure leases, and what follows from a change of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import trio

from krappy.core.leases import Leases

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition


class SharedSettings(NamedTuple):
    """What is kept of a group beside its states. `kind`: "shared", or "positions" when only Commit made it."""

    kind: str = "shared"
    order: str = "none"
    max_deliveries: int = 10
    dead_letter: str | None = None  # None: "<topic>.<group>.dead"


class Owner(Protocol):
    """The group that has it."""

    name: str
    settings: SharedSettings
    gone: bool

    def stir(self, shared: SharedPartition | None = None) -> None: ...
    def changed(self, shared: SharedPartition) -> None: ...
    def attend(self, shared: SharedPartition) -> None: ...


class SharedPartition:
    """One partition as one group has it."""

    def __init__(self, group: Owner, partition: Partition, leases: Leases) -> None:
        self.group = group
        self.partition = partition
        self.at = (partition.topic, partition.index)
        self.leases = leases
        self.alarm: int | None = None  # the Alarms' own
        self.version = self.durable = 0  # the GroupWriter's: of the state now, of the state that is on disk
        self.burying = False
        self.gone = False
        self.reading = trio.Lock()  # one read from the disk at a time: the others would read the same

    def wanted(self, now: int, *, alone: bool = True) -> int | None:
        """Where to read for something to lease; None when there is nothing."""
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
        """Settles what retention took."""
        start = self.partition.start_offset
        if start > self.leases.floor:
            self.leases.trim(start)
            self.changed()

    def changed(self) -> None:
        """To be called after every change of the leases."""
        self.group.changed(self)

    def attend(self) -> None:
        """Sees to what falls due, and to the dead."""
        self.group.attend(self)

    def ring(self, now: int) -> None:
        """Time has come for a lease or a delay to end."""
        self.leases.expire(now)
        self.changed()
        self.group.stir(self)

    def moved(self) -> None:
        """The last stable offset went up, perhaps."""
        self.group.stir(self)

    def describe(self) -> dict[str, Any]:
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
