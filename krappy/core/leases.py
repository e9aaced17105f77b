"""The state of a native group in one partition: which events are settled, which are leased to whom, which wait.

Offsets, from low to high: below `floor` all events are settled. Between `floor` and `frontier` the unsettled events are
kept as runs, each leased to a member, waiting to be leased (again), delayed, or dead; events in no run are settled.
From `frontier` on, nothing was leased yet.

Rules of this file, and of `keyed_leases` which adds the order of keys:

- No clock: `now` is passed in as ms. What is due is done by the next call with a later `now`.
- An event is leased to one member at a time. It waits again when its lease expires, when it is given back (`nack`),
  when its member goes (`release`), and when it was leased at a restart: connections do not outlive the broker.
- A member that leaves can name events that it never processed (`uncount`): that delivery does not count. Else events
  could become dead only because members come and go.
- An event that was leased `max_deliveries` times and comes back is dead: it is not leased again, and stays unsettled
  until it is in the dead-letter topic and buried.
- The last time that an event may be leased, it is leased alone. If an event crashes its member, all events in the same
  lease count a delivery; leased alone, only the one that crashes it becomes dead.
- An ack may be repeated: settled events stay settled. Any member may also ack events that wait after a delivery: it may
  have been late, or have lost its connection, and still have done the work. An ack is refused only for events that
  another member holds, that are dead, that were buried (`buried.py`), or that were never leased.
- Offsets that do not exist (removed by the cleaner or retention) are settled as soon as a read of the log shows it.
- Events are settled in one history of the log, that of `lineage`. Where a log has another history, `cut` takes the
  state back, and an ack for an event of the old history is refused.
- Memory is bounded: beyond `window` unsettled events or about `MAX_RUNS` runs, no fresh events are leased.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, Self

from krappy.core.buried import Buried
from krappy.core.lineage import Lineage, split_lineage, with_lineage
from krappy.core.runs import DEAD, DELAYED, LEASED, WAITING, OffsetRun, Runs, Span

WINDOW = 20_000  # unsettled events
MAX_RUNS = 4_000
LONGEST_DELAY = 2**31 - 1  # ms
_VERSION = 1


class LogSlice(NamedTuple):
    """The events of the log from offset `start` to before `end`: exactly those in `spans`, which ascend.

    `keys`: with key order, a token for the key of each of these events, None for an event without a key. `epochs`: the
    leader epochs of these events and of later ones, ascending, each with an offset behind all events of earlier ones.
    """

    start: int
    end: int
    spans: Sequence[Span]
    keys: Sequence[Hashable | None] | None = None
    epochs: Sequence[tuple[int, int]] = ()


class Lease(NamedTuple):
    """Events `first` to `last` are the member's; `deliveries` counts this time."""

    first: int
    last: int
    deliveries: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class Leases:
    """The state of one (group, topic, partition)."""

    def __init__(self, floor: int, *, max_deliveries: int, window: int = WINDOW) -> None:
        self.frontier = floor
        self._max_deliveries = max_deliveries
        self._window = window
        self._runs = Runs()
        self._counts = [0, 0, 0, 0]  # events by state
        self.due: int | None = None  # when the next lease or delay ends (ms), or earlier; None: there is none
        self.buried = 0  # events that went to the dead-letter topic
        self._buried = Buried()
        self.lineage = Lineage()  # of the events before `frontier`, as far as it is known

    # --- how it stands

    @property
    def floor(self) -> int:
        """Every event below is settled, and this one is not."""
        first = self._runs.first
        return self.frontier if first is None else first

    @property
    def unsettled(self) -> int:
        """Events below `frontier` that are not settled."""
        return sum(self._counts)

    @property
    def size(self) -> int:
        """How many runs of events the state has. Its size in memory, and when it is written, follows from that."""
        return len(self._runs)

    @property
    def leased(self) -> int:
        return self._counts[LEASED]

    @property
    def dead(self) -> int:
        return self._counts[DEAD]

    @property
    def delayed(self) -> int:
        return self._counts[DELAYED]

    @property
    def redelivering(self) -> int:
        """Events that were leased before and wait to be leased again."""
        return sum(len(run) for run in self._runs if run.deliveries and run.state in (WAITING, DELAYED))

    def held(self) -> dict[str, int]:
        """How many events are leased to each member."""
        held: dict[str, int] = {}
        for run in self._runs:
            if run.member is not None:
                held[run.member] = held.get(run.member, 0) + len(run)
        return held

    def runs(self) -> Iterator[OffsetRun]:
        """The unsettled events, ascending; not to be changed."""
        return iter(self._runs)

    # --- leasing

    def wanted(self, now: int, *, alone: bool = True) -> int | None:
        """The offset from which to read the log for the next lease: of the first waiting event, else the frontier.

        None: nothing can be leased now, whatever the log holds. `alone`: whether the member is sent nothing else in the
        same answer.
        """
        self.expire(now)
        offset = self._first_waiting()
        if offset is None:
            return self.frontier if self._room() > 0 else None
        run = self._runs.at(offset)
        assert run is not None
        return offset if alone or run.deliveries < self._suspect else None

    def lease(
        self,
        now: int,
        member: str,
        lease_ms: int,
        log: LogSlice,
        max_records: int,
        *,
        alone: bool = True,
        mine: set[Hashable] | None = None,
    ) -> list[Lease]:
        """Leases to `member` the events of `log` that it may have, in the order of offsets, at most `max_records`.

        `log` begins at or below the offset that `wanted` gave; `alone` as there. `mine`, for key order: the keys leased
        so far at the same `now` for the same answer, to which this adds; later events of them may be leased too. The
        answer may be empty: other members were faster, events did not exist, or their keys were leased. Then ask
        `wanted` again.
        """
        self.expire(now)
        self.settle_missing(log)
        due = now + lease_ms
        before = self.frontier
        got = self._lease(member, due, log, max_records, alone, set() if mine is None else mine)
        for epoch, first in log.epochs:
            if max(first, before) < self.frontier:
                self.lineage.note(epoch, max(first, before))
        if got:
            self._alarm(due)
        return got

    def comes_alone(self, lease: Lease) -> bool:
        """Whether nothing else may go to the member together with this lease."""
        return lease.deliveries > self._suspect

    def _first_waiting(self) -> int | None:
        if not self._counts[WAITING]:
            return None
        return next(run.first for run in self._runs if run.state == WAITING)

    def _lease(self, member: str, due: int, log: LogSlice, left: int, alone: bool, mine: set[Hashable]) -> list[Lease]:
        got: list[Lease] = []
        if self._counts[WAITING]:
            got, left = self._lease_waiting(member, due, log, left, alone)
        if log.start <= self.frontier < log.end:
            got += self._lease_fresh(member, due, log, left)
        return got

    def _lease_waiting(self, member: str, due: int, log: LogSlice, left: int, alone: bool) -> tuple[list[Lease], int]:
        """(the leases, how many more events may be leased: 0 when one of them must be alone)."""
        got: list[Lease] = []
        for run in self._runs.between(log.start, log.end - 1):
            if left <= 0:
                break
            if run.state != WAITING:
                continue
            suspect = run.deliveries >= self._suspect
            if suspect and (got or not alone):
                return got, 0
            first = max(run.first, log.start)
            run = self._runs.carve(run, first, min(log.end - 1, first if suspect else first + left - 1))
            self._give(run, member, due)
            got.append(Lease(run.first, run.last, run.deliveries))
            left = 0 if suspect else left - len(run)
        return got, left

    def _lease_fresh(self, member: str, due: int, log: LogSlice, left: int) -> list[Lease]:
        left = min(left, self._room())
        got: list[Lease] = []
        for first, last in log.spans:
            if last < self.frontier:
                continue
            self.frontier = first = max(first, self.frontier)
            taken = min(last + 1 - first, left)
            if taken > 0:
                self.frontier = first + taken
                self._runs.append(OffsetRun(first, first + taken - 1, LEASED, 1, due, member))
                self._counts[LEASED] += taken
                got.append(Lease(first, first + taken - 1, 1))
                left -= taken
            if self.frontier <= last:
                return got
        self.frontier = log.end
        return got

    def _give(self, run: OffsetRun, member: str, due: int) -> None:
        self._counts[run.state] -= len(run)
        self._counts[LEASED] += len(run)
        run.state, run.member, run.due = LEASED, member, due
        run.deliveries += 1

    def settle_missing(self, log: LogSlice) -> None:
        """Settles unleased events that no longer exist, as `log` shows."""
        end = min(log.end, self.frontier)
        at = log.start
        if self.unsettled == self._counts[LEASED]:
            return
        for first, last in log.spans:
            if at >= end:
                break
            if at < first:
                self._settle_unleased(at, min(first, end) - 1)
            at = last + 1
        if at < end:
            self._settle_unleased(at, end - 1)

    def _settle_unleased(self, first: int, last: int) -> None:
        for run in self._runs.between(first, last):
            if run.state != LEASED:
                self._settle(self._runs.carve(run, first, last))

    @property
    def _suspect(self) -> int:
        """After so many deliveries an event is leased alone the next time, which is its last."""
        return max(1, self._max_deliveries - 1)

    def _room(self) -> int:
        """How many more events may be unsettled."""
        return self._window - self.unsettled if len(self._runs) < MAX_RUNS else 0

    # --- what a member says

    def ack(self, member: str, first: int, last: int, epoch: int = -1) -> list[Span]:
        """Settles these events. Returns those that it can't: another member has them, or they are dead, or were never
        leased. `epoch`: their leader epoch, if it is known; offsets that have events of other epochs by now are
        returned, too."""
        others = self.lineage.others(epoch, first, last) if epoch >= 0 else []
        if not others:
            return self._ack(member, first, last)
        lost, at = list[Span](), first
        for low, high in [*others, (last + 1, last + 1)]:
            lost += self._ack(member, at, low - 1) if at < low else []
            lost += [(low, high)] if low <= last else []
            at = high + 1
        return lost

    def _ack(self, member: str, first: int, last: int) -> list[Span]:
        lost: list[Span] = []
        for run in self._runs.between(first, last):
            if run.member == member or (run.deliveries and run.state in (WAITING, DELAYED)):
                self._settle(self._runs.carve(run, first, last))
            else:
                lost.append((max(first, run.first), min(last, run.last)))
        return self._beyond(sorted(lost + self._buried.among(first, last)), first, last)

    def nack(self, now: int, member: str, first: int, last: int, delay_ms: int = 0) -> list[Span]:
        """Gives these events back, to wait `delay_ms` before they are leased again.

        With key order the later events of their keys go back too. Events that wait or are settled stay as they are.
        Returns the events that the member can't give back, as `ack` does, but not those that were buried: a nack whose
        answer was lost is sent again, and may have been the last one.
        """
        lost: list[Span] = []
        back: list[OffsetRun] = []
        for run in self._runs.between(first, last):
            if run.member == member:
                back.append(self._runs.carve(run, first, last))
            elif not (run.deliveries and run.state in (WAITING, DELAYED)):
                lost.append((max(first, run.first), min(last, run.last)))
        self._take_back(back, now + delay_ms if delay_ms else 0)
        return self._beyond(lost, first, last)

    def extend(self, now: int, member: str, first: int, last: int, lease_ms: int) -> list[Span]:
        """Lets the leases on these events expire `lease_ms` from now instead. Returns the events that are neither
        leased to the member nor acknowledged."""
        lost: list[Span] = []
        due = now + lease_ms
        for run in self._runs.between(first, last):
            if run.member == member:
                self._runs.carve(run, first, last).due = due
                self._alarm(due)
            else:
                lost.append((max(first, run.first), min(last, run.last)))
        self._runs.join(first, last)
        return self._beyond(sorted(lost + self._buried.among(first, last)), first, last)

    def held_by(self, member: str, first: int, last: int) -> list[Span]:
        """The events among these that are leased to the member."""
        held: list[Span] = []
        for run in self._runs.between(first, last):
            if run.member == member:
                low, high = max(first, run.first), min(last, run.last)
                if held and held[-1][1] + 1 == low:
                    low = held.pop()[0]
                held.append((low, high))
        return held

    def _beyond(self, lost: list[Span], first: int, last: int) -> list[Span]:
        if last >= self.frontier:
            lost.append((max(first, self.frontier), last))
        return lost

    # --- what happens to leases

    def release(self, member: str) -> None:
        """To be called when a member is gone: its leased events wait for others."""
        self._take_back([run for run in self._runs if run.member == member], 0)

    def uncount(self, member: str, first: int, last: int) -> None:
        """Uncounts the last delivery of these events, as far as the member holds them: it has not processed them."""
        for run in self._runs.between(first, last):
            if run.member == member and run.deliveries:
                self._runs.carve(run, first, last).deliveries -= 1
        self._runs.join(first, last)

    def expire(self, now: int) -> None:
        """Takes back every lease that ended by `now`, and makes events wait whose delay is over."""
        if self.due is None or now < self.due:
            return
        self.due = None
        ended: list[OffsetRun] = []
        for run in self._runs:
            if not run.due:
                continue
            if run.due > now:
                self._alarm(run.due)
            elif run.state == LEASED:
                ended.append(run)
            else:
                self._let_go(run)
        self._take_back(ended, 0)
        self._runs.join(self.floor, self.frontier)

    def _take_back(self, runs: list[OffsetRun], due: int) -> None:
        if not runs:
            return
        for run in runs:
            self._turn(run, DEAD if run.deliveries >= self._max_deliveries else DELAYED if due else WAITING)
            if run.state == DELAYED:
                run.due = due
                self._alarm(due)
        self._runs.join(runs[0].first, runs[-1].last)

    def _let_go(self, run: OffsetRun) -> None:
        """Makes a delayed run wait: its delay is over."""
        self._turn(run, WAITING)

    def _condemn(self, run: OffsetRun) -> None:
        """Makes a run that waits dead."""
        self._turn(run, DEAD)

    def _turn(self, run: OffsetRun, state: int) -> None:
        self._counts[run.state] -= len(run)
        self._counts[state] += len(run)
        run.state, run.member, run.due = state, None, 0

    def _alarm(self, due: int) -> None:
        if self.due is None or due < self.due:
            self.due = due

    def _settle(self, run: OffsetRun) -> None:
        self._counts[run.state] -= len(run)
        self._runs.remove(run)

    # --- the dead

    def graves(self) -> list[Lease]:
        """The dead events, ascending, with how often each was leased."""
        return [Lease(run.first, run.last, run.deliveries) for run in self._runs if run.state == DEAD]

    def bury(self, first: int, last: int) -> None:
        """Settles the dead events among these: they are in the dead-letter topic now."""
        for run in self._runs.between(first, last):
            if run.state == DEAD:
                run = self._runs.carve(run, first, last)
                self.buried += len(run)
                self._settle(run)
                self._buried.add(run.first, run.last)

    def limit_deliveries(self, max_deliveries: int) -> None:
        """Sets another limit. Waiting events that have reached it become dead."""
        self._max_deliveries = max_deliveries
        for run in self._runs:
            if run.deliveries >= max_deliveries and run.state in (WAITING, DELAYED):
                self._condemn(run)

    def limit_window(self, window: int) -> None:
        """Sets how many events may be unsettled from now on."""
        self._window = window

    # --- the log's ends, and moving by hand

    def trim(self, start: int) -> None:
        """To be called when the log begins at `start`: all events below are settled, leased or not."""
        if start > self.floor:
            self._settle_all(self.floor, start - 1)
            if start > self.frontier:
                self.frontier, self.lineage = start, Lineage()

    def cut(self, end: int) -> None:
        """To be called when the log has lost its events from `end` on, by an unclean election or a loss of power.
        Events that are there now, or will be, count as never leased."""
        if end < self.frontier:
            self._settle_all(end, self.frontier)
            self.frontier = end
            self.lineage.cut(end)
            self._buried.cut(end)

    def _settle_all(self, first: int, last: int) -> None:
        for run in self._runs.between(first, last):
            self._settle(self._runs.carve(run, first, last))

    def reset(self, offset: int) -> None:
        """Settles everything below `offset`, and nothing from there on; leases and delivery counts are forgotten."""
        self.frontier, self.lineage = offset, Lineage()
        self._runs = Runs()
        self._counts = [0, 0, 0, 0]
        self.due = None
        self.buried, self._buried = 0, Buried()

    # --- state as plain numbers

    def dump(self, now: int = 0) -> list[int]:
        """All that outlives a restart, as a flat list of ints: version, frontier, how many were buried, then for each
        run the distance to the one before, its length, its deliveries, and how long it is delayed from `now` on (ms; 0:
        it may be leased). If leader epochs are known, these come first (`with_lineage`).

        Members are left out, so this is a few numbers, however many there are.
        """
        flat = [_VERSION, self.frontier, self.buried]
        end = 0  # of the run before
        last_run: tuple[int, int] | None = None  # deliveries and due of the run before
        for run in self._runs:
            due = max(1, run.due - now) if run.state == DELAYED else 0
            if last_run == (run.deliveries, due) and run.first == end:
                flat[-3] += len(run)
            else:
                flat += (run.first - end, len(run), run.deliveries, due)
                last_run = run.deliveries, due
            end = run.last + 1
        return with_lineage(self.lineage.dump(), flat)

    @classmethod
    def load(cls, flat: Sequence[int], *, max_deliveries: int, window: int = WINDOW, now: int = 0) -> Self:
        """The state that `dump` gave, after a restart. Delays go on from `now`. Raises ValueError for anything else."""
        epochs, flat = split_lineage(flat)
        if len(flat) % 4 != 3 or flat[0] != _VERSION or min(flat) < 0:
            raise ValueError("not the state of a group's partition")
        leases = cls(flat[1], max_deliveries=max_deliveries, window=window)
        leases.buried = flat[2]
        leases.lineage = Lineage.load(epochs)
        if epochs and epochs[-1] >= leases.frontier:
            raise ValueError("not the state of a group's partition: leader epochs beyond its frontier")
        end = 0
        for at in range(3, len(flat), 4):
            gap, length, deliveries, delay = flat[at : at + 4]
            first, end = end + gap, end + gap + length
            due = now + delay if 0 < delay <= LONGEST_DELAY else delay  # earlier versions wrote the time of its end
            state = DEAD if deliveries >= max_deliveries else DELAYED if due else WAITING
            leases._runs.append(OffsetRun(first, end - 1, state, deliveries, due if state == DELAYED else 0))
            leases._counts[state] += length
            if state == DELAYED:
                leases._alarm(due)
            if not length or end > leases.frontier:
                raise ValueError("not the state of a group's partition: a run beyond its frontier, or an empty one")
        return leases
