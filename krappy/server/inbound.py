"""What a connection reads: whole frames, which it dispatches in the order they came, by the rules of channel.py."""

from __future__ import annotations

import math
import socket
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from krappy.core.security.sasl import Proved
from krappy.errors import ProtocolError, RequestTimeout
from krappy.hosts import host_of
from krappy.server.budget import FAIR
from krappy.server.sockets import readable
from krappy.server.throttled import Throttled
from krappy.server.turns import LITTLE, PROOF, SMALL, TURN
from krappy.tls import PART, TlsSocket
from krappy.wire.frames import SIZE, refusal

if TYPE_CHECKING:
    from krappy.server.server import Server

FEW = 100  # waiting requests that are cancelled without waiting for a turn
LARGE = 128 << 10  # a larger frame gets a buffer of its own, once the budget has room for it
BEGIN = 1 << 20  # bytes of that buffer at first


class Inbound(Throttled):
    protocol: str

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self._server = server
        self._sock = sock
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._times = server.times(self.protocol)
        self._silent: RequestTimeout | None = None  # why it stopped waiting for the peer's bytes
        self._rest = bytearray()  # bytes that were read and not dispatched: an incomplete frame, or `_held_back` ones
        self._kept = 0  # how many of them count against the budget
        self._kept_apart = 0  # how many of them count as a stranger's, since the peer has not logged in
        self._due = 0  # bytes of the next request, if it is large and decoding multiplies them by an unknown factor
        self._held_back = False  # `_rest` may have whole frames, which wait until answers are taken or for a turn
        self._turn_over = False  # these frames wait for a turn
        self._its_turn = False  # it has had much of a turn, and waits for the next one, or has that one now
        self._is_little = False  # the first of them is small, of a peer whose requests take little, and comes alone
        self._quick = -1  # below 0: the peer's requests may take long
        self._large: bytearray | None = None  # the buffer of a large frame, instead of `_rest`
        self._filled = 0  # how many bytes of it have come
        self._wanted = 0  # the size of the whole frame
        self.reserved_for = ""  # whose reservation that buffer has in the budget
        self._reading = False  # inside the read loop, which sends answers at its end
        self.received = 0  # bytes, over its life
        self._since = 0.0  # when the requests that are dispatched now came, on perf_counter
        self._answered_at_once: dict[int, int] = {}  # how many of these were answered at once, by their type

    # --- what a protocol says

    _least = 0  # the smallest size that a frame may have

    def _weigh(self, frame: memoryview) -> int:
        """`_due` of a request. `frame`: its bytes after the size field."""
        return 0

    # --- what it needs

    def _flush(self) -> None:
        """Sends the answers that the socket takes now."""
        raise NotImplementedError

    def give_way(self, why: str) -> None:
        """Ends the connection at once, in favour of another one."""
        raise NotImplementedError

    # --- reading

    async def _read_to_end(self) -> None:
        try:
            await self._read()
        except OSError:
            if len(self._waits) > FEW:  # thousands of requests are about to be cancelled
                await self.pause()
            raise
        if len(self._waits) > FEW and not self._finishing:
            await self.pause()

    async def _read(self) -> None:
        sock, scratch, turns, budget = self._sock, self._server.scratch, self._server.turns, self._server.budget
        stillness = self._server.broker.stillness
        while not self._finishing:
            if stillness.was:
                await stillness.until_told()
            large = self._large
            count = 0
            if not self._held_back:
                if self._tls is not None:
                    await self._until_decryptable(self._tls)
                # 0 means: until the buffer is full; at the end of a large frame's buffer that is less than FAIR
                most = min(FAIR, len(large or scratch) - self._filled) if budget.used >= budget.total else 0
                try:
                    count = sock.recv_into(scratch if large is None else memoryview(large)[self._filled :], most)
                except BlockingIOError:
                    self._its_turn = False
                    await self._bytes_come()
                    if not self._is_clear:  # after what the joint reader has read
                        await self._until_clear()
                    continue
                if count == 0:
                    if self._silent is not None:
                        raise self._silent
                    if self._finishing:
                        return
                    if self._rest or large is not None:
                        raise ProtocolError("the connection ended inside a frame") from None
                    return
            self._note_come(count)
            if large is not None and self._filled + count == self._wanted:
                self._due = self._weigh(memoryview(large)[4 : self._wanted])
                while (
                    not self._may_begin()
                    or (self._quotas.on and self._is_held(memoryview(large)[4 : self._wanted]))
                    or (turns.contended and not self._its_turn)
                ):
                    await self._room(self._may_begin)
                    await self.pause()
                    self._its_turn = True
            if self._barred and self._silent is not None:
                raise self._silent
            begun, much = self._begin_requests(count)
            self._send_answers()
            self._judge(perf_counter() - begun, much)
            await self._until_clear()

    def read_now(self, now: float) -> bool:
        """As `JointlyRead.read_now`."""
        server = self._server
        budget = server.budget
        if self._finishing or self._barred or server.broker.stillness.was or budget.used >= budget.total:
            return False
        try:
            count = self._sock.recv_into(server.scratch)
        except BlockingIOError:
            return True
        if count == 0:
            return False
        self._silent_since = math.inf
        self._note_come(count)
        begun, much = self._begin_requests(count)
        self._judge(perf_counter() - begun, much)
        self._silent_since = now
        return True

    def send_now(self) -> bool:
        """As `JointlyRead.send_now`."""
        self._send_answers()
        return self._is_clear

    def _note_come(self, count: int) -> None:
        self.received += count
        if not self._turn_over:
            self._since = perf_counter()

    def _begin_requests(self, count: int) -> tuple[float, bool]:
        """Begins the requests of which `count` more bytes were read. Returns when it began, and whether they are
        much."""
        large, turns = self._large, self._server.turns
        self._reading = True
        fresh = large is None and not self._turn_over
        begun, waiting = self._since if fresh else perf_counter(), self._outbox.size
        contended = not self._its_turn and turns.contended
        try:
            if large is None:
                self._take(self._server.scratch[:count], turns.until if contended else begun + TURN, contended)
            else:
                self._fill(large, count)
        finally:
            self._reading = False
        return begun, large is not None or count > SMALL or self._outbox.size - waiting > LARGE

    def _send_answers(self) -> None:
        """Sends the answers that there are."""
        self._flush()
        if self._answered_at_once:
            self._times.observe_each(self._answered_at_once, perf_counter() - self._since)
            self._answered_at_once.clear()

    def _judge(self, took: float, much: bool) -> None:
        """Notes whether others have their turn now. `took`: seconds. After little input it is not the peer's fault if
        this took long: the system ran other programs."""
        self._its_turn = self._turn_over or (much and took > TURN)
        self._quick = -PROOF if self._its_turn and took > LITTLE else self._quick + 1

    @property
    def _is_clear(self) -> bool:
        """Whether it may be read from at once."""
        wants_buffer = self._wanted and self._large is None
        return not (self._its_turn or self._held_back or wants_buffer) and self._may_read()

    async def _until_clear(self) -> None:
        """Waits until it may be read from, or what was read may begin; others have their turn."""
        if self._its_turn:
            await self.pause(little=self._turn_over and self._is_little)
        if self._wanted and self._large is None:
            await self._make_room()
        await self._room(self._may_begin if self._held_back else self._may_read)

    async def _until_decryptable(self, sock: TlsSocket) -> None:
        """Waits for its turn if this round has lasted for long. Nobody knows what has come before it is decrypted: a
        part may be hundreds of key updates or of tiny records, which take some ms."""
        sock.part = PART
        if self._server.turns.crowded and not self._its_turn:
            sock.part = self._server.turns.small
            if not sock.part:
                await self.pause(little=self._quick >= 0)
                self._its_turn, sock.part = True, PART

    async def _bytes_come(self) -> None:
        """Waits until more bytes have come. The `JointReader` may read some meanwhile."""
        self._silent_since = trio.current_time()
        if self._tls is not None:
            await readable(self._tls)
        elif self._large is not None:
            await trio.lowlevel.wait_readable(self._sock)
        else:
            await self._server.joint_reader.bytes_come(self, self._sock)
        self._silent_since = math.inf

    def _fill(self, large: bytearray, count: int) -> None:
        self._filled += count
        if self._filled < self._wanted:
            if self._filled == len(large):
                large.extend(bytes(min(len(large), self._wanted - len(large))))
            return
        view, size = memoryview(large), self._wanted
        self._drop_large()
        (self._metered if self._quotas.on else self._dispatch)(view[4:size], size, False)

    async def _make_room(self) -> None:
        """Makes a buffer for a large frame. It reserves the whole frame in the budget; but the buffer grows as bytes
        come: to announce a large frame costs the peer nothing, and clearing so much memory would cost us time."""
        self._keep(0)  # the reservation includes these bytes
        self._blocked_since = trio.current_time()
        owner = self.whose
        await self._server.budget.reserve(self._wanted, owner)
        self.reserved_for = owner
        self._blocked_since = math.inf
        self._large = bytearray(max(len(self._rest), min(self._wanted, BEGIN)))
        self._filled = len(self._rest)
        self._large[: self._filled] = self._rest
        self._rest = bytearray()
        self._frame_since = trio.current_time()

    def _drop_large(self) -> None:
        if self._large is not None:
            self._server.budget.release(self._wanted, self.reserved_for)
        self._large, self._filled, self._wanted = None, 0, 0
        self.reserved_for = ""

    def _keep(self, count: int) -> None:
        """Charges the budget for `count` bytes of `_rest`, instead of the count before. Those of a peer that has not
        logged in count apart."""
        budget = self._server.budget
        apart = count if self._locked else 0
        if apart != self._kept_apart:
            self._server.stranger_bytes.keep(host_of(self.client), self, apart)
            self._kept_apart = apart
        count -= apart
        (budget.charge if count > self._kept else budget.credit)(abs(count - self._kept))
        self._kept = count

    def _take(self, chunk: memoryview, until: float, contended: bool) -> None:
        """Dispatches the whole frames of a chunk, until the time `until` (perf_counter) but at least one, and keeps the
        rest. Sets `_wanted` when a large frame begins there. `contended`: others wait for their turns. Then it begins
        only small requests, and those only if the peer asked for little before."""
        self._held_back = self._turn_over = False
        begun = bool(self._rest)
        if begun:
            self._rest += chunk
            data = memoryview(self._rest)
        else:
            data = chunk
        position, held, quotas = 0, len(data), self._quotas
        least, limit = self._least, self._limit()
        large = FAIR if self._server.budget.scarce and not self._locked else LARGE
        waits = contended and self._quick < 0
        small = self._server.turns.small
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
            over = waits or (contended and size > small) or (position > 0 and perf_counter() >= until)
            if over or not self._may_begin():  # no answer is made before the answers ahead of it can be sent
                self._turn_over, self._held_back = over, True
                self._is_little = size <= SMALL and not waits and not position
                break
            if not quotas.on:
                self._dispatch(data[position + 4 : end], size, True)
            elif self._is_held(data[position + 4 : end], data[end:]):
                self._held_back = True
                break
            else:
                self._metered(data[position + 4 : end], size, True)
            position = end
        if position or not begun:
            self._rest = bytearray(data[position:])
            if self._rest:
                self._frame_since = trio.current_time()
        if len(self._rest) != self._kept + self._kept_apart:
            self._keep(len(self._rest))

    def _proved(self, proved: Proved, mechanism: str, lifetime_ms: int) -> None:
        super()._proved(proved, mechanism, lifetime_ms)
        self._keep(len(self._rest))  # they are no stranger's any more
