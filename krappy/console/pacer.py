"""Live views use the broker's time for long, so the share of all of them together is bounded, and that of one user: his
many views do not make another's late. The time of each counts for the quota of its user, too.

What a view has waited for, such as a thread that decodes a large batch, counts only for its own user: it is no time of
the event loop."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import trio

from krappy.console.paying import HttpPayer
from krappy.turns import UserTurns

SHARE = 0.08  # of the event loop's time,
OF_ONE = 2  # and half of it for one user
MANY = 100  # users whose debts are kept, before those that are over are looked for


class Pacer:
    """Gives turns to work, so that all work together takes SHARE of the event loop's time in the long run, and that of
    one user half as much. So one user's views wait for those of another no longer than a part of these takes."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self._free_at_of: dict[str, float] = {}  # by user
        self._next = UserTurns()  # whose work comes next: the others wait behind it

    async def turn(self, who: str = "") -> None:
        """`who`: the user, or the address of one who has not logged in."""
        await trio.lowlevel.checkpoint()
        while True:
            while trio.current_time() < (free_at := self._free_at_of.get(who, 0.0)):
                await trio.sleep_until(free_at)
            async with self._next.one(who):
                while trio.current_time() < self._free_at:
                    await trio.sleep_until(self._free_at)
                if trio.current_time() >= self._free_at_of.get(who, 0.0):  # else another view of his was first
                    return

    def spent(self, seconds: float, who: str = "", on_loop: float | None = None) -> None:
        """`seconds`: that work took. `on_loop`: how many of them on the event loop; None: all."""
        now = trio.current_time()
        self._free_at = max(now, self._free_at) + (seconds if on_loop is None else on_loop) / SHARE
        if len(self._free_at_of) >= MANY:
            self._free_at_of = {each: at for each, at in self._free_at_of.items() if at > now}
        self._free_at_of[who] = max(now, self._free_at_of.get(who, 0.0)) + OF_ONE * seconds / SHARE


class PaidPacer:
    """The pacer of one view, which waits for its user's quota, too. `who`: as of `Pacer.turn`."""

    def __init__(self, pacer: Pacer, payer: HttpPayer, who: str = "") -> None:
        self._pacer, self._payer, self._who = pacer, payer, who
        self._on_loop = 0.0  # seconds of steps of its task that were not counted yet

    def took(self, seconds: float) -> None:
        """Call it after each step of the view's task."""
        self._on_loop += seconds

    def spent(self, seconds: float) -> None:
        on_loop = min(seconds, self._on_loop)  # the step that goes on is counted the next time
        self._on_loop -= on_loop
        self._pacer.spent(seconds, self._who, on_loop)

    async def turn(self) -> None:
        await self._payer.turn()
        await self._pacer.turn(self._who)


class PacedStopwatch:
    """Tells a pacer how long some work took: `with PacedStopwatch(pacer): …`. `waited` gives the seconds for
    which such work has waited for other brokers so far: these do not count."""

    def __init__(self, pacer: PaidPacer, waited: Callable[[], float] = lambda: 0.0) -> None:
        self._pacer, self._waited = pacer, waited

    def __enter__(self) -> None:
        self._began = perf_counter() - self._waited()

    def __exit__(self, *_: object) -> None:
        self._pacer.spent(max(0.0, perf_counter() - self._waited() - self._began))
