"""The leases of a partition, compared with a model that keeps every event by itself and decides in the slow, obvious
way."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from krappy.core.keyed_leases import KeyedLeases
from krappy.core.leases import Lease, Leases, LogSlice
from krappy.core.runs import DEAD, DELAYED, LEASED, WAITING

MEMBERS = ["g_0", "g_1", "g_2"]
WINDOW = 25

members = st.sampled_from(MEMBERS)
few = st.integers(1, 8)
some = st.one_of(few, st.just(100))


@dataclass
class Unsettled:
    state: int = WAITING
    deliveries: int = 0
    due: int = 0
    member: str | None = None


class Model:
    """What `Leases` promises, event by event."""

    def __init__(self, max_deliveries: int, by_key: bool) -> None:
        self.max_deliveries = max_deliveries
        self.by_key = by_key
        self.frontier = self.known = 0
        self.events: dict[int, Unsettled] = {}
        self.buried: set[int] = set()

    @property
    def floor(self) -> int:
        return min(self.events, default=self.frontier)

    @property
    def suspect(self) -> int:
        return max(1, self.max_deliveries - 1)

    def expire(self, now: int) -> None:
        ended = [o for o, e in self.events.items() if e.state == LEASED and e.due <= now]
        for event in self.events.values():
            if event.state == DELAYED and event.due <= now:
                event.state, event.due = WAITING, 0
        self.take_back(ended, 0)

    def take_back(self, offsets: list[int], due: int, keys: dict[int, bytes | None] | None = None) -> None:
        keys = self.keys if keys is None else keys
        for offset in offsets:
            event = self.events[offset]
            dead = event.deliveries >= self.max_deliveries
            event.state = DEAD if dead else DELAYED if due else WAITING
            event.due = due if event.state == DELAYED else 0
            event.member = None
        if self.by_key:
            for offset, event in self.events.items():
                key = keys[offset]
                if event.state == LEASED and key is not None and any(keys[o] == key and o < offset for o in offsets):
                    event.state, event.due, event.member = WAITING, 0, None
                    event.deliveries = min(event.deliveries, self.max_deliveries - 1)

    def lease(
        self, now: int, member: str, due: int, start: int, end: int, left: int, before: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """`before`: the events that the same answer has already."""
        self.expire(now)
        for offset in [o for o in self.events if start <= o < end and o not in self.log]:
            if self.events[offset].state != LEASED:
                del self.events[offset]
        got: list[tuple[int, int]] = []
        reaches = start <= (self.known if self.by_key else self.frontier)
        for offset in range(start, end):
            if offset >= self.frontier:
                if not reaches or (offset in self.log and (not left or len(self.events) >= WINDOW)):
                    break
                self.frontier = offset + 1
                if offset in self.log:
                    self.events[offset] = Unsettled()
            if self.by_key and offset >= self.known and not reaches:
                continue
            self.known = max(self.known, offset + 1) if reaches else self.known
            event = self.events.get(offset)
            if event is None or event.state != WAITING or not left:
                continue
            key = self.keys.get(offset)
            if self.by_key and key is not None:
                ahead = [o for o in self.events if o < offset and self.keys[o] == key]
                if not all(o in [taken for taken, _ in before + got] for o in ahead):
                    continue
            if event.deliveries >= self.suspect:
                if before or got:
                    left = 0
                    continue
                left = 1
            event.state, event.member, event.due = LEASED, member, due
            event.deliveries += 1
            got.append((offset, event.deliveries))
            left -= 1
        return got

    log: set[int]
    keys: dict[int, bytes | None]

    def settle(self, offset: int) -> None:
        self.events.pop(offset, None)

    def may_ack(self, offset: int, member: str) -> bool:
        event = self.events.get(offset)
        if event is None:
            return offset < self.frontier and offset not in self.buried
        return event.member == member or (event.deliveries > 0 and event.state in (WAITING, DELAYED))


class SharedPartition(RuleBasedStateMachine):
    """One partition's log, several members, and everything that may happen to them, in any order."""

    by_key = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.start = self.end = 0
        self.log: set[int] = set()
        self.keys: dict[int, bytes | None] = {}
        self.settled: set[int] = set()  # acknowledged, buried, or expired with the log

    @initialize(max_deliveries=st.integers(1, 7))
    def begin(self, max_deliveries: int) -> None:
        self.max_deliveries = max_deliveries
        self.leases = self.new(max_deliveries)
        self.model = Model(max_deliveries, self.by_key)
        self.model.log, self.model.keys = self.log, self.keys

    def new(self, max_deliveries: int) -> Leases:
        kind = KeyedLeases if self.by_key else Leases
        return kind(0, max_deliveries=max_deliveries, window=WINDOW)

    # --- the log

    @rule(keys=st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=1, max_size=12), gap=st.integers(0, 2))
    def publish(self, keys: list[bytes | None], gap: int) -> None:
        for key in keys:
            self.log.add(self.end)
            self.keys[self.end] = key
            self.end += 1
        self.end += gap  # control batches and emptied ones take offsets too

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(sorted(self.log)))
        self.log.discard(gone)

    @rule(by=st.integers(1, 5))
    def retention(self, by: int) -> None:
        self.start = min(self.end, self.start + by)
        self.leases.trim(self.start)
        for offset in [o for o in self.log if o < self.start]:
            self.log.discard(offset)
            self.settled.add(offset)
        for offset in [o for o in self.model.events if o < self.start]:
            self.model.settle(offset)
        self.model.frontier = max(self.model.frontier, self.start)
        self.model.known = max(self.model.known, self.start)

    # --- members

    def slice(self, start: int, end: int) -> LogSlice:
        spans: list[tuple[int, int]] = []
        for offset in sorted(o for o in self.log if start <= o < end):
            if spans and spans[-1][1] == offset - 1:
                spans[-1] = spans[-1][0], offset
            else:
                spans.append((offset, offset))
        keys = [self.keys[o] for first, last in spans for o in range(first, last + 1)] if self.by_key else None
        return LogSlice(start, end, spans, keys)

    def poll(self, member: str, max_records: int, read: int, back: int, lease_ms: int) -> list[tuple[int, int]]:
        """Polls as the broker does: reads where the leases want it to, and takes events, until there is enough or
        nothing more."""
        got: list[tuple[int, int]] = []
        mine: set[Hashable] = set()
        for _ in range(1000):
            alone = not got
            if len(got) == max_records:
                return got
            offset = self.leases.wanted(self.now, alone=alone)
            self.model.expire(self.now)
            if offset is None or offset >= self.end:
                return got
            assert offset >= self.start
            self.model.known = max(self.model.known, min(offset, self.model.frontier))
            start, end = max(self.start, offset - back), min(self.end, offset + read)
            wanted = max_records - len(got)
            due = self.now + lease_ms
            found = self.leases.lease(
                self.now, member, lease_ms, self.slice(start, end), wanted, alone=alone, mine=mine
            )
            flat = [(o, lease.deliveries) for lease in found for o in range(lease.first, lease.last + 1)]
            assert flat == self.model.lease(self.now, member, due, start, end, wanted, got)
            assert all(o in self.log for o, _ in flat), "leased an event that does not exist"
            got += flat
            if found and self.leases.comes_alone(found[-1]):
                assert len(got) == 1
                return got
        raise AssertionError("polling makes no progress")

    @rule(
        member=members, max_records=some, read=st.integers(1, 12), back=st.integers(0, 3), lease_ms=st.integers(1, 60)
    )
    def polls(self, member: str, max_records: int, read: int, back: int, lease_ms: int) -> None:
        self.poll(member, max_records, read, back, lease_ms)

    def draw_range(self, data: st.DataObject) -> tuple[int, int]:
        first = data.draw(st.integers(max(0, self.leases.floor - 3), self.leases.frontier + 2))
        return first, data.draw(st.integers(first, first + 8))

    @rule(member=members, data=st.data())
    def ack(self, member: str, data: st.DataObject) -> None:
        first, last = self.draw_range(data)
        offsets = range(first, last + 1)
        refused = [o for o in offsets if not self.model.may_ack(o, member)]
        assert _flat(self.leases.ack(member, first, last)) == refused
        for offset in offsets:
            if offset not in refused and offset < self.model.frontier:
                self.model.settle(offset)
                self.settled.add(offset)

    @rule(member=members, data=st.data())
    def acks_all_it_has(self, member: str, data: st.DataObject) -> None:
        mine = [o for o, e in self.model.events.items() if e.member == member]
        for offset in data.draw(st.permutations(mine)):
            assert self.leases.ack(member, offset, offset) == []
            self.model.settle(offset)
            self.settled.add(offset)

    @rule(member=members, delay=st.sampled_from([0, 0, 5, 50]), data=st.data())
    def nack(self, member: str, delay: int, data: st.DataObject) -> None:
        first, last = self.draw_range(data)
        refused = [
            o for o in range(first, last + 1) if not self.model.may_ack(o, member) and o not in self.model.buried
        ]
        assert _flat(self.leases.nack(self.now, member, first, last, delay)) == refused
        mine = [o for o, e in self.model.events.items() if first <= o <= last and e.member == member]
        self.model.take_back(mine, self.now + delay if delay else 0)

    @rule(member=members, lease_ms=st.integers(1, 100), data=st.data())
    def extend(self, member: str, lease_ms: int, data: st.DataObject) -> None:
        first, last = self.draw_range(data)
        refused = [
            o
            for o in range(first, last + 1)
            if o >= self.model.frontier
            or o in self.model.buried
            or (o in self.model.events and self.model.events[o].member != member)
        ]
        assert _flat(self.leases.extend(self.now, member, first, last, lease_ms)) == refused
        for offset, event in self.model.events.items():
            if first <= offset <= last and event.member == member:
                event.due = self.now + lease_ms

    @rule(member=members)
    def disconnect(self, member: str) -> None:
        self.leases.release(member)
        self.model.take_back([o for o, e in self.model.events.items() if e.member == member], 0)

    @rule(member=members, data=st.data())
    def unseen(self, member: str, data: st.DataObject) -> None:
        """The member leaves, and has not looked at some of the events that it held."""
        first, last = self.draw_range(data)
        self.leases.uncount(member, first, last)
        for offset, event in self.model.events.items():
            if first <= offset <= last and event.member == member:
                event.deliveries -= 1
        self.disconnect(member)

    # --- time, death, restart

    @rule(ms=st.integers(1, 80))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        before = self.leases.due
        assert before is None or all(e.due >= before for e in self.model.events.values() if e.due)
        self.leases.expire(self.now)
        self.model.expire(self.now)

    @rule()
    def bury_the_dead(self) -> None:
        for grave in self.leases.graves():
            self.leases.bury(grave.first, grave.last)
            for offset in range(grave.first, grave.last + 1):
                assert self.model.events[offset].state == DEAD
                self.model.settle(offset)
                self.settled.add(offset)
                self.model.buried.add(offset)

    @rule(max_deliveries=st.integers(1, 7))
    def other_limit(self, max_deliveries: int) -> None:
        self.max_deliveries = self.model.max_deliveries = max_deliveries
        self.leases.limit_deliveries(max_deliveries)
        for event in self.model.events.values():
            if event.state in (WAITING, DELAYED) and event.deliveries >= max_deliveries:
                event.state, event.due = DEAD, 0

    @rule()
    def restart(self) -> None:
        self.leases = self.reloaded()
        self.model.buried.clear()
        for event in self.model.events.values():
            due = event.due if event.state == DELAYED else 0
            dead = event.deliveries >= self.max_deliveries
            event.state = DEAD if dead else DELAYED if due else WAITING
            event.member, event.due = None, due if event.state == DELAYED else 0
        self.model.known = self.model.floor

    def reloaded(self) -> Leases:
        return type(self.leases).load(self.leases.dump(), max_deliveries=self.max_deliveries, window=WINDOW)

    # --- what holds after every step

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "leases"):
            return
        held = {
            offset: Unsettled(run.state, run.deliveries, run.due, run.member)
            for run in self.leases.runs()
            for offset in range(run.first, run.last + 1)
        }
        assert held == self.model.events
        assert self.leases.floor == self.model.floor
        assert self.leases.frontier == self.model.frontier
        assert self.leases.leased == sum(self.leases.held().values())
        assert self.leases.unsettled == len(held)

    @invariant()
    def floor_never_passes_an_unsettled_event(self) -> None:
        if hasattr(self, "leases"):
            assert all(o in self.settled for o in self.log if o < self.leases.floor)

    @invariant()
    def order_holds_per_key(self) -> None:
        if not self.by_key or not hasattr(self, "leases"):
            return
        for key in (b"a", b"b", b"c"):
            chain = [self.model.events[o] for o in sorted(self.model.events) if self.keys[o] == key]
            leased = [event.state == LEASED for event in chain]
            assert leased == sorted(leased, reverse=True), "a later event is leased while an earlier one waits"
            assert len({event.member for event in chain if event.member is not None}) <= 1

    @invariant()
    def state_survives_a_restart(self) -> None:
        if hasattr(self, "leases"):
            again = self.reloaded()
            assert again.dump() == self.leases.dump()
            assert (again.floor, again.frontier) == (self.leases.floor, self.leases.frontier)
            assert again.unsettled == self.leases.unsettled
            assert (again.leased, again.buried) == (0, self.leases.buried)

    def teardown(self) -> None:
        """Nothing is lost: if a member acks all that it gets, every event that exists ends up settled."""
        if not hasattr(self, "leases"):
            return
        for member in MEMBERS:
            self.disconnect(member)
        for _ in range(1000):
            self.now += 1_000
            self.bury_the_dead()
            got = self.poll("g_0", 5, 7, 0, 100)
            if not got:
                break
            for offset, _ in got:
                assert self.leases.ack("g_0", offset, offset) == []
                self.model.settle(offset)
                self.settled.add(offset)
        assert self.log <= self.settled
        assert self.leases.floor == self.leases.frontier == max(self.end, self.start)


class KeyedPartition(SharedPartition):
    by_key = True


def _flat(spans: list[tuple[int, int]]) -> list[int]:
    return [offset for first, last in spans for offset in range(first, last + 1)]


SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSharedPartition = SharedPartition.TestCase
TestSharedPartition.settings = SETTINGS
TestKeyedPartition = KeyedPartition.TestCase
TestKeyedPartition.settings = SETTINGS


@pytest.mark.parametrize(
    "state",
    [
        *([], [1], [2, 0, 0], [1, 5, 0, 0, 6, 1, 0], [1, 5, 0, 0, 0, 1, 0], [1, 5], [1, -1, 0]),
        *([3], [3, 0], [3, 0, 1, 5, 0], [3, 3, 7], [3, 3, 0, 7, 0, 1], [3, -2, 1, 5, 0], [3, 1, 7, 1, 5, 0]),
        *([3, 3, 0, 7, 5, 1, 5, 0], [3, 3, 2, 7, 1, 1, 5, 0], [3, 5, 0, 7, 1, 7, 2, 1, 5, 0]),
    ],
)
def test_state_that_nothing_wrote_is_refused(state: list[int]) -> None:
    with pytest.raises(ValueError, match="not the state"):
        Leases.load(state, max_deliveries=3)


def test_a_delay_goes_on_from_the_load() -> None:
    leases = Leases(0, max_deliveries=3)
    leases.lease(1_000, "g_0", 60_000, LogSlice(0, 10, [(0, 9)]), 10)
    leases.nack(1_000, "g_0", 5, 9, 5_000)
    assert leases.dump(3_000) == [1, 10, 0, 0, 5, 1, 0, 0, 5, 1, 3_000]
    assert Leases.load(leases.dump(3_000), max_deliveries=3, now=70_000).due == 73_000
    assert Leases.load(leases.dump(7_000), max_deliveries=3, now=70_000).due == 70_001
    wall = 1_800_000_000_000
    assert Leases.load([1, 10, 0, 5, 5, 1, wall], max_deliveries=3, now=wall - 500).due == wall, "an earlier version's"


def test_a_lease_costs_by_the_run_and_not_by_the_event() -> None:
    leases = Leases(0, max_deliveries=3, window=10**9)
    got = leases.lease(0, "g_0", 1, LogSlice(0, 10**9, [(0, 10**9 - 1)]), 10**8)
    assert got == [Lease(0, 10**8 - 1, 1)]
    assert leases.ack("g_0", 5, 10**8 - 1) == []
    assert leases.dump() == [1, 10**8, 0, 0, 5, 1, 0]


def test_the_last_leader_epochs_are_kept_and_where_the_first_one_began() -> None:
    leases = Leases(0, max_deliveries=3)
    leases.lease(0, "g_0", 1, LogSlice(0, 60, [(0, 59)], epochs=[(epoch, 10 * epoch) for epoch in range(1, 7)]), 55)
    assert leases.dump() == [3, 9, 10, 2, 20, 3, 30, 4, 40, 5, 50, 1, 55, 0, 0, 55, 1, 0]
    assert Leases.load(leases.dump(), max_deliveries=3).dump() == leases.dump()
    leases.cut(35)
    assert leases.dump() == [3, 5, 10, 2, 20, 3, 30, 1, 35, 0, 0, 35, 1, 0]
    leases.trim(36)
    assert leases.dump() == [1, 36, 0], "what it has not read has no epoch"


def test_an_ack_settles_no_event_of_another_leader_epoch() -> None:
    leases = Leases(0, max_deliveries=3)
    leases.lease(0, "g_0", 1_000, LogSlice(0, 60, [(0, 59)], epochs=[(1, 0), (2, 20), (4, 40)]), 60)
    assert leases.ack("g_0", 15, 45, epoch=2) == [(15, 19), (40, 45)]
    assert [(run.first, run.last) for run in leases.runs()] == [(0, 19), (40, 59)]
    assert leases.ack("g_0", 0, 19, epoch=3) == [(0, 19)]
    assert leases.ack("g_0", 10, 70, epoch=-1) == [(60, 70)]
    assert leases.ack("g_0", 0, 9, epoch=1) == []
    assert leases.unsettled == 0
