"""Turns of all connections, and the back-pressure of one: when its next answer may be made, and how large."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator
from time import perf_counter
from typing import TYPE_CHECKING

import trio
import trio.abc

from krappy.core.address_lines import AddressLines
from krappy.server.budget import FAIR
from krappy.server.outbox import Outbox
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.server.server import Server

OUTBOX = 1 << 20  # while more bytes of answers wait to be sent, no request is read and no answer made
TURN = 0.005  # seconds for which one connection's requests are begun in one turn
LITTLE = 0.0005  # seconds: a peer whose requests take longer in a contended round did not ask for little
PROOF = 16  # after long work, how many small reads a peer needs until it counts as one that asks for little
SMALL = 4 << 10  # bytes of a request that may begin while others wait for their turn or for memory
LONG = 0.025  # seconds after which a round of the event loop begins nothing more that may take long
TINY = 1 << 10  # bytes of a request that such a round begins all the same
LONGEST = 0.1  # seconds after which a round begins none: to refuse the 200 topics that 1 KB may name takes some ms


class Turns(trio.abc.Instrument):
    """Of all tasks with long work, one goes on in each round of the event loop. The peers take turns, and the tasks of
    one peer go on in the order they came. So a task with little work waits for one of them, not for all, and a task
    with long work waits for one of each other peer, however many these have.

    Work of a ms may come by hundreds of connections at the same moment. Once a round has lasted for `LONG`, the rest of
    such work counts as long, and after `LONGEST` all work does. As an instrument of trio it knows when each round
    began. Who is known for little work waits in lines of their own then, which take turns with the others: not behind
    thousands of the same address whose work may be long.
    """

    def __init__(self) -> None:
        self._began = math.inf  # when the round did, on perf_counter
        self._taken = False  # somebody goes on in the next round
        self._lines: dict[bool, AddressLines[trio.Event]] = {
            True: AddressLines(),
            False: AddressLines(),
        }  # is it little?
        self._was_little = False  # the lines of little work were asked first when the last turn was given
        self.until = 0.0  # until when (perf_counter) small requests may begin in this round, all together

    @property
    def contended(self) -> bool:
        """Whether somebody waits for a turn, or this round has lasted for long: then nobody else should begin long
        work."""
        return self._taken or self.crowded

    @property
    def crowded(self) -> bool:
        """Whether this round has lasted for long."""
        return perf_counter() - self._began > LONG

    @property
    def small(self) -> int:
        """How many bytes a request may have that begins in this round although others wait for their turns."""
        lasted = perf_counter() - self._began
        return SMALL if lasted <= LONG else TINY if lasted <= LONGEST else 0

    def after_io_wait(self, timeout: float) -> None:
        self._began = perf_counter()

    async def next(self, peer: str = "", *, little: bool = False) -> None:
        """Returns when it is the turn of this peer (a user or an address), after the turns of its earlier tasks.
        `little`: the peer is known for little work."""
        taken, self._taken, turn, lines = self._taken, True, trio.Event(), self._lines[little]
        try:
            if taken:
                lines.add(peer, turn)
                await turn.wait()
            else:
                turn.set()
                await trio.lowlevel.checkpoint()
        finally:
            lines.drop(peer, turn)  # if it has not had its turn, for its connection has ended
            if turn.is_set():
                self._pass_on()
        self.until = perf_counter() + TURN

    def _pass_on(self) -> None:
        self._was_little = not self._was_little
        turn = self._lines[self._was_little].pop()
        if turn is None:
            turn = self._lines[not self._was_little].pop()
        if turn is None:
            self._taken = False
        else:
            turn.set()


class Pace:
    in_flight: int
    changed: Signal
    _parked = 0  # how many bytes of `in_flight` are of requests that wait in a task
    _parker = ""  # whose these are
    _outbox: Outbox
    _server: Server

    @property
    def ready(self) -> bool:
        """Whether another answer may be made: the peer takes its answers, and the server has room for more."""
        return self._outbox.size <= OUTBOX and (not self._server.budget.spent or self._is_small)

    @property
    def _is_small(self) -> bool:
        """Whether it holds so little that it may go on, however much the others hold."""
        return self.in_flight - self._parked + self._outbox.size < FAIR

    async def writable(self) -> None:
        """Waits until it is ready."""
        if not self.ready:
            await wait_any([self.changed, self._server.budget.freed], lambda: self.ready)

    @property
    def _whose(self) -> str:
        """Whose turns it takes: those of the user who has logged in, else those of its address."""
        raise NotImplementedError

    async def pause(self, *, little: bool = False) -> None:
        """Lets others have their turn, in the middle of long work or, if the round has lasted for long, before little
        work."""
        await self._server.turns.next(self._whose, little=little)

    def _park(self, count: int) -> None:
        """A request of `count` bytes begins to wait in a task; a negative count: it ends."""
        if not self._parked:
            self._parker = self._whose  # the same until all have ended, though somebody may log in meanwhile
        self._parked += count
        self._server.budget.park(count, self._parker)

    @property
    def answer_bytes(self) -> int:
        """How many bytes an answer that is made now should have at most."""
        return self._server.budget.answer_bytes

    @contextlib.asynccontextmanager
    async def answering(self, limit: int) -> AsyncIterator[int]:
        """`async with` around the making of a long answer. Waits until it is ready, then gives how many bytes the
        answer may have: at most `limit`. These bytes are charged to the budget meanwhile.
        """
        await self.writable()
        if self._server.turns.contended:
            await self.pause()
        count = min(limit, self.answer_bytes)
        self.in_flight += count
        self._server.budget.charge(count)
        try:
            yield count
        finally:
            self.in_flight -= count
            self._server.budget.credit(count)
            self.changed.fire()
