"""When the next request of a connection may begin, and what its requests count for in quotas.

Rules, kept here (KIP-219):

- A client that is over a quota is answered at once, and told for how long it is; the broker then reads no further
  request of that connection until that time is over. It still sees a peer that leaves.
- Requests that a quota counts also wait while other connections have used too much of it, for `HELD` seconds at most:
  nobody gains by having many connections, or new ones.
- A write takes its place in line when it comes, together with the writes that have come behind it, up to the size of
  others in line. A write that would wait longer than `HELD` is refused at once, and its connection is silent for so
  long. A write that gets no answer is not refused, for nobody would know. It looks for a place again and again, unless
  others wait for the memory that it keeps (`overdue`).
- A read is refused after `HELD`. Clients ask again. A Fetch is not held, but answered without events.
- What a read brings is known only once its answer is made. Because others could begin meanwhile, what it may bring is
  counted ahead (`reading`).
- For time on the event loop (request_percentage) a connection is silent for `MOST_REQUEST` at most between two of its
  requests, whoever has used the time, and whatever its streams use meanwhile: in Kafka that is the quota's window
  (KIP-124). For what it has read or written, a native connection is silent for `_longest` at most. Nobody asks for the
  parts of its streams one by one: so each part waits anew (`_streams_until`), and in line with others of its user
  before it is sent.
- When a quota changes, nobody is silent any longer for earlier use.
- Without quotas all of this is one look at `_quotas.on` for each request.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import trio

from krappy.core.security.quota import LEAST_WAIT, Payer
from krappy.core.security.quota_entities import QuotaKey
from krappy.errors import KrappyError, Overloaded
from krappy.ports.quotas import UsePort
from krappy.server.authentication import Entrance
from krappy.server.pace import OUTBOX, Pace
from krappy.steps import timed
from krappy.waiting import Waits, wait_any, while_standing
from krappy.wire.frames import SIZE

if TYPE_CHECKING:
    from krappy.server.server import Server

IN_FLIGHT = 48 << 20  # bytes of unanswered requests of one connection
HELD = 10.0  # seconds for which a request waits because of other connections: its client waits 30 for the answer
MOST_TOGETHER = 500  # writes that begin together: they are looked at without a pause
AGAIN = 0.05  # seconds after which a read that is held is looked at again, at the earliest
MOST_REQUEST = 1.0  # seconds for which request_percentage silences at most: members of groups must not seem dead
LEFT = 30.0  # seconds for which a peer that has left is kept, so that what it had sent is still served
NOTHING = memoryview(b"")
NOWHERE = object()
T = TypeVar("T")


class WriteTurn(NamedTuple):
    """When the write at the head of a connection begins (on trio's clock), and for how long the connection is silent
    then. `account`: where it was counted; NOWHERE: it has no place yet, and looks for one at that time. `refused`: it
    is refused at that time. `left`: its bytes, and those of the writes behind it that begin together with it."""

    at: float
    silence: float
    account: object
    refused: bool
    left: int


class Throttled(Entrance, Pace):
    _server: Server
    _quotas: UsePort
    _throttled_until = 0.0  # until then no further request begins, on trio's clock
    _streams_until = 0.0  # the same for the next part of an answer that is a stream
    _throttled_by = 0  # the version of the quotas that have silenced it
    _throttled_since = 0.0  # when it was silenced first after its last request began; 0: it was not
    _held_since = 0.0  # when the next request began to wait for what others did; 0: it does not wait
    _write_turn: WriteTurn | None = None  # of the next request, once it is known
    _paying: Payer | None = None  # who pays for the request that is being dispatched; None: nobody
    _counted_at = 0.0  # up to when its time is paid, on perf_counter
    _blocked_since: float
    _silent_since: float
    _frame_since: float
    _finishing: bool
    _waits: Waits
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

    def _is_unanswered(self, frame: memoryview) -> bool:
        """Whether a write gets no answer. Raises ProtocolError."""
        return False

    def _dispatch(self, frame: memoryview, size: int, lent: bool) -> None:
        raise NotImplementedError

    def _refuse(self, frame: memoryview, size: int, lent: bool, error: KrappyError) -> None:
        """As `_dispatch`, for a request that is answered with this error."""
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
        if self._keeping_back and not self._waits.ended:
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
        """Seconds until it may go on; infinite: no quota keeps it from going on."""
        left = self._throttled_until - trio.current_time()
        if left <= 0 or self._throttled_by != self._quotas.version:
            self._throttled_until = 0.0
        return left if self._throttled_until else math.inf

    def _silence_of_streams(self) -> float:
        """The same for the next part of a stream."""
        left = self._streams_until - trio.current_time()
        if left <= 0 or self._throttled_by != self._quotas.version:
            self._streams_until = 0.0
        return left if self._streams_until else math.inf

    def _leaves_silently(self, now: float) -> bool:
        """Whether a peer that has left would be silent for too long to be kept."""
        return self._throttled_until - now > LEFT

    def throttle(self, seconds: float) -> None:
        """Begins no further request for so long."""
        self._silence_for(seconds, self._longest)

    def _silence_for(self, seconds: float, most: float) -> None:
        """Begins no further request for `seconds`; but for `most` at most, counted from when it was silenced first
        since its last request."""
        now = trio.current_time()
        if self._silent_since < math.inf and now >= self._throttled_until:  # it waits for the peer, not the peer for it
            self._throttled_since = 0.0
        if self._throttled_by != self._quotas.version:
            self._throttled_by = self._quotas.version
            self._throttled_until = self._streams_until = self._throttled_since = 0.0
        self._throttled_since = self._throttled_since or now
        self._streams_until = max(self._streams_until, now + min(seconds, most))
        until = min(now + seconds, self._throttled_since + most)
        if until > max(now, self._throttled_until):
            self.throttled += until - max(now, self._throttled_until)
            self._throttled_until = until

    # --- reads

    @property
    def read_bytes(self) -> int:
        most = self._server.budget.answer_bytes
        if not self._quotas.on or self._exempt:
            return most
        rate = self._quotas.rate(QuotaKey.CONSUME, self._peer.payer)
        return most if rate == math.inf else max(1, min(most, int(rate)))

    @asynccontextmanager
    async def reading(self, limit: int) -> AsyncIterator[None]:
        quotas, payer, lent = self._quotas, self._peer.payer, 0.0
        if quotas.on and not self._exempt:
            if not await quotas.within(QuotaKey.CONSUME, payer, HELD):
                raise over_quota(QuotaKey.CONSUME, quotas.wait(QuotaKey.CONSUME, payer))
            lent = quotas.lend(QuotaKey.CONSUME, payer, limit)
        try:
            yield
        finally:
            if lent:
                quotas.repay(QuotaKey.CONSUME, payer, lent)

    async def affordable(self, stands: Callable[[], bool] = lambda: True) -> None:
        await self.writable()
        quotas, payer = self._quotas, self._peer.payer
        if quotas.on and not self._exempt and quotas.wait(QuotaKey.CONSUME, payer):
            await while_standing(stands, lambda: quotas.within(QuotaKey.CONSUME, payer))
            await self.writable()

    async def _in_line(self, size: int, stands: Callable[[], bool]) -> None:
        """Waits, before a part of a stream with events is sent, until it may have so many bytes, or until soon after
        `stands()` is false: it is not to be sent any more. Meanwhile the connection keeps these bytes."""
        if not self._quotas.on or self._exempt:
            return
        self.in_flight += size
        self._server.budget.charge(size)
        try:
            await self._quotas.in_line(QuotaKey.CONSUME, self._peer.payer, size, stands)
        finally:
            self.in_flight -= size
            self._server.budget.credit(size)
            self.changed.fire()

    # --- what it counts for

    def _is_held(self, frame: memoryview, behind: memoryview = NOTHING) -> bool:
        """Whether a request waits, because its sender is over a quota by what was done on other connections. `behind`:
        what has come after it."""
        if self._exempt:
            return False
        payer, quotas, key, now = self._payer(frame), self._quotas, self._limit_of(frame), trio.current_time()
        if self._finishing:
            return False
        if key is QuotaKey.PRODUCE and (turn := self._turn_to_write(payer, frame, behind)).at - now >= LEAST_WAIT:
            self._silence_for(turn.at - now, math.inf)
            return True
        wait = min(quotas.wait(QuotaKey.REQUEST, payer), self._left_of_window(now)) if quotas.timed else 0.0
        if key is QuotaKey.CONSUME:
            wait = max(wait, quotas.wait(key, payer))
        if wait < LEAST_WAIT or (self._held_since and now - self._held_since >= HELD):
            self._held_since = 0.0
            return False
        self._held_since = self._held_since or now
        if key is QuotaKey.CONSUME:  # some of it may be counted ahead, and be given back
            wait = max(AGAIN, wait / 4)
        self._silence_for(min(wait, self._held_since + HELD - now), math.inf)
        return True

    def _left_of_window(self, now: float) -> float:
        """For how many seconds request_percentage may keep the next request from beginning."""
        return MOST_REQUEST if not self._throttled_since else self._throttled_since + MOST_REQUEST - now

    def _turn_to_write(self, payer: Payer, frame: memoryview, behind: memoryview = NOTHING) -> WriteTurn:
        turn, account = self._write_turn, self._quotas.account(QuotaKey.PRODUCE, payer)
        if turn is None or turn.account is not account:  # a quota that concerns others may have changed
            turn = self._write_turn = self._placed(payer, account, frame, behind)
        return turn

    def _placed(self, payer: Payer, account: object, frame: memoryview, behind: memoryview) -> WriteTurn:
        quotas, key, now, size = self._quotas, QuotaKey.PRODUCE, trio.current_time(), len(frame) + 4
        if (wait := quotas.wait(key, payer)) > HELD and self._is_unanswered(frame):
            quotas.note(key, payer, wait / 4)
            return WriteTurn(now + wait / 4, 0.0, NOWHERE, False, size)
        together = size + self._fitting(payer, size, behind)
        place = quotas.place(key, payer, together, HELD)
        if place is None:
            return WriteTurn(now, HELD, account, True, size)
        return WriteTurn(now + place.wait, place.silence, account, False, together)

    @property
    def _is_without_place(self) -> bool:
        """Whether the next request is a write that has no place in line yet: it may take long until it has."""
        return self._write_turn is not None and self._write_turn.account is NOWHERE

    def _fitting(self, payer: Payer, size: int, behind: memoryview) -> int:
        """How many bytes of the writes that have come behind one of `size` bytes begin together with it."""
        found, most = 0, self._quotas.turn(QuotaKey.PRODUCE, payer) - size
        for frame in islice(_whole_frames(behind), MOST_TOGETHER if most > 0 else 0):
            more = len(frame) + 4
            if found + more > most or self._limit_of(frame) is not QuotaKey.PRODUCE or self._payer(frame) != payer:
                break
            found += more
        return found

    def _metered(self, frame: memoryview, size: int, lent: bool) -> None:
        """Dispatches a request while there are quotas."""
        if self._exempt:
            self._dispatch(frame, size, lent)
            return
        payer, refused, self._throttled_since = self._payer(frame), False, 0.0
        if self._limit_of(frame) is QuotaKey.PRODUCE:
            turn = self._turn_to_write(payer, frame)
            refused, left = turn.refused, turn.left - size
            self._write_turn = turn._replace(left=left) if left > 0 else None
            if turn.silence and left <= 0:
                self.throttle(turn.silence)
        self._paying, self._counted_at = payer, perf_counter()
        try:
            if refused:
                self._refuse(frame, size, lent, over_quota(QuotaKey.PRODUCE, HELD))
            else:
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
            self._silence_for(wait, MOST_REQUEST)

    def _checked(self, seconds: float) -> None:
        if self._quotas.timed:
            self._took(Payer(host=self._peer.principal.host), seconds)

    def _timed(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """A request's task, whose time on the event loop counts, if it is to be counted."""
        payer = self._paying
        if payer is None or not self._quotas.timed:
            return work
        return timed(work, perf_counter, lambda seconds: self._took(payer, seconds))


def _whole_frames(data: memoryview) -> Iterator[memoryview]:
    """The whole frames of these bytes, without their size fields, up to the first that can't be a write's."""
    position = 0
    while len(data) - position >= 8:
        end = position + 4 + SIZE.unpack_from(data, position)[0]
        if not position + 8 <= end <= len(data):
            return
        yield data[position + 4 : end]
        position = end


def over_quota(key: QuotaKey, seconds: float) -> Overloaded:
    text = f"the throttling quota has been exceeded: {key}; try again in {seconds:.1f} s"
    return Overloaded(text, seconds=seconds)
