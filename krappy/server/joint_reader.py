"""One task that reads from many connections, whose peers each send a small request and wait for its answer.

Such a request costs less than to wake a task that reads it, sends an answer and waits again. So while many peers send
at the same time, their connections leave the reading to the `JointReader`. In each round of the event loop it reads
from those whose bytes have come, one after another, and then sends the answers: code and data of the one are still in
the processor's caches for the next. The task of a connection goes on where there is more to do (a large frame,
back-pressure, the end), and when few peers send at the same time, for then it is faster.

If a round has no time for all, the users (or addresses) take turns, as everywhere: so nobody waits behind hundreds of
connections of one of them, whose requests are small but take some ms each.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Protocol

import trio

from krappy.core.address_lines import AddressLines
from krappy.server.turns import TURN, Turns

MANY = 4  # connections that begin to wait in one round of the event loop
FEW = 2  # connections whose bytes have come in one round
CALM = 16  # rounds in a row with so few, after which their tasks read
TOGETHER = 64  # connections that are read from in one round, at most


class JointlyRead(Protocol):
    """A connection that waits for bytes."""

    def read_now(self, now: float) -> bool:
        """Reads what has come, and begins its requests; answers are not sent yet. `now`: the time on trio's clock.
        False: nothing was read, and its task has to go on."""

    def send_now(self) -> bool:
        """Sends the answers. False: its task has to go on."""

    @property
    def whose(self) -> str:
        """The user, or the address, whose turns it takes."""


class _Waiter:
    def __init__(self, connection: JointlyRead, descriptor: int) -> None:
        self.connection, self.descriptor = connection, descriptor
        self.task = trio.lowlevel.current_task()
        self.error: Exception | None = None  # for the task
        self.line: str | None = None  # whose line it waits in


class JointReader:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._round = 0.0  # when the round of the event loop began in which the last connection began to wait
        self._began = self._began_before = 0  # how many have begun to wait in this round, and in the one before
        self._calm = 0  # rounds in a row
        self._ready: select.epoll | None = None  # while it runs; of Linux
        self._waiters: dict[int, _Waiter] = {}  # by descriptor
        self._late: AddressLines[_Waiter] = AddressLines()  # for whom the rounds so far had no time

    async def bytes_come(self, connection: JointlyRead, sock: socket.socket) -> None:
        """Waits until the task of this connection has to read from it, or to go on after a `read_now`. Raises what
        that has raised."""
        if self._ready is None or not self._are_many():
            await trio.lowlevel.wait_readable(sock)
            return
        waiter = _Waiter(connection, sock.fileno())
        self._ready.register(waiter.descriptor, select.EPOLLIN)
        self._waiters[waiter.descriptor] = waiter

        def abort(_: object) -> trio.lowlevel.Abort:
            self._forget(waiter)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if waiter.error is not None:
            raise waiter.error

    def _are_many(self) -> bool:
        """Notes that a connection begins to wait. Returns whether many do."""
        if self._round != self._turns.began:
            self._round, self._began_before, self._began = self._turns.began, self._began, 0
        self._began += 1
        return max(self._began, self._began_before) >= MANY

    async def run(self) -> None:
        """Until cancelled. Where there is no epoll, the tasks of the connections read."""
        if not hasattr(select, "epoll"):
            return
        with select.epoll() as ready:
            self._ready = ready
            try:
                while True:
                    await trio.lowlevel.wait_readable(ready.fileno())
                    self._read(ready.poll(0, TOGETHER))
            finally:
                self._ready = None

    def _read(self, ready: list[tuple[int, int]]) -> None:
        now, until = trio.current_time(), perf_counter() + TURN
        self._calm = self._calm + 1 if len(ready) <= FEW else 0
        come = iter([self._waiters[descriptor] for descriptor, _ in ready])
        if self._late:
            self._line_up(come)
            come = iter(self._late.pop, None)
        read: list[_Waiter] = []
        for waiter in come:
            waiter.line = None
            if self._do(waiter, waiter.connection.read_now, now):
                read.append(waiter)
            if perf_counter() > until:  # the others' bytes are still there in the next round
                if not self._late:
                    self._line_up(come)
                break
        for waiter in read:
            if self._do(waiter, waiter.connection.send_now) and self._calm > CALM:
                self._wake(waiter)

    def _line_up(self, waiters: Iterable[_Waiter]) -> None:
        for waiter in waiters:
            if waiter.line is None:
                waiter.line = waiter.connection.whose
                self._late.add(waiter.line, waiter)

    def _do(self, waiter: _Waiter, work: Callable[..., bool], *arguments: float) -> bool:
        """Does a part of a task's work, in its context. Returns whether the task waits on; else it is woken."""
        if self._waiters.get(waiter.descriptor) is not waiter:  # what was done for another has cancelled it
            return False
        try:
            if waiter.task.context.run(work, *arguments):
                return True
        except Exception as error:
            waiter.error = error
        self._wake(waiter)
        return False

    def _wake(self, waiter: _Waiter) -> None:
        if self._waiters.get(waiter.descriptor) is waiter:
            self._forget(waiter)
            trio.lowlevel.reschedule(waiter.task)

    def _forget(self, waiter: _Waiter) -> None:
        del self._waiters[waiter.descriptor]
        if waiter.line is not None:
            self._late.drop(waiter.line, waiter)
        if self._ready is not None:
            self._ready.unregister(waiter.descriptor)
