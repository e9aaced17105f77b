"""What all native groups share: a clock, alarms, kept reads, the writer to disk, and dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from krappy.broker.alarms import Alarms
from krappy.broker.groups.dead_letters import Undertaker
from krappy.broker.groups.distant import DistantPartitions
from krappy.broker.groups.group_reads import KeptReads
from krappy.broker.groups.group_writer import GroupWriter
from krappy.broker.groups.room import GroupRoom

if TYPE_CHECKING:
    from krappy.broker.groups.keeping import GroupStorage
    from krappy.broker.groups.shared import SharedPartition
    from krappy.broker.runtime import Runtime
    from krappy.ports.cluster import LogPeersPort

DELAYS_WRITTEN_MS = 60_000  # a kill makes a delay at most so much longer
MakeTopic = Callable[..., Awaitable[Any]]


class GroupKeeper:
    def __init__(
        self,
        runtime: Runtime,
        storage: GroupStorage,
        make_topic: MakeTopic,
        peers: LogPeersPort | None,
    ) -> None:
        """`make_topic`: as `Broker.create_topic`, for dead letters. `peers`: None: this broker is alone."""
        self._runtime, self.storage = runtime, storage
        self.max_members = runtime.config.group_max_members
        self.room = GroupRoom(runtime)
        self.reads = KeptReads()
        self.writers: dict[int, GroupWriter] = {}  # by the partition of the groups' topic
        self.distant = DistantPartitions(runtime, peers)
        self.alarms = Alarms(self.now_ms)
        self.undertaker = Undertaker(runtime, make_topic, peers)

    @property
    def stopped(self) -> bool:
        return self._runtime.stopped

    def now_ms(self) -> int:
        """Steady ms: setting the wall clock changes no lease or delay."""
        return self._runtime.clock.steady_ms()

    def has(self, name: str) -> bool:
        """Whether the name is a native group's."""
        raise NotImplementedError

    def check_share_room(self, owner: str, more: int = 0) -> None:
        """Raises Overloaded if its owner has no room for one share group or position, and `more` positions besides."""
        raise NotImplementedError

    def note_use(self, name: str) -> None:
        """Call it when the first member has come to a group, or the last has left it."""
        raise NotImplementedError

    def writer_of(self, name: str) -> GroupWriter:
        """The writer of this group."""
        index = self.storage.index_of(name)
        writer = self.writers.get(index)
        if writer is None:
            writer = self.writers[index] = GroupWriter(self._runtime, self.storage)
            self._runtime.spawn(writer.run)
        return writer

    def tell_lost(self, shared: SharedPartition) -> None:
        """Call it before leases are forgotten because the log does not have their events any more."""
        self.reads.drop(shared)
        facts = {"group": shared.group.name, "partition": str(shared.partition), "position": shared.leases.frontier}
        self._runtime.report("group_ahead_of_log", **facts)

    def attend(self, shared: SharedPartition) -> None:
        """Sets the alarm for the next end of a lease or delay, and has dead events published. While events are delayed,
        their state is written each `DELAYS_WRITTEN_MS`, with the rest of each delay."""
        leases = shared.leases
        if leases.due is not None:
            soon = self.now_ms() + DELAYS_WRITTEN_MS if leases.delayed else leases.due
            self.alarms.set(shared, min(leases.due, soon))
        if leases.dead and not shared.burying:
            self.undertaker.bury(shared)
