"""The work that peers cause before it is known who they are: steps of TLS handshakes, heads of HTTP requests, and
messages of logins. And the bytes that they keep meanwhile.

Rules, kept here:

- Each such step takes up to some ms, and one may come by each of a thousand connections at the same moment. Steps are
  made one after the other: in a round of the event loop for `TURN` seconds, and a few at most, because what follows on
  them takes time, too. So others wait for a round, not for all of them.
- The addresses take turns: of each, one step is made at a time.
- A login comes in small messages, which hardly ever come in parts. So incomplete messages of peers that have not logged
  in have little room, apart from the memory budget: else they could spend it, and nobody could publish a large event.
  When there is no more room, a connection gives way: of the address with most bytes, the one that has waited longest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import islice
from time import perf_counter
from typing import Any, Protocol, TypeVar

import trio

from krappy.core.address_lines import AddressLines
from krappy.hosts import network
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


class Stranger(Protocol):
    """A connection whose peer has not logged in."""

    def give_way(self, why: str) -> None: ...


class StrangerBytes:
    """Bytes of incomplete messages of strangers. `most`: so many may be kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[str, dict[Stranger, int]] = {}  # by address; none is empty
        self._by_address: Counter[str] = Counter()
        self.used = 0

    def keep(self, host: str, stranger: Stranger, count: int) -> None:
        """The connection keeps so many bytes now. `host`: the address of its peer."""
        self._note(network(host), stranger, count)
        while self.used > self._most:
            address = max(self._by_address, key=self._by_address.__getitem__)
            longest = next(iter(self._kept[address]))
            self._note(address, longest, 0)
            longest.give_way("it has sent a part of a message without a login, and others need its room")

    def _note(self, address: str, stranger: Stranger, count: int) -> None:
        kept = self._kept.setdefault(address, {})
        more = count - kept.get(stranger, 0)
        self.used += more
        self._by_address[address] += more
        if count:
            kept[stranger] = count
        else:
            kept.pop(stranger, None)
        if not kept:
            del self._kept[address], self._by_address[address]
