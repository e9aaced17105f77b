"""The work that peers cause before it is known who they are: steps of TLS handshakes, heads of HTTP requests, and
messages of logins.

Rules, kept here:

- Each such step takes up to some ms, and one may come by each of a thousand connections at the same moment. Steps are
  made one after the other: in a round of the event loop for `TURN` seconds, and a few at most, because what follows on
  them takes time, too. So others wait for a round, not for all of them.
- The addresses take turns: of each, one step is made at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import islice
from time import perf_counter
from typing import Any, TypeVar

import trio

from krappy.core.address_lines import AddressLines
from krappy.ports.users import Took, untold
from krappy.waiting import Signal, wait_any

TURN = 0.005  # seconds for which steps are made in a round of the event loop
TOGETHER = 4  # steps of a round, unless told otherwise
T = TypeVar("T")


class StrangerStep:
    """`done`: set once the step was made, or has failed (`error`). `seconds`: how long it took."""

    __slots__ = ("done", "error", "seconds", "value", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done = trio.Event()
        self.error: Exception | None = None
        self.value: Any = None
        self.seconds = 0.0

    def make(self) -> None:
        began = perf_counter()
        try:
            self.value = self.work()
        except Exception as error:  # of whatever kind: it concerns this peer alone
            self.error = error
        self.seconds = perf_counter() - began
        self.done.set()

    def give_way(self) -> None:
        self.error = OSError("it gave way to others")
        self.done.set()


class StrangerSteps:
    """`together`: how many are made in a round. `most`: how many may wait: when another has to, one gives way, which
    raises OSError; of the address with most of them, the one that has waited longest. None: something else bounds their
    number. `turn`: waits for a turn on the event loop."""

    def __init__(
        self,
        together: int = TOGETHER,
        most: int | None = None,
        turn: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        self._together = together
        self._most = most
        self._turn = turn
        self._waiting: AddressLines[StrangerStep] = AddressLines()
        self._asked = Signal()  # there is a step

    async def run(self) -> None:
        """Makes the steps. Until cancelled."""
        while True:
            await wait_any([self._asked], lambda: len(self._waiting) > 0)
            await self._turn()
            end = perf_counter() + TURN
            for step in islice(iter(self._waiting.pop, None), self._together):
                step.make()
                if perf_counter() >= end:
                    break

    async def make(self, host: str, work: Callable[[], T], took: Took = untold) -> T:
        """Runs `work` once it is its turn. Returns what it returns, and raises what it raises. `host`: the address of
        its peer. `took`: is told how long it took."""
        if len(self._waiting) == self._most:
            self._waiting.pop_of_most().give_way()
        step = StrangerStep(work)
        self._waiting.add(host, step)
        self._asked.fire()
        try:
            await step.done.wait()
        finally:
            self._waiting.drop(host, step)  # if it was not made, for its connection has ended
        took(step.seconds)
        error, step.error = step.error, None
        try:
            if error is not None:
                raise error
            return step.value  # type: ignore[no-any-return]
        finally:
            del error  # its traceback refers to this frame
