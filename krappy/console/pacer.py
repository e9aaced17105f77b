"""Live views use the broker's time for long, so the share of all of them together is bounded. The time of each counts
for the quota of its user, too."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import trio

from krappy.console.paying import HttpPayer

SHARE = 0.04  # of the event loop's time


class Pacer:
    """Gives turns to work, so that all work together takes `share` of the event loop's time in the long run."""

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._free_at = 0.0

    async def turn(self) -> None:
        await trio.lowlevel.checkpoint()
        while trio.current_time() < self._free_at:
            await trio.sleep_until(self._free_at)

    def spent(self, seconds: float) -> None:
        self._free_at = max(trio.current_time(), self._free_at) + seconds / self._share


class PaidPacer:
    """The pacer of one view, which waits for its user's quota, too."""

    def __init__(self, pacer: Pacer, payer: HttpPayer) -> None:
        self._pacer, self._payer = pacer, payer
        self.spent = pacer.spent

    async def turn(self) -> None:
        await self._payer.turn()
        await self._pacer.turn()


class PacedStopwatch:
    """Tells a pacer how long some work took: `with PacedStopwatch(pacer): …`. `waited` gives the seconds for
    which such work has waited for other brokers so far: these do not count."""

    def __init__(self, pacer: PaidPacer, waited: Callable[[], float] = lambda: 0.0) -> None:
        self._pacer, self._waited = pacer, waited

    def __enter__(self) -> None:
        self._began = perf_counter() - self._waited()

    def __exit__(self, *_: object) -> None:
        self._pacer.spent(max(0.0, perf_counter() - self._waited() - self._began))
