"""One partition in one group: its leases (core/leases.py), and what follows from a change of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgpack
import trio

from krappy.broker.groups.distant import DistantPartition
from krappy.broker.partition.uncommitted import read_uncommitted, read_uncommitted_now
from krappy.core.leases import Leases, LogSlice
from krappy.core.lineage import Lineage
from krappy.core.security.quota import Payer
from krappy.errors import KrappyError, NotLeader
from krappy.ports import PositionFacts
from krappy.store.groups import check_kinds
from krappy.types import Span

if TYPE_CHECKING:
    from krappy.broker.groups.distant import GroupPartition
    from krappy.broker.partition.partition import Partition

LOOK_S = 0.5  # seconds between a waiter's looks whether this broker is sure again that it may lease


class DeadLetterRules(NamedTuple):
    """When events of a topic are dead, and where they go."""

    max_deliveries: int = 10
    dead_letter: str | None = None  # None: "<topic>.<group>.dead"


class SharedSettings(NamedTuple):
    """What is stored of a group beside its states. `kind`: "shared"; "positions" if only Commit has made it; "share"
    for a share group of Kafka's. `topics`: the topics with other rules; `max_deliveries` and `dead_letter` count for
    all other topics."""

    kind: str = "shared"
    order: str = "none"
    max_deliveries: int = 10
    dead_letter: str | None = None
    topics: Mapping[str, DeadLetterRules] = MappingProxyType({})

    def rules(self, topic: str) -> DeadLetterRules:
        return self.topics.get(topic) or DeadLetterRules(self.max_deliveries, self.dead_letter)

    def with_rules(self, changed: Mapping[str, DeadLetterRules], held: Iterable[str]) -> SharedSettings:
        """These settings with `changed` rules of topics. The other topics in `held` keep their rules."""
        every = {**{topic: self.rules(topic) for topic in held}, **changed}
        most = Counter(every.values()).most_common(1)[0][0] if every else DeadLetterRules()
        others = {topic: rules for topic, rules in every.items() if rules != most}
        return self._replace(max_deliveries=most.max_deliveries, dead_letter=most.dead_letter, topics=others)

    def packed(self) -> bytes:
        fields: dict[str, Any] = {**self._asdict(), "topics": dict(self.topics)}
        if not self.topics:  # earlier versions do not know this field
            del fields["topics"]
        return bytes(msgpack.packb(fields))

    @classmethod
    def unpacked(cls, fields: dict[str, Any]) -> SharedSettings:
        """Raises TypeError, ValueError for what `packed` did not give."""
        topics = {topic: DeadLetterRules(*rules) for topic, rules in fields.pop("topics", {}).items()}
        settings = cls(**fields, topics=topics)
        check_kinds(settings, {"kind": str, "order": str, "max_deliveries": int, "dead_letter": (str, type(None))})
        for rules in topics.values():
            check_kinds(rules, {"max_deliveries": int, "dead_letter": (str, type(None))})
        return settings


class Owner(Protocol):
    """The group that has the partition. `away`: the kept states of partitions that this broker does not have. `payer`:
    who pays for its dead-letter topics. `keeps_epochs`: as in its storage. `still_here`: no other broker can have taken
    this one's place as its coordinator. `is_sure`: events may be leased; in a group without an order they may be leased
    even if `still_here` is false."""

    name: str
    settings: SharedSettings
    shared: dict[tuple[str, int], SharedPartition]
    away: dict[tuple[str, int], Sequence[int]]
    gone: bool
    ended: KrappyError | None  # why: another broker coordinates it now
    payer: Payer = Payer()
    keeps_epochs: bool = True
    still_here: bool = True
    is_sure: bool = True

    def stir(self, shared: SharedPartition | None = None) -> None: ...
    def changed(self, shared: SharedPartition) -> None: ...
    def tell_lost(self, shared: SharedPartition) -> None: ...
    def attend(self, shared: SharedPartition) -> None: ...
    def as_led(self, shared: SharedPartition) -> DistantPartition | None: ...
    def remove(self, topic: str) -> list[SharedPartition]: ...
    def wake_all(self) -> None: ...


class SharedPartition:
    """One partition in one group. `committed` False: events of open and aborted transactions are leased, too.

    Before anything is leased the position is found in the log: if the log has other events before the position than the
    group has read, the group goes back to where the two part. This counts for the log as it was then (`log`). After an
    election, or once this broker's log was cut, the position is looked for anew, and what was read before is not
    used."""

    def __init__(self, group: Owner, partition: GroupPartition, leases: Leases, owner: str = "") -> None:
        """`owner`: for whom it counts (room.py)."""
        self.group, self.owner = group, owner
        self.partition = partition
        self.at = (partition.topic, partition.index)
        self.leases = leases
        self.committed = True
        self.alarm: int | None = None  # set by Alarms
        self.version = self.durable = 0  # set by GroupWriter: the version of the state now, and of that on disk
        self.burying = False
        self.gone = False
        self.cuts = 0  # how often it went back
        self.reading = trio.Lock()  # one read from the disk at a time: the others would read the same
        self._found: object = None  # the history of the log in which the position was found

    @property
    def _history(self) -> object:
        """Stays the same as long as the log only grows. A leader only appends; the log of a broker that does not lead
        may be cut."""
        partition = self.partition
        if isinstance(partition, DistantPartition):
            return partition.leader_epoch
        return partition.log, partition.log.cuts, partition.epochs.known

    @property
    def log(self) -> object:
        """Stands for the log as it is now, if the log has before the position what the group has read; None if that is
        not known. What was read before this changed may have events that the log lacks now, since compaction or an
        unclean election has removed them."""
        if not self.is_found:
            return None
        partition = self.partition
        return self._found, 0 if isinstance(partition, DistantPartition) else partition.log.clean_upto

    @property
    def is_found(self) -> bool:
        """Whether the log has before the position what the group has read."""
        return self._found is not None and self._found == self._history

    def move(self, partition: GroupPartition) -> None:
        """The same partition is elsewhere now: this broker has got a replica of it, or has lost it."""
        heard = self.moved in self.partition.moved
        self.partition.moved.unsubscribe(self.moved)
        self.partition, self._found = partition, None
        if heard:
            partition.moved.subscribe(self.moved)

    @property
    def end(self) -> int:
        """Before this offset events may be leased. While a log is being cut, it ends before what was committed."""
        partition = self.partition
        end = partition.last_stable_offset if self.committed else partition.high_watermark
        return end if isinstance(partition, DistantPartition) else min(end, partition.end_offset)

    def read_now(self, offset: int, max_bytes: int, max_records: int) -> Span:
        """The events that may be leased, from `offset` on. Raises as `Partition.read_now`."""
        partition = self.partition
        if self.committed or isinstance(partition, DistantPartition):
            return partition.read_now(offset, max_bytes, max_records=max_records)
        return read_uncommitted_now(partition, offset, max_bytes, max_records)

    async def read(self, offset: int, max_bytes: int, max_records: int) -> Span:
        """As `read_now`, but waits for the disk in a thread where it must."""
        partition = self.partition
        if self.committed or isinstance(partition, DistantPartition):
            return await partition.read(offset, max_bytes, max_records=max_records)
        return await read_uncommitted(partition, offset, max_bytes, max_records)

    def with_epochs(self, log: LogSlice) -> LogSlice:
        """What was read from the log as it is now. If this broker has the log, the leader epochs are those that it
        knows: no checksum covers the leader epoch in a batch, and a damaged one would be taken for another history."""
        if isinstance(self.partition, DistantPartition):
            return log
        return log._replace(epochs=self.partition.epochs.kept(log.start, log.end))

    @property
    def is_sure(self) -> bool:
        """Whether events may be leased. If not, another broker may have leased or settled them meanwhile: this one may
        have been stopped, and not know yet."""
        return self.group.is_sure

    def wanted(self, now: int, *, alone: bool = True) -> int | None:
        """The offset at which to read for events to lease; None when there are none."""
        partition, leases = self.partition, self.leases
        if partition.gone is not None:
            return None
        if leases.due is not None and leases.due <= now:
            leases.expire(now)
            self.changed()
        is_found = self.trim()
        offset = leases.wanted(now, alone=alone)
        if offset is None or not self.is_sure:
            return None
        if not is_found:  # its leader is asked, if it can be
            distant = isinstance(partition, DistantPartition)
            return offset if (self.end >= 0 if distant else self.group.as_led(self) is not None) else None
        return offset if offset < self.end else None

    def trim(self) -> bool:
        """Settles events that were deleted from the log's start, and finds the position in a log that is here. Gives
        `is_found`."""
        partition, leases = self.partition, self.leases
        if partition.start_offset > leases.floor:
            leases.trim(partition.start_offset)
            self.changed()
        return self.is_found if isinstance(partition, DistantPartition) else self._find_here(partition)

    def _find_here(self, partition: Partition) -> bool:
        leases, history = self.leases, self._history
        if self._found == history and leases.lineage.last >= 0 and leases.frontier <= partition.end_offset:
            return True
        told = partition.end_of_epoch(leases.lineage.last, leases.frontier)
        while told is not None and self._goes_back(told):
            told = partition.end_of_epoch(leases.lineage.last, leases.frontier)
        self._found = None if told is None else history
        if told is not None and leases.lineage.last < 0:
            leases.lineage = Lineage(partition.epochs.kept(0, leases.frontier))
            if leases.lineage.pairs and self.group.keeps_epochs:
                self.changed()  # also for the next coordinator, though the group reads nothing until then
        return told is not None

    async def find(self) -> None:
        """Finds the position in the log, wherever that is. Raises NotLeader while nobody tells where it is."""
        self.trim()
        while not self.is_found:
            partition, leases = self.partition, self.leases
            if partition.gone is not None:
                raise partition.gone
            if not isinstance(partition, DistantPartition):
                # The replica here has no event of the group's last leader epoch. These events may be lost, or still to
                # come, or they were removed before the replica was copied.
                led = self.group.as_led(self)
                if led is None:
                    raise NotLeader(f"{partition}: nobody knows whether it has all that the group has read")
                self.move(led)
                continue
            asked = partition, partition.leader_epoch, leases, leases.frontier, leases.lineage.last
            try:
                told = await partition.end_of_epoch(leases.lineage.last, leases.frontier)
                fresh = await partition.lineage(leases.frontier) if leases.lineage.last < 0 < leases.frontier else None
            except KrappyError:
                partition.lose()  # it has nothing to read until its leader tells of it again
                raise
            now = self.partition, partition.leader_epoch, self.leases, leases.frontier, leases.lineage.last
            if asked == now and not self._goes_back(told):
                self._found = partition.leader_epoch
                if fresh is not None and fresh.pairs:
                    leases.lineage = fresh
                    self.changed()
            self.trim()

    def _goes_back(self, told: tuple[int, int]) -> bool:
        """`told`: as for `Lineage.parts`. True if the log parts from what was read. Then the position has gone back to
        where they part."""
        end = self.leases.lineage.parts(told, self.leases.frontier)
        if end is None:
            return False
        self.group.tell_lost(self)
        self.leases.cut(end)
        self.cuts += 1
        self.changed()
        return True

    def changed(self) -> None:
        """Call it after every change of the leases."""
        self.group.changed(self)

    def attend(self) -> None:
        """Sets the alarm for the next end of a lease or delay, and has dead events published."""
        self.group.attend(self)

    def ring(self, now: int) -> None:
        """A lease or a delay has ended, or it is time to write delays."""
        self.leases.expire(now)
        self.changed()
        self.group.stir(self)

    def moved(self) -> None:
        """Call it when `end` may have gone up."""
        self.group.stir(self)

    def describe(self) -> PositionFacts:
        self.trim()
        leases, end = self.leases, self.end
        if isinstance(self.partition, DistantPartition) and not self.partition.moved.is_heard:
            end = -1  # nobody asks its leader now
        return {
            "topic": self.at[0],
            "partition": self.at[1],
            "floor": leases.floor,
            "end": end,
            "lag": -1 if end < 0 else max(0, end - leases.frontier) + leases.unsettled,
            "leased": leases.leased,
            "redelivering": leases.redelivering,
            "dead": leases.dead + leases.buried,
        }
