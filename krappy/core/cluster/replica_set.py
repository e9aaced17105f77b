"""The leader's view of its replicas in one leader epoch: how far each has come, the high watermark that follows from
it, and which of them are in sync.

An event is committed once every replica in sync has it on its disk, and there are enough of those
(min.insync.replicas). A committed event stays committed: the high watermark never goes back.

A follower asks only for what is behind the events on its disk, so the offset of its fetch tells what it has. The leader
changes the ISR by a write that may be refused. Until it is answered, replicas of the old and of the new ISR must have
an event before it is committed (the maximal ISR of KIP-497): the write may have been done.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from krappy.core.cluster.state import NOBODY
from krappy.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend

LAG_MS = 10_000.0  # replica.lag.time.max.ms


class FollowerProgress(NamedTuple):
    """A follower in this leader epoch. `offset`: it has everything before on its disk. `broker_epoch`: of its last
    fetch, which came at `fetched` (ms). `end`: of the leader's log at that time. `caught_up`: when it had all that
    there was (ms). `start`: where its log begins."""

    offset: int
    broker_epoch: int
    end: int
    fetched: float
    caught_up: float
    start: int = 0


class FollowerLag(NamedTuple):
    """How far a follower is behind its leader. `offset`: it has everything before on its disk. `lag`: the events that
    it lacks. `fetched_ms`: since its last fetch. `caught_up_ms`: since it had all that there was; None: it never had.
    """

    offset: int
    lag: int
    fetched_ms: float
    caught_up_ms: float | None


class Proposal(NamedTuple):
    """An ISR that the leader wants. `gone`: who leaves it. `added`: who comes back, with the broker epoch that its
    registration must still have."""

    isr: tuple[int, ...]
    gone: tuple[int, ...]
    added: Mapping[int, int]


class ReplicaSet:
    """Offsets are exclusive: behind the last event. Times are ms of a monotonic clock."""

    def __init__(
        self,
        leader: int,
        isr: Iterable[int],
        min_isr: int,
        high_watermark: int,
        end: int = 0,
        now: float = 0.0,
        start: int = 0,
    ) -> None:
        """`start`, `end`: of the leader's log when it began to lead (its leader epoch start offset, LESO)."""
        self.leader = leader
        self.isr = tuple(isr)
        self.min_isr = min_isr
        self.high_watermark = high_watermark
        self.proposed: Proposal | None = None
        self._followers: dict[int, FollowerProgress] = {}
        self._silent: set[int] = set()  # those that have not fetched since they left the ISR
        self._synced = high_watermark  # the leader's own
        self._deleted = start  # a replica whose log begins before this offset does not come into the ISR
        self._start = end
        self._since = now

    @property
    def enough(self) -> bool:
        """Whether the replicas in sync are enough to acknowledge events."""
        return len(self.isr) >= self.min_isr

    def check_enough(self, partition: object) -> None:
        """Raises NotEnoughReplicas if this broker leads, and nothing can be committed. `partition`: what the error
        names."""
        if self.leader != NOBODY and not self.enough:
            text = f"{len(self.isr)} replicas are in sync, and min.insync.replicas is {self.min_isr}"
            raise NotEnoughReplicas(f"{partition}: {text}")

    def too_few(self, partition: object) -> NotEnoughReplicasAfterAppend:
        """The error for who waits for a commit that does not come, because replicas have left the ISR meanwhile."""
        return NotEnoughReplicasAfterAppend(f"{partition}: {len(self.isr)} replicas are left in sync")

    @property
    def knows_end(self) -> bool:
        """Whether all that earlier leaders acknowledged is below the high watermark (KIP-207)."""
        return self.high_watermark >= self._start

    def synced(self, offset: int) -> bool:
        """Notes that the leader has everything before `offset` on its disk. Returns whether the high watermark rose."""
        if offset <= self._synced:
            return False
        self._synced = offset
        return self._advance()

    def fetched(self, replica: int, broker_epoch: int, offset: int, end: int, now: float, start: int = 0) -> bool:
        """Notes a fetch of this leader epoch: the follower has everything from `start` to before `offset` on its disk.
        `end`: of the leader's log. Returns whether the high watermark rose."""
        before = self._followers.get(replica)
        if before is not None and broker_epoch < before.broker_epoch:
            return False  # it was sent before that broker was started again
        self._silent.discard(replica)
        if offset >= end:
            caught_up = now
        elif before is not None and before.broker_epoch == broker_epoch:
            caught_up = before.fetched if offset >= before.end else before.caught_up
        else:
            caught_up = float("-inf")
        self._followers[replica] = FollowerProgress(offset, broker_epoch, end, now, caught_up, start)
        return self._advance()

    def is_new(self, replica: int, broker_epoch: int, now: float, lag_ms: float) -> bool:
        """Whether this leader has kept nothing for that follower: it is not in sync, and has not fetched in this leader
        epoch and broker epoch, or not for `lag_ms` (see `slowest`)."""
        found = self._followers.get(replica)
        if replica in self._members():
            return False
        return found is None or found.broker_epoch != broker_epoch or now - found.fetched > lag_ms

    def slowest(self, now: float, lag_ms: float) -> float:
        """The least offset of the followers that have fetched in the last `lag_ms`; infinite without any. What tells a
        follower that a key was deleted stays in the leader's log from this offset on, or one that is catching up would
        never learn of it."""
        return min((each.offset for each in self._followers.values() if now - each.fetched <= lag_ms), default=math.inf)

    def delete(self, before: int) -> None:
        """Notes that the leader has deleted the events before this offset, and somebody will be told so."""
        self._deleted = max(self._deleted, before)

    def has_deleted(self, before: int) -> bool:
        """Whether every replica that may be in sync has deleted the events before this offset, and there are enough of
        those. So none of them is in the log of a later leader."""
        found = [self._followers.get(each) for each in self._members() if each != self.leader]
        return self.enough and all(each is not None and each.start >= before for each in found)

    def lags(self, end: int, now: float) -> dict[int, FollowerLag]:
        """How far behind each follower is, of those that have fetched in this leader epoch. `end`: of the leader's
        log."""
        return {
            replica: FollowerLag(
                each.offset,
                max(0, end - each.offset),
                now - each.fetched,
                None if math.isinf(each.caught_up) else now - each.caught_up,
            )
            for replica, each in self._followers.items()
        }

    def take(self, isr: Iterable[int], min_isr: int) -> bool:
        """Takes the ISR of a newer state than that of the last proposal: what was proposed was done, or will never be.
        Returns whether the high watermark rose."""
        before, self.isr, self.min_isr, self.proposed = self.isr, tuple(isr), min_isr, None
        self._silent |= {*before} - {*self.isr}
        return self._advance()

    def settle(self, proposal: Proposal | None, isr: Iterable[int], min_isr: int) -> bool:
        """Like `take`, with the state that was read after the write of this proposal. Takes nothing if another proposal
        has been made meanwhile: that one may still be done."""
        return proposal is self.proposed and self.take(isr, min_isr)

    def propose(self, alive: Mapping[int, int], now: float, lag_ms: float = LAG_MS) -> Proposal | None:
        """The change of the ISR that is due, None: none. After it was written, or refused for certain, the caller
        says so by `take` or `settle`.

        `alive`: the epochs of the replicas that are registered, and not about to stop. A follower that was not at the
        end of the log for `lag_ms` leaves, but not before the leader has led for so long: the leader before it may hold
        a read lease. A follower comes back when it has all that is committed, and was at the end of the log: so it has
        all that earlier leaders may have committed, too. It must also have deleted what was deleted, and have fetched
        since it left: a dead one, which the controller has taken out, may still be registered."""
        if self.proposed is not None:
            return None
        gone = [each for each in self.isr if each != self.leader and self._lags(each, now, lag_ms)]
        added = {
            replica: found.broker_epoch
            for replica, found in self._followers.items()
            if replica not in self.isr
            and replica not in self._silent
            and alive.get(replica) == found.broker_epoch
            and found.offset >= self.high_watermark
            and found.start >= self._deleted
            and now - found.caught_up <= lag_ms
        }
        if not gone and not added:
            return None
        isr = (*(each for each in self.isr if each not in gone), *added)
        self.proposed = Proposal(isr, tuple(gone), added)
        return self.proposed

    def _lags(self, replica: int, now: float, lag_ms: float) -> bool:
        found = self._followers.get(replica)
        return now - (self._since if found is None else max(self._since, found.caught_up)) > lag_ms

    def _members(self) -> Collection[int]:
        return self.isr if self.proposed is None else {*self.isr, *self.proposed.isr}

    def _advance(self) -> bool:
        if not self.enough:
            return False
        reached = self._synced
        for each in self._members():
            if each != self.leader:
                found = self._followers.get(each)
                reached = min(reached, self.high_watermark if found is None else found.offset)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True
