"""The work that peers cause before it is known who they are: heads of HTTP requests, and messages of logins.

Rules, kept here:

- Each such step takes up to some ms, and one may come by each of a thousand connections at the same moment. Steps are
  made one after the other: in a round of the event loop for `TURN` seconds, and `TOGETHER` at most, because what
  follows on them takes time, too. So others wait for a round, not for all of them.
- The addresses take turns: of each, one step is made at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from time import perf_counter
from typing import Any, Protocol, TypeVar

import trio

from krappy.core.address_lines import AddressLines
from krappy.ports.users import Took, untold
from krappy.waiting import Signal, wait_any

TURN = 0.005  # seconds for which steps are made in a round of the event loop
TOGETHER = 4  # steps of a round
T = TypeVar("T")


class StepInTurn(Protocol):
    """`done`: set once the step was made, or has failed (`error`). `seconds`: how long it took."""

    done: trio.Event
    error: Any
    seconds: float


S = TypeVar("S", bound=StepInTurn)


class StrangerStep:
    """`done`: set once the step was made, or has failed (`error`)."""

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


class StrangerSteps:
    def __init__(self) -> None:
        self._waiting: AddressLines[StrangerStep] = AddressLines()
        self._asked = Signal()  # there is a step

    async def run(self) -> None:
        """Makes the steps. Until cancelled."""
        while True:
            await wait_any([self._asked], lambda: len(self._waiting) > 0)
            end = perf_counter() + TURN
            for step in islice(iter(self._waiting.pop, None), TOGETHER):
                step.make()
                if perf_counter() >= end:
                    break
            await trio.lowlevel.checkpoint()

    async def make(self, host: str, work: Callable[[], T], took: Took = untold) -> T:
        """Runs `work` once it is its turn. Returns what it returns, and raises what it raises. `host`: the address of
        its peer. `took`: is told how long it took."""
        step = StrangerStep(work)
        await made_in_turn(step, self._waiting, host, self._asked, took)
        value: T = step.value
        return value


async def made_in_turn(step: S, waiting: AddressLines[S], host: str, asked: Signal, took: Took) -> None:
    """Adds a step to the lines `waiting`, and fires `asked`. Returns once whoever serves the lines has made the step.
    `host`, `took`: as for `StrangerSteps.make`. Raises the step's error."""
    waiting.add(host, step)
    asked.fire()
    try:
        await step.done.wait()
    finally:
        waiting.drop(host, step)  # if it was not made, for its connection has ended
    took(step.seconds)
    error, step.error = step.error, None
    try:
        if error is not None:
            raise error
    finally:
        del error  # its traceback refers to this frame
