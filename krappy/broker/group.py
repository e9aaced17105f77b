"""One shared group at work: its members, its partitions, who polls, who waits, what is given to whom.

Rules, kept here:

- What can be read without waiting for the disk is leased and answered in one step, with nothing in between.
- One who finds nothing waits in line. When something turns up, the first in line is woken, and only that one; having
  taken what it wants, it wakes the next if there is more. So an event costs one wake-up, however many wait.
- Every change of a partition's leases ends in `Shared.changed`: it is written, its next due time is set, its dead
  are buried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from krappy.broker import group_reads
from krappy.broker.group_reads import Found
from krappy.broker.member import Member
from krappy.broker.shared import Shared
from krappy.core.keyed_leases import KeyedLeases
from krappy.core.leases import Lease, Leases
from krappy.core.members import Members
from krappy.errors import InvalidRequest, KrappyError, OffsetOutOfRange, UnknownTopic
from krappy.types import Span

if TYPE_CHECKING:
    from krappy.broker.groups import GroupCoordinator
    from krappy.broker.partition import Partition

AGAIN_READ = 64 << 10  # bytes read at a time for what waits: often it is one event


class Settings(NamedTuple):
    """What is kept of a group beside its states. `kind`: "shared", or "positions" when only Commit made it."""

    kind: str = "shared"
    order: str = "none"
    max_deliveries: int = 10
    dead_letter: str | None = None  # None: "<topic>.<group>.dead"


class GroupPolled(NamedTuple):
    """As the protocol's Polled. `parts`: (topic, partition, first offset, high watermark, batches), each partition
    once; `leases`: (topic, partition, first, last, deliveries)."""

    parts: list[tuple[str, int, int, int, bytes]]
    leases: list[tuple[str, int, int, int, int]]


class _Waiter:
    __slots__ = ("event", "member")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.event = trio.Event()


class _Taken:
    """What one poll has so far of one partition: its batches are sent once, however often they were read."""

    def __init__(self) -> None:
        self.batches: dict[int, Found] = {}
        self.leases: list[Lease] = []


class Group:
    def __init__(self, coordinator: GroupCoordinator, name: str, settings: Settings) -> None:
        self.coordinator = coordinator
        self.name = name
        self.settings = settings
        self.shared: dict[tuple[str, int], Shared] = {}
        self.members: dict[str, Member] = {}
        self.gone = False
        self._names = Members(name, coordinator.max_members)
        self._waiters: dict[_Waiter, None] = {}  # in the order of their coming
        self._orders: dict[tuple[str, ...], list[Shared]] = {}  # topics -> their partitions
        self._turn = 0

    # --- members

    def join(self, client: str, topics: tuple[str, ...], lease_ms: int) -> Member:
        """A new member. Raises GroupFull."""
        member = Member(self, self._names.join(), client, topics, lease_ms)
        self.members[member.name] = member
        if len(self.members) == 1:
            for shared in self.shared.values():
                shared.partition.moved.subscribe(shared.moved)
        return member

    def leave(self, member: Member) -> None:
        for shared in self.shared.values():
            if shared.leases.leased:
                shared.leases.release(member.name)
                shared.changed()
        del self.members[member.name]
        self._names.leave(member.name)
        if not self.members:
            for shared in self.shared.values():
                shared.partition.moved.unsubscribe(shared.moved)
        for waiter in [waiter for waiter in self._waiters if waiter.member is member]:
            self._wake(waiter)
        self.stir()

    # --- partitions

    def new_leases(self, floor: int) -> Leases:
        return self._kind(floor, max_deliveries=self.settings.max_deliveries)

    def load_leases(self, state: Sequence[int]) -> Leases:
        """Raises ValueError for what `Leases.dump` did not give."""
        return self._kind.load(state, max_deliveries=self.settings.max_deliveries)

    @property
    def _kind(self) -> type[Leases]:
        return KeyedLeases if self.settings.order == "key" else Leases

    def add(self, partition: Partition, leases: Leases) -> Shared:
        shared = Shared(self, partition, leases)
        self.shared[shared.at] = shared
        self._orders.clear()
        if self.members:
            partition.moved.subscribe(shared.moved)
        return shared

    def remove(self, topic: str) -> list[Shared]:
        """The topic is gone. Returns what the group had of it."""
        removed = [shared for shared in self.shared.values() if shared.at[0] == topic]
        for shared in removed:
            shared.gone = True
            shared.partition.moved.unsubscribe(shared.moved)
            del self.shared[shared.at]
        self._orders.clear()
        for waiter in [waiter for waiter in self._waiters if topic in waiter.member.topics]:
            self._wake(waiter)
        return removed

    def check_order(self, order: str) -> None:
        """Raises InvalidRequest when members are at work in another order."""
        if self.members and order != self.settings.order:
            raise InvalidRequest(
                f"the group '{self.name}' runs with order '{self.settings.order}'; all its members must leave first",
                field="order",
            )

    def adopt(self, settings: Settings) -> bool:
        """Takes other settings, of which the order changes only while nothing is leased. Whether any changed."""
        before, self.settings = self.settings, settings
        for shared in self.shared.values():
            if settings.order != before.order:
                shared.leases = self.load_leases(shared.leases.dump())
                shared.changed()
            elif settings.max_deliveries != before.max_deliveries:
                shared.leases.limit_deliveries(settings.max_deliveries)
                shared.changed()
        return settings != before

    # --- waiting

    def stir(self, shared: Shared | None = None) -> None:
        """Something may be there to be leased (in `shared`, if given): wakes the first in line who can have it."""
        if not self._waiters:
            return
        now = self.coordinator.now_ms()
        asked: dict[tuple[str, ...], bool] = {}
        for waiter in self._waiters:
            topics = waiter.member.topics
            if topics not in asked:
                among = self._order(topics) if shared is None else [shared] if shared.at[0] in topics else []
                asked[topics] = any(each.wanted(now) is not None for each in among)
            if asked[topics]:
                self._wake(waiter)
                return

    def _wake(self, waiter: _Waiter) -> None:
        self._waiters.pop(waiter, None)
        waiter.event.set()

    def wake_all(self) -> None:
        for waiter in list(self._waiters):
            self._wake(waiter)

    async def wait(self, member: Member, seconds: float = math.inf) -> None:
        """Returns when there is something for the member, it is closed, or `seconds` have passed."""
        if member.closed or self.coordinator.stopped:
            return
        waiter = _Waiter(member)
        self._waiters[waiter] = None
        try:
            with trio.move_on_after(seconds):
                await waiter.event.wait()
        except trio.Cancelled:
            if waiter.event.is_set():
                self.stir()  # it was this one's turn: it is the next one's now
            raise
        finally:
            self._waiters.pop(waiter, None)

    # --- polling

    def collect(
        self, member: Member, max_records: int, max_bytes: int
    ) -> tuple[GroupPolled, tuple[Shared, int] | None]:
        """Leases to the member what can be read at once, partitions taking turns in being first.

        When that is nothing because the disk would have to be waited for, also says for what partition.
        """
        taken: dict[Shared, _Taken] = {}
        order = self._order(member.topics)
        if not order:
            raise UnknownTopic(f"there is no topic {', '.join(map(repr, member.topics))} any more")
        now = self.coordinator.now_ms()
        left, room = max_records, max_bytes
        trouble: KrappyError | None = None
        self._turn = turn = (self._turn + 1) % len(order)
        for shared in order[turn:] + order[:turn]:
            try:
                while left > 0 and room > 0:
                    offset = shared.wanted(now, alone=not taken)
                    if offset is None:
                        break
                    read = shared.partition.read_now(offset, self._bytes(shared, offset, room), max_records=left)
                    leases = self._take(member, shared, offset, read, left, taken)
                    left -= sum(lease.size for lease in leases)
                    room -= len(read.data) if leases else 0
                    if leases and shared.leases.comes_alone(leases[-1]):
                        left = 0
            except BlockingIOError:
                if not taken:
                    return self._polled(taken), (shared, left)
                break
            except KrappyError as error:
                trouble = error  # one partition's; the others are served
        if trouble is not None and not taken:
            raise trouble
        if taken:
            self.stir()
        return self._polled(taken), None

    async def collect_from_disk(
        self, member: Member, cold: tuple[Shared, int], max_records: int, max_bytes: int
    ) -> GroupPolled:
        """As `collect`, from one partition, waiting for the disk."""
        shared = cold[0]
        taken: dict[Shared, _Taken] = {}
        async with shared.reading:
            offset = shared.wanted(self.coordinator.now_ms())
            if offset is not None and not member.closed:
                room = self._bytes(shared, offset, max_bytes)
                try:
                    read = await shared.partition.read(offset, room, max_records=max_records)
                except OffsetOutOfRange:
                    return self._polled(taken)  # retention was faster
                if not member.closed and not shared.gone:
                    self._take(member, shared, offset, read, max_records, taken)
        if taken:
            self.stir()
        return self._polled(taken)

    def _bytes(self, shared: Shared, offset: int, room: int) -> int:
        return min(room, AGAIN_READ) if offset < shared.leases.frontier else room

    def _take(
        self, member: Member, shared: Shared, offset: int, read: Span, left: int, taken: dict[Shared, _Taken]
    ) -> list[Lease]:
        coordinator = self.coordinator
        by_key = self.settings.order == "key"
        log, found = group_reads.survey(shared.partition.number, offset, read, coordinator.decoded, keys=by_key)
        now = coordinator.now_ms()
        leases = shared.leases.lease(now, member.name, member.lease_ms, log, left, alone=not taken)
        shared.changed()
        if leases:
            mine = taken.setdefault(shared, _Taken())
            mine.leases += leases
            for one in found:
                mine.batches.setdefault(one.header.base_offset, one)
        return leases

    def _polled(self, taken: dict[Shared, _Taken]) -> GroupPolled:
        polled = GroupPolled([], [])
        for shared, mine in taken.items():
            topic, index = shared.at
            mine.leases.sort()
            found = [mine.batches[base] for base in sorted(mine.batches)]
            data = group_reads.deliver(shared.partition.number, found, mine.leases, self.coordinator.decoded)
            first = mine.leases[0].first
            polled.parts.append((topic, index, first, shared.partition.high_watermark, data))
            polled.leases.extend((topic, index, *lease) for lease in mine.leases)
        return polled

    def _order(self, topics: tuple[str, ...]) -> list[Shared]:
        """The partitions of these topics."""
        order = self._orders.get(topics)
        if order is None:
            order = self._orders[topics] = [shared for at, shared in sorted(self.shared.items()) if at[0] in topics]
        return order

    # --- for people

    def describe(self, *, members: bool) -> dict[str, Any]:
        states = [shared for _, shared in sorted(self.shared.items())]
        described: dict[str, Any] = {
            "group": self.name,
            "kind": self.settings.kind,
            "order": self.settings.order,
            "topics": sorted({topic for topic, _ in self.shared}),
            "partitions": [shared.describe() for shared in states],
        }
        if members:
            held: dict[str, int] = {}
            for shared in states:
                for name, count in shared.leases.held().items():
                    held[name] = held.get(name, 0) + count
            described["members"] = [
                {"name": name, "client": member.client, "leased": held.get(name, 0)}
                for name, member in self.members.items()
            ]
        return described
