"""One shared group: its members, its partitions, and who waits for events.

Rules, kept here:

- One who finds nothing waits in line. When something turns up, the first in line is woken, and only that one; having
  taken what it wants, it wakes the next if there is more. So an event costs one wake-up, however many wait.
- Every change of a partition's leases ends in `SharedPartition.changed`: the state is written, the next alarm is set,
  and dead events are published.
- Of the members that are there, the last that has joined for a topic decides when the topic's events are dead, and
  where they go. Who may not read a topic has no say in it. Who has lost the right to has none from then on, though
  nobody else is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from krappy.broker.groups.member import Member
from krappy.broker.groups.shared import DeadLetterRules, Owner, SharedPartition, SharedSettings
from krappy.core.keyed_leases import KeyedLeases
from krappy.core.leases import Leases
from krappy.core.members import Members
from krappy.errors import InvalidRequest, KrappyError, StorageError
from krappy.ports import GroupFacts

if TYPE_CHECKING:
    from krappy.broker.groups.distant import DistantPartition, GroupPartition
    from krappy.broker.groups.group_keeper import GroupKeeper


class _Waiter:
    __slots__ = ("event", "member")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.event = trio.Event()


class Group(Owner):
    def __init__(self, keeper: GroupKeeper, name: str, settings: SharedSettings, owner: str = "") -> None:
        """`owner`: for whom it counts; "": it was loaded."""
        self.keeper, self.owner = keeper, owner
        self.name = name
        self.settings = settings
        self.writer = keeper.writer_of(name)
        self._since = keeper.now_ms()  # when it was loaded
        self.keeps_epochs = keeper.storage.keeps_epochs
        self.shared: dict[tuple[str, int], SharedPartition] = {}
        self.away: dict[tuple[str, int], Sequence[int]] = {}  # kept states of partitions that this broker does not have
        self.ids: dict[str, bytes] = {}  # of the topics of states in `away`, by name, as far as they are known
        self.members: dict[str, Member] = {}
        self._by_topic: dict[str, dict[Member, None]] = {}  # its members, in the order in which they joined
        self.gone = False
        self.ended: KrappyError | None = None  # why: another broker coordinates it now
        self._names = Members(name, keeper.max_members)
        self._waiters: dict[_Waiter, None] = {}  # in the order of their coming
        self._orders: dict[tuple[str, ...], list[SharedPartition]] = {}  # topics -> their partitions
        self._turn = 0

    # --- members

    def join(self, client: str, topics: tuple[str, ...], lease_ms: int, rules: DeadLetterRules) -> Member:
        """A new member. Raises GroupFull."""
        member = Member(self, self._names.join(), client, topics, lease_ms, rules)
        self.members[member.name] = member
        for topic in topics:
            self._by_topic.setdefault(topic, {})[member] = None
        if len(self.members) == 1:
            self.keeper.note_use(self.name)
            for shared in self.shared.values():
                shared.partition.moved.subscribe(shared.moved)
        return member

    def leave(self, member: Member) -> None:
        if self.ended is not None:
            return
        for shared in self.shared.values():
            if shared.leases.leased:
                shared.leases.release(member.name)
                shared.changed()
        del self.members[member.name]
        self._names.leave(member.name)
        self._fall_back(member)
        if not self.members:
            self.keeper.note_use(self.name)
            for shared in self.shared.values():
                shared.partition.moved.unsubscribe(shared.moved)
                self.keeper.reads.drop(shared)
        self.wake(member)
        self.stir()

    def vanish(self) -> None:
        """It is not here any more, and counts no more."""
        self.gone = True
        for shared in self.shared.values():
            shared.gone = True
            self.keeper.room.places.charge(shared.owner, -1)
        self.keeper.room.take(self.owner, -1)

    def end(self, why: KrappyError) -> None:
        """Another broker coordinates it now: its members learn so, and nothing of it is written here any more."""
        self.ended = why
        self.vanish()
        for shared in self.shared.values():
            shared.partition.moved.unsubscribe(shared.moved)
            self.keeper.reads.drop(shared)
        for member in self.members.values():
            member.closed = True
        self.wake_all()

    # --- partitions

    @property
    def still_here(self) -> bool:  # type: ignore[override]
        return self.keeper.storage.is_sure(self.name)

    @property
    def is_sure(self) -> bool:  # type: ignore[override]
        return self.settings.order != "key" or self.still_here

    def changed(self, shared: SharedPartition) -> None:
        self.writer.mark(shared)
        self.attend(shared)

    def attend(self, shared: SharedPartition) -> None:
        self.keeper.attend(shared)

    def as_led(self, shared: SharedPartition) -> DistantPartition | None:
        return self.keeper.distant.as_led(shared.at)

    def tell_lost(self, shared: SharedPartition) -> None:
        self.keeper.tell_lost(shared)

    def new_leases(self, topic: str, floor: int) -> Leases:
        return self._kind(floor, max_deliveries=self.settings.rules(topic).max_deliveries)

    def load_leases(self, topic: str, state: Sequence[int], now: int) -> Leases:
        """`now`: from when on delays go on. Raises ValueError for what `Leases.dump` did not give."""
        return self._kind.load(state, max_deliveries=self.settings.rules(topic).max_deliveries, now=now)

    def load_away(self, partition: GroupPartition) -> Leases:
        """The leases of a partition in `away`. Removes it from there. Raises StorageError for what can't be read."""
        at = (partition.topic, partition.index)
        try:
            leases = self.load_leases(partition.topic, self.away[at], self._since)
        except (ValueError, TypeError) as error:
            what = f"the state of group '{self.name}' in {partition}"
            raise StorageError(f"{what} can't be read: {error}") from error
        del self.away[at]
        return leases

    @property
    def _kind(self) -> type[Leases]:
        return KeyedLeases if self.settings.order == "key" else Leases

    def add(self, partition: GroupPartition, leases: Leases, owner: str = "") -> SharedPartition:
        """`owner`: for whom it counts; "": it was loaded."""
        shared = SharedPartition(self, partition, leases, owner)
        self.shared[shared.at] = shared
        self.away.pop(shared.at, None)
        self.keeper.room.places.charge(owner, 1)
        self._orders.clear()
        if self.members:
            partition.moved.subscribe(shared.moved)
        shared.trim()
        return shared

    def place(self, now: Callable[[tuple[str, int]], GroupPartition | None]) -> None:
        """Goes on where its partitions are `now`: this broker may have got a replica of one, or lost it."""
        for shared in list(self.shared.values()):
            partition = now(shared.at)
            if partition is not None and partition is not shared.partition:
                self.keeper.reads.drop(shared)
                shared.move(partition)
                self.stir(shared)

    def states_in(self, topic: str, id: bytes) -> list[tuple[str, int]]:
        """Where it has states in a topic: not in another one of that name."""
        away = self.away if self.ids.get(topic, id) == id else ()
        return [at for at in (*self.shared, *away) if at[0] == topic]

    def remove(self, topic: str) -> list[SharedPartition]:
        """Removes a deleted topic. Gives the partitions that the group had of it."""
        removed = [shared for shared in self.shared.values() if shared.at[0] == topic]
        self.away = {at: state for at, state in self.away.items() if at[0] != topic}
        for shared in removed:
            shared.gone = True
            shared.partition.moved.unsubscribe(shared.moved)
            self.keeper.reads.drop(shared)
            self.keeper.room.places.charge(shared.owner, -1)
            del self.shared[shared.at]
        self._orders.clear()
        for waiter in [waiter for waiter in self._waiters if topic in waiter.member.topics]:
            self._wake(waiter)
        for member in self.members.values():
            member.topics = tuple(each for each in member.topics if each != topic)
        return removed

    def check_order(self, order: str) -> None:
        """Raises InvalidRequest when the group has members with another order."""
        if self.members and order != self.settings.order:
            raise InvalidRequest(
                f"the group '{self.name}' runs with order '{self.settings.order}'; all its members must leave first",
                field="order",
            )

    def adopt(self, order: str, rules: Mapping[str, DeadLetterRules]) -> bool:
        """Takes another order, and rules of topics; the order changes only while nothing is leased. Gives whether any
        changed."""
        before = self.settings
        held = {topic for topic, _ in (*self.shared, *self.away)}
        self.settings = before._replace(kind="shared", order=order).with_rules(rules, held)
        now = self.keeper.now_ms()
        for shared in self.shared.values():
            limit = self.settings.rules(shared.at[0]).max_deliveries
            if order != before.order:
                shared.leases = self.load_leases(shared.at[0], shared.leases.dump(now), now)
                self.keeper.reads.drop(shared)
                shared.changed()
            elif limit != before.rules(shared.at[0]).max_deliveries:
                shared.leases.limit_deliveries(limit)
                shared.changed()
        return self.settings != before

    def forfeit(self, member: Member) -> None:
        """The member has lost its rights: its rules do not count any more."""
        if self.ended is None:
            member.rules = DeadLetterRules()
            self._follow(member.named)

    def _fall_back(self, gone: Member) -> None:
        """A member has left. For a topic that other members are there for, its rules do not count any more."""
        for topic in gone.named:
            members = self._by_topic[topic]
            del members[gone]
            if not members:
                del self._by_topic[topic]
        self._follow(gone.named)

    def _follow(self, topics: Iterable[str]) -> None:
        """For each of these topics, takes the rules of the member that has joined last, if one is there."""
        changed: dict[str, DeadLetterRules] = {}
        for topic in topics:
            members = self._by_topic.get(topic)
            if members and (rules := next(reversed(members)).rules) != self.settings.rules(topic):
                changed[topic] = rules
        if changed and not self.gone and self.adopt(self.settings.order, changed):
            self.writer.mark_group(self)

    # --- waiting

    def stir(self, shared: SharedPartition | None = None) -> None:
        """Call it when there may be events to lease (in `shared`, if given): wakes the first member in line that may
        have them."""
        if not self._waiters:
            return
        now = self.keeper.now_ms()
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

    def wake(self, member: Member) -> None:
        """Ends the member's waits."""
        for waiter in [waiter for waiter in self._waiters if waiter.member is member]:
            self._wake(waiter)

    def wake_all(self) -> None:
        for waiter in list(self._waiters):
            self._wake(waiter)

    async def wait(self, member: Member, seconds: float = math.inf) -> None:
        """Returns when there is something for the member, it is closed, or `seconds` have passed."""
        if member.closed or self.keeper.stopped:
            return
        waiter = _Waiter(member)
        self._waiters[waiter] = None
        try:
            with trio.move_on_after(seconds):
                await waiter.event.wait()
        except trio.Cancelled:
            if waiter.event.is_set():
                self.stir()  # it was woken and leaves: now it is the next one's turn
            raise
        finally:
            self._waiters.pop(waiter, None)

    def in_turn(self, topics: tuple[str, ...]) -> list[SharedPartition]:
        """The partitions of these topics; each call begins with another one."""
        order = self._order(topics)
        self._turn = turn = (self._turn + 1) % max(1, len(order))
        return order[turn:] + order[:turn]

    def _order(self, topics: tuple[str, ...]) -> list[SharedPartition]:
        """The partitions of these topics."""
        order = self._orders.get(topics)
        if order is None:
            order = self._orders[topics] = [shared for at, shared in sorted(self.shared.items()) if at[0] in topics]
        return order

    # --- for people

    def describe(self, *, members: bool) -> GroupFacts:
        states = [shared for _, shared in sorted(self.shared.items())]
        described: GroupFacts = {
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
