"""All the orders in which tasks may pass their waits: a schedule explorer for the broker's parts.

A task gives up the event loop where it waits for a thread, before the thread begins and when it has ended; so does a
thread that asks the loop for something. A short sync ends at some time. Between two of these something else may have
happened, and whoever decided before the wait, and acts after it, may be wrong. Here each of them is a gate, which opens
when the explorer says so. A scenario of some actors is run again and again, each time with another order of the gates,
until all orders were tried. What must hold is checked between any two steps. Time stands still, and goes on only when
nothing else can.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from unittest import mock

import trio
import trio.testing

from krappy.broker.broker import LocalBroker
from krappy.broker.sync_threads import Done, Sync, SyncThreads
from tests.broker.engine import running

HOUR = 3_600_000
MANY = 1000  # steps of a scenario
BLOCKED = 0.05  # seconds after which a thread counts as one that waits for the end of a short sync
SOON = 5  # seconds: if nobody has gone on for so long, they wait for somebody who ought to have come
Actor = Callable[[], Awaitable[Any]]
_actor: ContextVar[str | None] = ContextVar("actor", default=None)
_RUN, _FROM_RUN = trio.to_thread.run_sync, trio.from_thread.run


class Scenario(NamedTuple):
    actors: Mapping[str, Actor]
    check: Callable[[], None] = lambda: None  # raises AssertionError; asked between any two steps


class Gate(Protocol):
    def set(self) -> None:
        """Opens it."""


class SyncEnds(NamedTuple):
    """The gate of a short sync."""

    sync: Sync
    done: Done

    def set(self) -> None:
        self.sync()
        self.done(None)


class Stuck(AssertionError):
    """Nobody can go on, and not all have ended."""


class Explorer:
    def __init__(self, clock: trio.testing.MockClock) -> None:
        self._clock = clock
        self._gates: list[tuple[str, Gate]] = []
        self._exploring = False
        self._limiters: set[trio.CapacityLimiter] = set()  # of the threads
        self._threads = 0  # threads that run now, and will come to a gate or an end
        self._quiet = trio.Event()
        self._waited = 0.0  # seconds that have passed since somebody went on
        self.steps: list[str] = []

    # --- what actors pass

    async def _gate(self, what: str) -> None:
        if self._exploring:
            event = trio.Event()
            self._gates.append((f"{_actor.get()}: {what}", event))
            await event.wait()

    def _open_all(self) -> None:
        """An error has ended the run: whoever is still at a gate, or waits for a thread, goes on."""
        self._exploring = False
        for limiter in self._limiters:
            limiter.total_tokens += limiter.statistics().tasks_waiting
        gates, self._gates = self._gates, []
        for _, gate in gates:
            gate.set()

    @contextmanager
    def _thread(self, by: int) -> Iterator[None]:
        self._threads += by
        self._quiet.set()
        try:
            yield
        finally:
            self._threads -= by
            self._quiet.set()

    async def run_sync(self, work: Callable[..., Any], *args: Any, limiter: Any = None, **more: Any) -> Any:
        """In the place of `trio.to_thread.run_sync`."""
        if _actor.get() is None:
            return await _RUN(work, *args, limiter=limiter, **more)
        name = getattr(work, "__name__", type(work).__name__)
        await trio.lowlevel.checkpoint_if_cancelled()
        if limiter is not None:
            self._limiters.add(limiter)
        async with nullcontext() if limiter is None else limiter:
            await self._gate(f"{name} begins")
            with trio.CancelScope(shield=True):
                try:
                    with self._thread(1):
                        return await _RUN(work, *args, limiter=trio.CapacityLimiter(1), **more)
                finally:
                    await self._gate(f"{name} has ended")

    def from_run(self, work: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """In the place of `trio.from_thread.run`."""
        if _actor.get() is None:
            return _FROM_RUN(work, *args)

        async def asked() -> Any:
            with self._thread(-1):
                await self._gate(f"{getattr(work, '__name__', 'a thread')} is asked for")
                return await work(*args)

        return _FROM_RUN(asked)

    def begin_sync(self, begin: Callable[..., bool], syncs: SyncThreads, sync: Sync, done: Done) -> bool:
        """In the place of `SyncThreads.begin`."""
        if not self._exploring or _actor.get() is None:
            return begin(syncs, sync, done)
        self._gates.append((f"{_actor.get()}: the short sync ends", SyncEnds(sync, done)))
        return True

    # --- who goes next

    async def _settle(self) -> None:
        """Returns when everybody waits: for a gate, for a time, or for somebody else."""
        while True:
            await trio.testing.wait_all_tasks_blocked()
            if not self._threads:
                return
            self._quiet = trio.Event()
            if any(isinstance(gate, SyncEnds) for _, gate in self._gates):
                await _RUN(time.sleep, BLOCKED)
                if not self._quiet.is_set():
                    return
            await self._quiet.wait()

    async def run(self, scenario: Scenario, choices: list[int]) -> list[tuple[int, int]]:
        """Runs one order: `choices` says which gate opens at each of the first steps; later steps open the first gate.
        Returns (chosen, of how many) for each step."""
        trace: list[tuple[int, int]] = []
        self.steps, self._waited, left = [], 0.0, set(scenario.actors)

        async def act(name: str, actor: Actor) -> None:
            _actor.set(name)
            await self._gate("begins")
            await actor()
            left.discard(name)

        self._clock.rate, self._exploring = 0, True
        async with trio.open_nursery() as nursery:
            try:
                for name, actor in scenario.actors.items():
                    nursery.start_soon(act, name, actor)
                while await self._step(scenario, choices, trace, left):
                    pass
            finally:
                self._clock.rate = 1
                self._open_all()
        return trace

    async def _step(self, scenario: Scenario, choices: list[int], trace: list[tuple[int, int]], left: set[str]) -> bool:
        """Lets one actor go on; returns False when all have ended."""
        await self._settle()
        scenario.check()
        if self._gates:
            self._gates.sort(key=lambda gate: gate[0])
            chosen = choices[len(trace)] % len(self._gates) if len(trace) < len(choices) else 0
            trace.append((chosen, len(self._gates)))
            name, gate = self._gates.pop(chosen)
            self.steps.append(name)
            self._waited = 0.0
            gate.set()
        elif left:
            soon = trio.lowlevel.current_statistics().seconds_to_next_deadline
            self._waited += soon
            if not self._waited < SOON:
                raise Stuck(f"nobody goes on; {sorted(left)} wait")
            self._clock.jump(max(0.0, soon) + 1e-6)
        else:
            return False
        return True


@asynccontextmanager
async def exploring(
    data: Path, clock: trio.testing.MockClock, **given: Any
) -> AsyncIterator[tuple[LocalBroker, Explorer]]:
    """A broker that does nothing by itself."""
    settings = {"durability": "fsync", "retention_check_ms": HOUR, "cleaner_backoff_ms": HOUR} | given
    explorer, begin = Explorer(clock), SyncThreads.begin
    with (
        mock.patch.object(SyncThreads, "begin", lambda *given: explorer.begin_sync(begin, *given)),
        mock.patch("trio.to_thread.run_sync", explorer.run_sync),
        mock.patch("trio.from_thread.run", explorer.from_run),
    ):
        async with running(data, **settings) as broker:
            yield broker, explorer


def explore(
    data: Path,
    scenario: Callable[[LocalBroker, str], Awaitable[Scenario]],
    limit: int = 400,
    *,
    drawn: bool = False,
    **given: Any,
) -> int:
    """Tries all orders, or the first `limit`; returns how many it tried. It gives `scenario` a name for a topic of its
    own each time.

    `drawn`: tries `limit` orders that are drawn at random, the same in each run. That is for what has very many orders:
    the first ones differ in their last steps only. An error tells the order in which it came.
    """
    clock = trio.testing.MockClock(rate=1)

    async def main() -> int:
        choices: list[int] = []
        async with exploring(data, clock, **given) as (broker, explorer):
            for tried in range(1, limit + 1):
                made = await scenario(broker, f"t{tried}")
                if drawn:
                    lot = random.Random(tried)
                    choices = [lot.randrange(1 << 20) for _ in range(MANY)]
                try:
                    trace = await explorer.run(made, choices)
                except BaseException as error:
                    error.add_note("\n".join(["in this order:", *explorer.steps]))
                    raise
                if drawn:
                    continue
                while trace and trace[-1][0] == trace[-1][1] - 1:
                    trace.pop()
                if not trace:
                    return tried
                choices = [chosen for chosen, _ in trace[:-1]] + [trace[-1][0] + 1]
            return limit

    return trio.run(main, clock=clock)
