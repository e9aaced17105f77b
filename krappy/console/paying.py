"""Client quotas over HTTP: who is over a quota gets 429, and when to ask again (Retry-After).

Requests count for the user who has logged in, or without a login for their address. HTTP knows no client ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, TypeVar

import trio

from krappy.console.problems import HttpError
from krappy.core.security.operations import Need, Op, Resource
from krappy.core.security.quota import LENT, Payer
from krappy.core.security.quota_entities import QuotaKey
from krappy.errors import Overloaded
from krappy.ports.quotas import UsePort
from krappy.steps import timed

T = TypeVar("T")
MOST_REQUEST = 1.0  # seconds that request_percentage lets somebody wait, as in Kafka
MOST_WRITE = 10.0  # seconds for which a write stands in line, as in the other protocols: with less it may never begin
ANSWER = 2 << 20  # bytes that an answer has at most


class HttpPayer:
    """Pays for one request. `needs`: those of its operation."""

    def __init__(self, quotas: UsePort, user: str, host: str = "", needs: tuple[Need, ...] = ()) -> None:
        """`host`: the address of one who has not logged in."""
        self._quotas = quotas
        self._payer = Payer(user, host=host)
        self._reads = Need(Resource.TOPIC, Op.READ) in needs
        self._writes = Need(Resource.TOPIC, Op.WRITE) in needs
        self._placed = 0.0  # partitions that count already for the change, which is not made yet
        self._lent = 0.0  # bytes that count already for the answer, which is not made yet

    def check(self, *, live: bool = False) -> None:
        """Raises HttpError (429) for one who is over a quota that the request counts for. `live`: it is a live view;
        its parts wait for the quota of bytes instead."""
        quotas, payer = self._quotas, self._payer
        if not quotas.on:
            return
        waits = {QuotaKey.REQUEST: min(quotas.wait(QuotaKey.REQUEST, payer), MOST_REQUEST)}
        if self._reads and not live and (wait := quotas.wait(QuotaKey.CONSUME, payer)) > LENT:
            waits[QuotaKey.CONSUME] = wait
        if self._writes and (wait := quotas.wait(QuotaKey.PRODUCE, payer)) > MOST_WRITE:
            waits[QuotaKey.PRODUCE] = wait
        key = max(waits, key=lambda each: waits[each])
        if waits[key]:
            raise _refusal(key, waits[key])

    async def begin(self, *, mutates: bool = False) -> None:
        """Call it before a request is handled, and `end` afterwards. The bytes that the request may read are counted
        ahead, so that many requests at once get no more than one after the other; they wait for each other for a
        moment. One that `mutates` waits in line for its first partition, as a write does. Raises HttpError (429)."""
        if mutates and self._quotas.on:
            if (wait := self._quotas.wait(QuotaKey.MUTATION, self._payer)) > MOST_WRITE:
                raise _refusal(QuotaKey.MUTATION, wait)
            with trio.move_on_after(MOST_WRITE) as scope:
                await self._quotas.in_line(QuotaKey.MUTATION, self._payer, 1.0, lambda: True)
            if scope.cancelled_caught:
                raise _refusal(QuotaKey.MUTATION, self._quotas.wait(QuotaKey.MUTATION, self._payer))
            self._placed = 1.0
        if not (self._reads and self._quotas.on):
            return
        key = QuotaKey.CONSUME
        await self._quotas.within(key, self._payer, LENT)
        if wait := self._quotas.wait(key, self._payer):
            raise _refusal(key, wait)
        self._lent = self._quotas.lend(key, self._payer, ANSWER)

    def end(self) -> None:
        if self._placed:
            self._quotas.repay(QuotaKey.MUTATION, self._payer, self._placed)
            self._placed = 0.0
        if self._lent:
            self._quotas.repay(QuotaKey.CONSUME, self._payer, self._lent)
            self._lent = 0.0

    async def wrote(self, size: int) -> None:
        """Counts the bytes of a request, and waits in line behind other writes: beside somebody who writes all the
        time, there is no moment when the quota is free. Raises HttpError (429)."""
        quotas = self._quotas
        if not (self._writes and quotas.on):
            return
        if not await quotas.stand(QuotaKey.PRODUCE, self._payer, size, MOST_WRITE):
            raise _refusal(QuotaKey.PRODUCE, quotas.wait(QuotaKey.PRODUCE, self._payer))

    def read(self, size: int) -> None:
        """Counts the bytes of an answer."""
        self.end()
        if self._reads and self._quotas.on:
            self._quotas.spend(QuotaKey.CONSUME, self._payer, size)

    def mutate(self, partitions: int) -> None:
        """See PayerPort. Raises HttpError (429)."""
        if self._placed:
            self._quotas.spend(QuotaKey.MUTATION, self._payer, partitions - self._placed)
            self._placed = 0.0
            return
        try:
            self._quotas.mutate(self._payer, partitions, strict=True)
        except Overloaded as error:
            raise _refusal(QuotaKey.MUTATION, error.seconds) from None

    async def timed(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`, and counts its time on the event loop."""
        return await (timed(work, perf_counter, self.took) if self._quotas.timed else work)

    def took(self, seconds: float) -> None:
        self._quotas.spend(QuotaKey.REQUEST, self._payer, 100 * seconds)

    async def live(self, work: Coroutine[Any, Any, T], took: Callable[[float], None]) -> T:
        """As `timed`, for a live view: there may be quotas later. `took`: is told the time of each step, too."""

        def took_both(seconds: float) -> None:
            took(seconds)
            if self._quotas.timed:
                self.took(seconds)

        return await timed(work, perf_counter, took_both)

    async def turn(self) -> None:
        """Call it before a live view uses the event loop again. Waits, but not for long, until the user is within the
        quota of time."""
        if self._quotas.timed:
            await self._quotas.within(QuotaKey.REQUEST, self._payer, MOST_REQUEST)

    async def part(self, size: int, stands: Callable[[], bool]) -> None:
        """Call it before a part of a live view is sent. Waits until the quota has room for `size` bytes, or until soon
        after `stands` is false."""
        if self._reads and self._quotas.on:
            await self._quotas.in_line(QuotaKey.CONSUME, self._payer, size, stands)


def _refusal(key: QuotaKey, seconds: float) -> HttpError:
    text = f"the throttling quota has been exceeded: {key}; try again in {seconds:.1f} s"
    return HttpError(429, "THROTTLING_QUOTA_EXCEEDED", text, Retry_After=str(max(1, math.ceil(seconds))))
