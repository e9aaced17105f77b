"""The back-pressure of a connection: when its next answer may be made, and how large; and when it lets others go on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from krappy.server.budget import FAIR
from krappy.server.outbox import Outbox
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.server.server import Server

OUTBOX = 1 << 20  # while more bytes of answers wait to be sent, no request is read and no answer made


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
    def whose(self) -> str:
        """Whose turns it takes: those of the user who has logged in, else those of its address."""
        raise NotImplementedError

    async def pause(self, *, little: bool = False) -> None:
        """Lets others have their turn, in the middle of long work or, if the round has lasted for long, before little
        work."""
        await self._server.turns.next(self.whose, little=little)

    def _park(self, count: int) -> None:
        """A request of `count` bytes begins to wait in a task; a negative count: it ends."""
        if not self._parked:
            self._parker = self.whose  # the same until all have ended, though somebody may log in meanwhile
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
