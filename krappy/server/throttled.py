"""When the next request of a connection may begin, and what its requests count for in quotas.

Rules, kept here (KIP-219):

- Who is over a quota is answered at once, and told for how long; the broker then reads no further request of that
  connection until that time is over. It still sees a peer that leaves.
- Requests that a quota counts wait as well while what other connections did is over it, for `HELD` seconds at most:
  nobody gains by having many connections. Then a write begins all the same, and a read is refused: its client asks
  again. A Fetch is not held, but answered empty.
- What a read brings is known once its answer is made. While others could begin meanwhile, what it may bring is counted
  ahead (`reading`).
- When a quota changes, nobody is silent any longer for what was before.
- Without quotas all of this is one look at `_quotas.on` for each request.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from krappy.core.security.quota import Payer
from krappy.core.security.quota_entities import QuotaKey
from krappy.errors import Overloaded
from krappy.ports.quotas import UsePort
from krappy.server.authentication import Entrance
from krappy.server.pace import OUTBOX, Pace
from krappy.steps import timed
from krappy.waiting import wait_any

if TYPE_CHECKING:
    from krappy.server.server import Server

IN_FLIGHT = 48 << 20  # bytes of unanswered requests of one connection
HELD = 10.0  # seconds for which a request waits because of other connections: its client waits 30 for the answer
AGAIN = 0.05  # seconds after which a read that is held is looked at again, at the earliest
MOST_REQUEST = 1.0  # seconds for which request_percentage silences: others would take its members of groups for dead
LEFT = 30.0  # seconds for which a peer that has left is kept, so that what it had sent is still served
T = TypeVar("T")


class Throttled(Entrance, Pace):
    _server: Server
    _quotas: UsePort
    _throttled_until = 0.0  # until then no further request begins, on trio's clock
    _throttled_by = 0  # the version of the quotas that it is for
    _held_since = 0.0  # when the next request began to wait for what others did; 0: it does not wait
    _paying: Payer | None = None  # who pays for the request that is being dispatched; None: nobody
    _counted_at = 0.0  # up to when its time is paid, on perf_counter
    _blocked_since: float
    _frame_since: float
    _finishing: bool
    _left: bool
    _keeping_back: bool
    _longest = math.inf  # seconds for which it may be silenced at once
    throttled = 0.0  # seconds for which it was silenced, over its life

    # --- what a protocol says

    @property
    def _exempt(self) -> bool:
        """Whether it is another broker, which no quota limits."""
        return False

    def _payer(self, frame: memoryview) -> Payer:
        """Who pays for a request. `frame`: its bytes after the size field."""
        raise NotImplementedError

    def _limit_of(self, frame: memoryview) -> QuotaKey | None:
        """The quota that a request waits for, beside request_percentage: PRODUCE for a write, whose bytes count."""
        raise NotImplementedError

    def _dispatch(self, frame: memoryview, size: int, lent: bool) -> None:
        raise NotImplementedError

    # --- when a request may begin

    async def _room(self, enough: Callable[[], bool]) -> None:
        """Back-pressure: returns when `enough()` is true."""
        if enough():
            await trio.lowlevel.checkpoint()
            return
        if not self._throttled_until:
            self._server.budget.stalls += 1
        self._blocked_since = trio.current_time()
        signals = [self.changed, self._server.budget.freed, self._quotas.changed]
        while not await wait_any(signals, enough, self._silence()):
            pass
        self._blocked_since = math.inf
        self._frame_since = trio.current_time()

    def _may_begin(self) -> bool:
        """Whether the next request may begin. If not, reading goes on until a whole request has come."""
        if self._keeping_back and not self._left:
            return self._finishing
        return self._may_read()

    def _may_read(self) -> bool:
        if self._throttled_until and self._silence() < math.inf:
            return self._finishing
        budget = self._server.budget
        return self._finishing or (
            self._outbox.size <= OUTBOX
            and self.in_flight <= IN_FLIGHT
            and (budget.used < budget.total or self._is_small)
        )

    def _silence(self) -> float:
        """Seconds until it may go on; infinite: quotas do not keep it from that."""
        left = self._throttled_until - trio.current_time()
        if left <= 0 or self._throttled_by != self._quotas.version:
            self._throttled_until = 0.0
        return left if self._throttled_until else math.inf

    def _leaves_silently(self, now: float) -> bool:
        """Whether a peer that has left would be silent for too long to be kept."""
        return self._throttled_until - now > LEFT

    def throttle(self, seconds: float) -> None:
        """Begins no further request for so long."""
        now, seconds = trio.current_time(), min(seconds, self._longest)
        if now + seconds > self._throttled_until:
            self.throttled += now + seconds - max(now, self._throttled_until)
            self._throttled_until, self._throttled_by = now + seconds, self._quotas.version

    # --- reads

    @property
    def read_bytes(self) -> int:
        rate = self._quotas.rate(QuotaKey.CONSUME, self._peer.payer) if self._quotas.on else math.inf
        return self.answer_bytes if rate == math.inf else max(1, min(self.answer_bytes, int(rate)))

    @asynccontextmanager
    async def reading(self, limit: int) -> AsyncIterator[None]:
        quotas, payer, lent = self._quotas, self._peer.payer, 0.0
        if quotas.on and not self._exempt:
            if not await quotas.within(QuotaKey.CONSUME, payer, HELD):
                raise over_quota(quotas.wait(QuotaKey.CONSUME, payer))
            lent = quotas.lend(QuotaKey.CONSUME, payer, limit)
        try:
            yield
        finally:
            if lent:
                quotas.repay(QuotaKey.CONSUME, payer, lent)

    async def affordable(self) -> None:
        await self.writable()
        while self._quotas.on and self._quotas.wait(QuotaKey.CONSUME, self._peer.payer):
            await self._quotas.within(QuotaKey.CONSUME, self._peer.payer)
            await self.writable()

    # --- what it counts for

    def _is_held(self, frame: memoryview) -> bool:
        """Whether a request waits, because its sender is over a quota by what was done on other connections."""
        if self._exempt:
            return False
        payer, quotas = self._payer(frame), self._quotas
        wait = min(quotas.wait(QuotaKey.REQUEST, payer), MOST_REQUEST) if quotas.timed else 0.0
        if (key := self._limit_of(frame)) is not None:
            wait = max(wait, quotas.wait(key, payer))
        now = trio.current_time()
        if not wait or self._finishing or (self._held_since and now - self._held_since >= HELD):
            self._held_since = 0.0
            return False
        self._held_since = self._held_since or now
        if key is QuotaKey.CONSUME:  # some of it may be counted ahead, and be given back
            wait = max(AGAIN, wait / 4)
        self.throttle(min(wait, self._held_since + HELD - now))
        return True

    def _metered(self, frame: memoryview, size: int, lent: bool) -> None:
        """Dispatches a request while there are quotas."""
        if self._exempt:
            self._dispatch(frame, size, lent)
            return
        payer = self._payer(frame)
        if self._limit_of(frame) is QuotaKey.PRODUCE:
            self._spend(QuotaKey.PRODUCE, payer, size)
        self._paying, self._counted_at = payer, perf_counter()
        try:
            self._dispatch(frame, size, lent)
        finally:
            self._spend_time()
            self._paying = None

    def _spend(self, key: QuotaKey, payer: Payer, amount: float) -> None:
        if wait := self._quotas.spend(key, payer, amount):
            self.throttle(wait)

    def _spend_time(self) -> None:
        """Counts the time of the request that is being dispatched, up to now."""
        if self._quotas.timed and self._paying is not None:
            now = perf_counter()
            self._took(self._paying, now - self._counted_at)
            self._counted_at = now

    def _took(self, payer: Payer, seconds: float) -> None:
        """Counts time on the event loop."""
        if wait := self._quotas.spend(QuotaKey.REQUEST, payer, 100 * seconds):
            self.throttle(min(wait, MOST_REQUEST))

    def _checked(self, seconds: float) -> None:
        if self._quotas.timed:
            self._took(Payer(host=self._peer.principal.host), seconds)

    def _timed(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """A request's task, whose time on the event loop counts, if it is to be counted."""
        payer = self._paying
        if payer is None or not self._quotas.timed:
            return work
        return timed(work, perf_counter, lambda seconds: self._took(payer, seconds))


def over_quota(seconds: float) -> Overloaded:
    text = f"the throttling quota has been exceeded: {QuotaKey.CONSUME}; try again in {seconds:.1f} s"
    return Overloaded(text, seconds=seconds)
