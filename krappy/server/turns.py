"""Turns of all connections: who may go on with long work in this round of the event loop."""

from __future__ import annotations

import math
from time import perf_counter

import trio
import trio.abc

from krappy.core.address_lines import AddressLines

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
        self.began = math.inf  # when the round did, on perf_counter
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
        return perf_counter() - self.began > LONG

    @property
    def small(self) -> int:
        """How many bytes a request may have that begins in this round although others wait for their turns."""
        lasted = perf_counter() - self.began
        return SMALL if lasted <= LONG else TINY if lasted <= LONGEST else 0

    def after_io_wait(self, timeout: float) -> None:
        self.began = perf_counter()

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
