"""Client quotas over HTTP: who is over one is answered with 429, and with when to ask again (Retry-After).

Requests count for the user who has logged in, those before that for their address. HTTP knows no client ids.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine
from time import perf_counter
from typing import Any, TypeVar

import trio

from krappy.console.problems import HttpError
from krappy.core.security.operations import Need, Op, Resource
from krappy.core.security.quota import Payer
from krappy.core.security.quota_entities import QuotaKey
from krappy.errors import Overloaded
from krappy.ports.quotas import UsePort
from krappy.steps import timed

T = TypeVar("T")
MOST_REQUEST = 1.0  # seconds that request_percentage lets somebody wait, as in Kafka
PAUSE = 10.0  # seconds between two parts of a live view at most


class HttpPayer:
    """One request. `needs`: of its operation."""

    def __init__(self, quotas: UsePort, user: str, host: str = "", needs: tuple[Need, ...] = ()) -> None:
        """`host`: the address of one who has not logged in."""
        self._quotas = quotas
        self._payer = Payer(user, host=host)
        self._reads = Need(Resource.TOPIC, Op.READ) in needs
        self._writes = Need(Resource.TOPIC, Op.WRITE) in needs

    def check(self) -> None:
        """Raises HttpError (429) for one who is over a quota that the request counts for."""
        quotas, payer = self._quotas, self._payer
        if not quotas.on:
            return
        waits = {QuotaKey.REQUEST: min(quotas.wait(QuotaKey.REQUEST, payer), MOST_REQUEST)}
        if self._reads:
            waits[QuotaKey.CONSUME] = quotas.wait(QuotaKey.CONSUME, payer)
        if self._writes:
            waits[QuotaKey.PRODUCE] = quotas.wait(QuotaKey.PRODUCE, payer)
        key = max(waits, key=lambda each: waits[each])
        if waits[key]:
            raise _refusal(key, waits[key])

    def wrote(self, size: int) -> None:
        """Counts the bytes of a request."""
        if self._writes and self._quotas.on:
            self._quotas.spend(QuotaKey.PRODUCE, self._payer, size)

    def read(self, size: int) -> float:
        """Counts the bytes of an answer, or of a part of a live view. Returns seconds until the next part."""
        if not (self._reads and self._quotas.on):
            return 0.0
        return min(PAUSE, self._quotas.spend(QuotaKey.CONSUME, self._payer, size))

    def mutate(self, partitions: int) -> None:
        """See PayerPort. Raises HttpError (429)."""
        try:
            self._quotas.mutate(self._payer, partitions, strict=True)
        except Overloaded as error:
            raise _refusal(QuotaKey.MUTATION, error.seconds) from None

    async def timed(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits it, and counts its time on the event loop."""
        return await (timed(work, perf_counter, self.took) if self._quotas.timed else work)

    def took(self, seconds: float) -> None:
        self._quotas.spend(QuotaKey.REQUEST, self._payer, 100 * seconds)

    async def pause(self, size: int) -> None:
        """After a part of a live view."""
        if seconds := self.read(size):
            await trio.sleep(seconds)


def _refusal(key: QuotaKey, seconds: float) -> HttpError:
    text = f"the throttling quota has been exceeded: {key}; try again in {seconds:.1f} s"
    return HttpError(429, "THROTTLING_QUOTA_EXCEEDED", text, Retry_After=str(max(1, math.ceil(seconds))))
