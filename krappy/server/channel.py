"""One connection, whatever it speaks: bytes to frames and answers to bytes, within bounds.

Both protocols frame alike: four bytes of size, then as much. A subclass says what a frame means (`_dispatch`). Rules,
kept here:

- Frames are dispatched in the order they came, and only while the peer takes its answers and memory allows it.
- A peer that has sent many requests at once lets others have their turn every `TURN` seconds; while some wait for
  theirs, one that comes begins with one small request, if it asked for little before, and waits for its turn with the
  rest. One that leaves with very many requests that wait has its turn, too.
- A peer that has left is noticed though what it sent waits to be begun: its waiting requests end at once, and what it
  had sent behind them is taken as far as nothing has to wait.
- A frame that has begun must come whole within some time, whatever it trickles in with.
- Every byte of a request counts against the budget until it is answered, every byte of an answer until it is sent; so
  do bytes that are not a whole frame yet, or wait to be begun.
- Nothing that a peer sends ends more than its own connection, and that only when its framing is broken.
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from krappy.errors import KrappyError, ProtocolError, RequestTimeout
from krappy.server.budget import FAIR
from krappy.server.described import DescribedConnection
from krappy.server.frame_size import SIZE, refusal
from krappy.server.outbox import Outbox, Part
from krappy.server.pace import OUTBOX, Pace
from krappy.server.sockets import has_left
from krappy.server.turns import PROOF, SMALL, TURN
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.server.server import Server

LARGE = 128 << 10  # a frame beyond this gets a buffer of its own, once the budget has room for it
BEGIN = 1 << 20  # bytes of that buffer at first
IN_FLIGHT = 48 << 20  # request bytes of one connection
TASK = 4 << 10  # bytes that a waiting request counts for beside its own when it has a task,
FEW = 100  # requests that are cancelled at any time
LATER = 1 << 10  # and when it has none
GRACE = 3.0  # seconds that a peer may keep memory waiting while it is short,
SLOWEST = 4 << 20  # and for a frame the bytes a second that it has to come in beyond that
SLOW = 64 << 10  # bytes a second that a large frame has to come in at any time


class Channel(DescribedConnection, Pace):
    def __init__(self, server: Server, sock: socket.socket, client: str) -> None:
        self._server = server
        self._sock = sock
        self.client = client
        self._rest = bytearray()  # the beginning of a frame that is not whole yet,
        self._kept = 0  # and what of it counts against the budget
        self._due = 0  # bytes of the request that is to begin, if it is large and takes an unknown multiple of them
        self._held_back = False  # there may be whole frames in it, which wait for answers to be taken, or their turn
        self._turn_over = False  # it is this that they wait for
        self._quick = -1  # below 0: what it sends may take long
        self._blocked_since = math.inf  # when it began to wait for room, and to read no more; inf: it does not
        self._left = False  # the peer sends no more, though there may be more to read
        self._waits: set[trio.CancelScope] = set()  # of waiting requests
        self._large: bytearray | None = None  # or a large frame's own buffer,
        self._filled = 0  # how much of it is there,
        self._wanted = 0  # and the size of the whole frame
        self._frame_since = 0.0  # when the frame that is not whole began
        self._silent_since = math.inf  # when it began to wait for the peer's bytes; inf: it does not
        self._silent: RequestTimeout | None = None  # why it waits no longer
        self._stuck_since = 0.0  # when the peer last took something, while answers wait; 0: none wait
        self._outbox = Outbox(sock, server.budget)  # answers that wait to be sent
        self.in_flight = 0  # bytes of requests that are not answered yet,
        self._parked = 0  # and of these, what those wait with that have a task
        self._reading = False  # inside the read loop: answers are flushed at its end
        self._wake = trio.Event()
        self.changed = Signal()  # fewer answers wait, or fewer requests
        self._nursery: trio.Nursery | None = None  # of waiting requests
        self._life = trio.CancelScope()  # of the whole connection
        self._finishing = False
        self._ended = False
        self._opened = trio.current_time()
        self.received = 0  # bytes, over its life
        self.requests = 0
        self._since = 0.0  # when the requests that are begun now came, on perf_counter
        self._answered_at_once: dict[int, int] = {}  # of these, by their type
        self._times = server.times(self.protocol)

    # --- what a protocol says

    protocol = ""  # its name
    _least = 0  # bytes that a frame must have behind its size
    _keeping_back = False  # no further request may begin

    def _weigh(self, frame: memoryview) -> int:
        """`_due` of a request, whose bytes behind the size field these are."""
        return 0

    def _dispatch(self, frame: memoryview, size: int, lent: bool) -> None:
        """Begins one request. `frame`: what follows the size field; `size`: bytes of both together.

        When it is `lent`, its bytes are valid only until this returns. A KrappyError from here ends the connection.
        """
        raise NotImplementedError

    def _broken(self, error: KrappyError) -> None:
        """The connection ends for this; what is sent now is the last that the peer gets."""
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
        """Serves the peer until it leaves, breaks the protocol, or idles too long.

        A peer that leaves gets what its publishes came to, if it still listens; its waiting requests are dropped.
        When the broker stops, they are waited for.
        """
        try:
            async with trio.open_nursery() as nursery:
                if self._life.cancel_called:  # it has given way already
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

    def finish(self) -> None:
        """Reads no more; what is in flight is answered, then the connection ends (graceful stop)."""
        self._finishing = True
        self._stop_reading()
        self.changed.fire()

    # --- in

    async def _read_to_end(self) -> None:
        try:
            await self._read()
        except OSError:
            if len(self._waits) > FEW:  # thousands of requests are about to be cancelled
                await self._server.turns.next()
            raise
        if len(self._waits) > FEW and not self._finishing:
            await self._server.turns.next()

    async def _read(self) -> None:
        sock, scratch, turns, budget = self._sock, self._server.scratch, self._server.turns, self._server.budget
        its_turn = False
        while not self._finishing:
            large = self._large
            count = 0
            if not self._held_back:
                # 0: as much as there is place for, which is less than FAIR at the end of a large frame's buffer
                most = min(FAIR, len(large or scratch) - self._filled) if budget.used >= budget.total else 0
                try:
                    count = sock.recv_into(scratch if large is None else memoryview(large)[self._filled :], most)
                except BlockingIOError:
                    its_turn = False
                    await self._bytes_come()
                    continue
                if count == 0:
                    if self._silent is not None:
                        raise self._silent
                    if self._finishing:
                        return
                    if self._rest or large is not None:
                        raise ProtocolError("the connection ended inside a frame") from None
                    return
            self.received += count
            if not self._turn_over:
                self._since = perf_counter()
            if large is not None and self._filled + count == self._wanted:
                self._due = self._weigh(memoryview(large)[4 : self._wanted])
                while not self._may_begin() or (turns.contended and not its_turn):
                    await self._room(self._may_begin)
                    await turns.next()
                    its_turn = True
            self._reading = True
            fresh = large is None and not self._turn_over
            begun, waiting = self._since if fresh else perf_counter(), self._outbox.size
            try:
                if large is None:
                    self._take(scratch[:count], TURN if its_turn or not turns.contended else 0)
                else:
                    self._fill(large, count)
            finally:
                self._reading = False
            much = large is not None or count > SMALL or self._outbox.size - waiting > LARGE
            self._flush()
            if self._answered_at_once:
                self._times.observe_each(self._answered_at_once, perf_counter() - self._since)
                self._answered_at_once.clear()
            # Little is no fault of its peer's, however long the system let other programs go on meanwhile.
            its_turn = self._turn_over or (much and perf_counter() - begun > TURN)
            self._quick = -PROOF if its_turn else self._quick + 1
            if its_turn:
                await turns.next()
            if self._wanted and self._large is None:
                await self._make_room()
            await self._room(self._may_begin if self._held_back else self._may_read)

    async def _bytes_come(self) -> None:
        self._silent_since = trio.current_time()
        await trio.lowlevel.wait_readable(self._sock)
        self._silent_since = math.inf

    def look(self, now: float) -> None:
        """Parts with a peer that is idle for too long, or slow in the middle of a frame; and sees whether one that is
        not read from has left. Called now and then: that costs less than a timeout around each wait."""
        if self._blocked_since < now and not self._left and has_left(self._sock):
            self._leave()
        if self._silent_since == math.inf:
            return
        halfway = bool(self._rest) or self._large is not None
        patience = min(self._server.idle_seconds, self._server.stall_seconds) if halfway else self._server.idle_seconds
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
        """The peer has left: nothing of its is waited for any more, so that all it has sent can be read."""
        self._left = True
        for scope in self._waits:
            scope.cancel()
        self.changed.fire()

    @contextlib.contextmanager
    def _until_it_leaves(self) -> Iterator[None]:
        """Around whatever waits for longer: it is cancelled when the peer leaves."""
        with trio.CancelScope() as scope:
            if self._left:
                scope.cancel()
            self._waits.add(scope)
            try:
                yield
            finally:
                self._waits.discard(scope)

    def _stop_reading(self) -> None:
        """Wakes the reader: it finds the connection at its end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    def _fill(self, large: bytearray, count: int) -> None:
        self._filled += count
        if self._filled < self._wanted:
            if self._filled == len(large):
                large.extend(bytes(min(len(large), self._wanted - len(large))))
            return
        view, size = memoryview(large), self._wanted
        self._drop_large()
        self._dispatch(view[4:size], size, False)

    async def _make_room(self) -> None:
        """A buffer for a large frame. The budget is asked for all of it; the buffer grows as bytes come, for announcing
        them costs a peer nothing, and clearing so much memory would cost us."""
        self._keep(0)  # it is part of the whole
        self._blocked_since = trio.current_time()
        await self._server.budget.reserve(self._wanted)
        self._blocked_since = math.inf
        self._large = bytearray(max(len(self._rest), min(self._wanted, BEGIN)))
        self._filled = len(self._rest)
        self._large[: self._filled] = self._rest
        self._rest = bytearray()
        self._frame_since = trio.current_time()

    def _drop_large(self) -> None:
        if self._large is not None:
            self._server.budget.credit(self._wanted)
        self._large, self._filled, self._wanted = None, 0, 0

    def _keep(self, count: int) -> None:
        """So many bytes that were read wait for others, or for their turn."""
        budget = self._server.budget
        (budget.charge if count > self._kept else budget.credit)(abs(count - self._kept))
        self._kept = count

    def _take(self, chunk: memoryview, seconds: float) -> None:
        """Dispatches whole frames of a chunk, for so many seconds, and keeps its rest; notes when that begins a large
        frame. Without time, a small request at its head is dispatched all the same, of who asked for little before."""
        self._held_back = self._turn_over = False
        begun = bool(self._rest)
        if begun:
            self._rest += chunk
            data = memoryview(self._rest)
        else:
            data = chunk
        position, held = 0, len(data)
        least, limit = self._least, self._server.max_frame
        large = FAIR if self._server.budget.spent else LARGE
        turn = perf_counter() + seconds
        while held - position >= 4:
            size = SIZE.unpack_from(data, position)[0]
            if not least <= size <= limit:
                raise refusal(size, least, limit)
            size += 4
            end = position + size
            if end > held:
                self._wanted = size if size > large else 0
                break
            self._due = self._weigh(data[position + 4 : end]) if size > SMALL else 0
            waits = position > 0 or (not seconds and (size > SMALL or self._quick < 0))
            over = waits and perf_counter() >= turn
            if over or not self._may_begin():  # no answer is made before those ahead of it can be sent
                self._turn_over, self._held_back = over, True
                break
            self._dispatch(data[position + 4 : end], size, True)
            position = end
        if position or not begun:
            self._rest = bytearray(data[position:])
            if self._rest:
                self._frame_since = trio.current_time()
        if len(self._rest) != self._kept:
            self._keep(len(self._rest))

    async def _room(self, enough: Callable[[], bool]) -> None:
        """Back-pressure: returns when this connection may send more."""
        if enough():
            await trio.lowlevel.checkpoint()
            return
        self._server.budget.stalls += 1
        self._blocked_since = trio.current_time()
        await wait_any([self.changed, self._server.budget.freed], enough)
        self._blocked_since = math.inf
        self._frame_since = trio.current_time()

    def _may_begin(self) -> bool:
        """Whether the next request may be taken up. Reading goes on without, until one is whole."""
        if self._keeping_back and not self._left:
            return self._finishing
        return self._may_read()

    def _may_read(self) -> bool:
        budget = self._server.budget
        return self._finishing or (
            self._outbox.size <= OUTBOX
            and self.in_flight <= IN_FLIGHT
            and (budget.used < budget.total or self._is_small)
        )

    # --- out

    def _send(self, data: Part) -> None:
        if self._ended:  # an answer to who has left
            return
        self._outbox.add(data)
        if not self._reading:
            self._server.post(self)

    def _flush(self) -> None:
        """Sends what can be sent now; the rest is the writer task's."""
        outbox = self._outbox
        if outbox.size and not self._wake.is_set():
            try:
                outbox.send()
            except OSError:  # the reader and the writer will meet it too
                self._wake.set()
            if outbox.size:
                self._wake.set()

    def post(self) -> None:
        """What the server calls for answers that were made outside of the read loop."""
        before = self._outbox.size
        self._flush()
        if self._outbox.size != before:
            self.changed.fire()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
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

    def _park(self, count: int) -> None:
        """A request of so many bytes begins to wait in a task (or ends, with a negative count)."""
        self._parked += count
        self._server.budget.park(count)

    # --- when memory is short

    @property
    def held(self) -> int:
        """Bytes of memory that wait for the peer: of a frame that it has begun, of requests that wait for others of
        its own, and of answers."""
        return self._outbox.charged + self._kept + (0 if self._large is None else self._wanted)

    def overdue(self, now: float) -> bool:
        """Whether the peer lets them wait for longer than it may while others want the memory."""
        if self._outbox.charged and self._stuck_since and now - self._stuck_since > GRACE:
            return True
        if self._held_back or (self._large is not None and self._blocked_since < now):  # behind one that waits
            return self._keeping_back and now - self._blocked_since > GRACE
        if self._large is not None:
            return now - self._frame_since > GRACE + self._wanted / SLOWEST
        return bool(self._rest) and self._silent_since < now and now - self._frame_since > GRACE

    # --- for others

    def waits_since(self, now: float) -> float | None:
        """When it began to wait for its peer; None: its peer waits for it."""
        return None if self._waited_for or self._silent_since == math.inf else self._silent_since

    def give_way(self, why: str) -> None:
        """Ends the connection at once, for another one."""
        self._server.report("connection_gave_way", client=self.client, why=why)
        self._life.cancel()

    def drop(self) -> None:
        """Ends the connection at once."""
        self._server.report("peer_stalled", client=self.client, waiting=self.held)
        self._life.cancel()


def _first(group: BaseExceptionGroup[KrappyError]) -> KrappyError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, KrappyError)
    return error
