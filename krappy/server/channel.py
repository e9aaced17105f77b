"""One connection of either protocol: reads frames and sends answers, within bounds.

Both protocols have the same frames: a size of four bytes, then as many bytes. A subclass says what a frame means
(`_dispatch`). Rules, kept here and where it reads (inbound.py):

- Frames are dispatched in the order they came, and only while the peer takes its answers and memory allows it.
- A peer with many requests lets others have their turn every `TURN` seconds. While others wait for a turn, a peer that
  asked for little before may begin one small request at once; the rest waits for its turn (`Turns`). Cancelling very
  many waiting requests of a peer that left takes a turn, too.
- A task of its own reads from each connection; while many peers send, one task reads from all (`JointReader`).
- The server notices that a peer has left even while it does not read from it. Then the peer's waiting requests end at
  once, and the requests it had sent behind them are served, unless they would have to wait.
- A frame that has begun must be complete within some time, however slowly its bytes come.
- Every byte of a request counts against the budget until it is answered, every byte of an answer until it is sent. So
  do the bytes of an incomplete frame, and of frames that wait to be dispatched.
- Nothing that a peer sends ends more than its own connection, and only broken framing ends that.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from typing import TYPE_CHECKING

import trio

from krappy.errors import KrappyError, RequestTimeout
from krappy.server.described import DescribedConnection
from krappy.server.inbound import Inbound
from krappy.server.outbox import Outbox, Part
from krappy.server.sockets import has_left
from krappy.server.turns import SMALL
from krappy.tls import TlsSocket
from krappy.waiting import Signal, Waits, wait_any

if TYPE_CHECKING:
    from krappy.server.server import Server

TASK = 4 << 10  # bytes that a waiting request adds to its own when it has a task
LATER = 1 << 10  # bytes that a waiting request adds to its own when it has no task
GRACE = 3.0  # seconds for which a peer may hold memory while memory is short
SLOWEST = 4 << 20  # bytes per second at which a large frame has to come while memory is short, after `GRACE`
SLOW = 64 << 10  # bytes per second at which a large frame always has to come


class Channel(DescribedConnection, Inbound):
    # What each request needs. CPython (3.11) reads attributes slowly where an object has more than 30 beside its slots.
    __slots__ = (
        *("_answered_at_once", "_due", "_ended", "_filled", "_finishing", "_held_back", "_its_turn", "_is_little"),
        *("_kept", "_kept_apart", "_large", "_outbox", "_quick", "_reading", "_rest", "_server", "_silent_since"),
        *("_since", "_sock", "_times", "_turn_over", "_waits", "_wake", "_wanted", "changed", "in_flight", "received"),
        *("requests", "reserved_for"),
    )

    def __init__(self, server: Server, sock: socket.socket, client: str) -> None:
        super().__init__(server, sock)
        self._quotas, self._audit = server.broker.client_quotas, server.broker.audit
        self.client = client
        self._blocked_since = math.inf  # when it began to wait for room without reading; inf: it does not wait
        # The waits of requests. They end when the peer sends no more, even if there is more to read.
        self._waits = Waits()
        self._frame_since = 0.0  # when the incomplete frame began
        self._silent_since = math.inf  # when it began to wait for the peer's bytes; inf: it does not wait
        self._stuck_since = 0.0  # when the peer last took bytes, while answers wait; 0: none wait
        self._outbox = Outbox(sock, server.budget)  # answers that wait to be sent
        self.in_flight = 0  # bytes of unanswered requests
        self._wake = trio.Event()
        self.changed = Signal()  # fewer answers or fewer requests wait
        self._nursery: trio.Nursery | None = None  # of waiting requests
        self._life = trio.CancelScope()  # of the whole connection
        self._finishing = False
        self._ended = False
        self._opened = trio.current_time()
        self.requests = 0

    # --- what a protocol says

    protocol = ""  # its name
    _keeping_back = False  # no further request may begin

    @property
    def _patience(self) -> float:
        """Seconds for which a peer that has not begun a frame may be silent."""
        return self._server.idle_seconds

    def _dispatch(self, frame: memoryview, size: int, lent: bool) -> None:
        """Begins one request. `frame`: its bytes after the size field; `size`: the bytes of both.

        A `lent` frame is valid only until this returns. A KrappyError raised here ends the connection.
        """
        raise NotImplementedError

    def _broken(self, error: KrappyError) -> None:
        """Called when `error` ends the connection; it may send a last answer."""
        raise NotImplementedError

    def _close_session(self) -> None:
        """Called when the peer has left, and again at the end."""
        raise NotImplementedError

    @property
    def _waited_for(self) -> bool:
        """Whether the peer is right to be silent: it waits for an answer."""
        return False

    # --- life

    async def serve(self) -> None:
        """Serves the peer until it leaves, breaks the protocol, or is idle for too long.

        When a peer leaves, its waiting requests are cancelled; but it gets the answers of its publishes, if it still
        reads. When the broker stops, waiting requests are answered.
        """
        try:
            if self._tls is not None and not await self._greet(self._tls):
                return
            async with trio.open_nursery() as nursery:
                if self._life.cancel_called:  # `give_way` was called before
                    nursery.cancel_scope.cancel()
                self._life = nursery.cancel_scope
                nursery.start_soon(self._write)
                try:
                    async with trio.open_nursery() as tasks:
                        self._nursery = tasks
                        await self._read_to_end()
                        if not self._finishing:
                            tasks.cancel_scope.cancel()
                        self._close_session()
                except* KrappyError as broken:
                    self._broken(_first(broken))
                    self._flush()  # answers to requests that came together with what broke the protocol
                except* OSError:
                    self._life.cancel()
                self._close_session()
                with trio.move_on_after(self._server.drain_seconds):
                    await wait_any([self.changed], lambda: not self.in_flight and not self._outbox.size)
                self._life.cancel()
        finally:
            self._ended = True
            self._close_session()
            self._drop_large()
            self._rest = bytearray()
            self._keep(0)
            self._outbox.clear()
            self._sock.close()
            self._nursery = None
            self._silent = None  # if it was raised, its traceback refers to the connection
            self._part()

    async def _greet(self, sock: TlsSocket) -> bool:
        """Does the handshake of TLS. Returns whether the peer may come in."""
        with self._life:
            greeted = await self._server.handshakes.greet(sock, self.client, self._checked, self._refused)
            return greeted and self._take_certificate(sock)
        return False

    def finish(self) -> None:
        """Stops gracefully: reads no more, answers the requests in flight, then ends the connection."""
        self._finishing = True
        self._stop_reading()
        self.changed.fire()

    # --- silence

    def look(self, now: float) -> None:
        """Ends the connection when its peer is idle for too long, or too slow within a frame. Notices when a peer that
        is not read from has left. The server calls it regularly: that costs less than a timeout around each wait."""
        if self._until <= now or self._token_ends <= time.time():
            self._time_is_over()
        if self._stands_on:  # it has shown a certificate
            self._look_at_certificate()
        if self._blocked_since < now and not self._waits.ended and has_left(self._sock):
            self._leave()
        if self._waits.ended and self._leaves_silently(now):
            self._life.cancel()
        if self._silent_since == math.inf:
            return
        halfway = bool(self._rest) or self._large is not None
        patience = min(self._patience, self._server.stall_seconds) if halfway else self._patience
        if now - self._silent_since >= patience:
            if self._waited_for and not halfway:
                self._silent_since = now
                return
            what = "silent in the middle of a frame" if halfway else "idle"
            self._end_waiting(f"the connection was {what} for {patience:g} s")
        elif halfway:
            patience = self._server.stall_seconds + self._wanted / SLOW
            if now - self._frame_since >= patience:
                self._end_waiting(f"a frame that had begun did not come whole within {patience:g} s")

    def _end_waiting(self, why: str) -> None:
        self._silent = RequestTimeout(why)
        self._stop_reading()

    def _leave(self) -> None:
        """The peer has left: cancels its waiting requests, so that the rest of what it sent can be read."""
        self._waits.end()
        self.changed.fire()

    def _until_it_leaves(self) -> contextlib.AbstractContextManager[object]:
        """Around a wait, which is cancelled when the peer leaves."""
        return self._waits.until_end()

    def _stop_reading(self) -> None:
        """Wakes the reader, which then reads the end of the connection."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    # --- out

    def _send(self, data: Part) -> None:
        if self._ended:  # the peer has left
            return
        self._outbox.add(data)
        if not self._reading:
            self._server.post(self)

    def _flush(self) -> None:
        """Sends what the socket takes now; the writer task sends the rest."""
        outbox = self._outbox
        if outbox.size and not self._wake.is_set():
            try:
                outbox.send()
            except OSError:  # the reader and the writer will meet it too
                self._wake.set()
            if outbox.size:
                self._wake.set()

    def post(self) -> None:
        """Sends answers that were made outside of the read loop; called by the server."""
        if self._takes_turns:
            self._wake.set()
            return
        before = self._outbox.size
        self._flush()
        if self._outbox.size != before:
            self.changed.fire()

    @property
    def _takes_turns(self) -> bool:
        """Whether it waits for a turn to send: to encrypt much takes some time, and this round has lasted for long."""
        return self._tls is not None and self._outbox.size > SMALL and self._server.turns.crowded

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            if self._takes_turns:
                await self.pause()
            before = self._outbox.size
            try:
                self._outbox.send()
            except OSError:
                self._life.cancel()
                return
            if self._outbox.size != before:
                self.changed.fire()
            if not self._outbox:
                self._stuck_since = 0.0
                self._wake = trio.Event()
                continue
            if self._outbox.size != before or not self._stuck_since:
                self._stuck_since = trio.current_time()
            with trio.move_on_after(self._server.stall_seconds) as scope:
                await trio.lowlevel.wait_writable(self._sock)
            if scope.cancelled_caught:
                self.drop()
                return

    # --- when memory is short

    @property
    def held(self) -> int:
        """Bytes of memory that the peer keeps: an incomplete frame, requests behind its own other requests, and answers
        that it has not taken."""
        return self._outbox.charged + self._kept + (0 if self._large is None else self._wanted)

    def overdue(self, now: float) -> bool:
        """Whether the peer has kept `held` for longer than it may while memory is short."""
        if self._outbox.charged and self._stuck_since and now - self._stuck_since > GRACE:
            return True
        if self._held_back or (self._large is not None and self._blocked_since < now):  # behind a request that waits
            if self._is_without_place:
                return now - self._throttled_since > GRACE
            return self._keeping_back and now - self._blocked_since > GRACE
        if self._large is not None:
            return now - self._frame_since > GRACE + self._wanted / SLOWEST
        return bool(self._kept) and self._silent_since < now and now - self._frame_since > GRACE

    # --- for others

    @property
    def sock(self) -> socket.socket:
        return self._sock

    def waits_since(self, now: float) -> float | None:
        """When the connection began to wait for its peer; None: the peer waits for an answer."""
        return None if self._waited_for or self._silent_since == math.inf else self._silent_since

    def give_way(self, why: str) -> None:
        """Ends the connection at once, in favour of another one."""
        self._server.report("connection_gave_way", client=self.client, why=why)
        self._life.cancel()

    def drop(self) -> None:
        """Ends the connection at once, because its peer stalls."""
        self._server.report("peer_stalled", client=self.client, waiting=self.held)
        self._life.cancel()


def _first(group: BaseExceptionGroup[KrappyError]) -> KrappyError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, KrappyError)
    return error
