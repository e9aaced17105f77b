"""A session with ZooKeeper, without IO: bytes and the time go in, bytes, answers and events come out.

A session outlives its connections. While there is no connection nobody knows whether the session still lives: the
servers end it when they have not heard of it for its timeout. So its owner takes it for over as soon as it may be over
for the servers: that is a timeout after the *sending* of the last request that was answered.

A request whose answer was lost with the connection may have been done or not. It is never sent again automatically; its
sender reads what it wanted to change (KAFKA-1387, KAFKA-7165, KAFKA-14845 show what comes of guesses).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from krappy.cluster.zk import jute
from krappy.cluster.zk.jute import ConnectAnswer, ErrorCode, JuteReader, Opcode, WatchEvent, Xid
from krappy.errors import ConnectionLost, ProtocolError

PINGS = 6  # in the time of a session's timeout
LET_IN = 3  # a server that does not let the client in is given up after 1/LET_IN of the timeout
SILENCE = 2  # a connection is given up if nothing comes on it for 1/SILENCE of the timeout while an answer is due
_LENGTH = struct.Struct(">i")


class Status(StrEnum):
    DOWN = "down"  # there is no connection
    CONNECTING = "connecting"
    UP = "up"
    OVER = "over"  # its ephemeral znodes are gone, or will be soon


class ZooKeeperReply(NamedTuple):
    """The answer to a request. `error`: one of ErrorCode's numbers, or another. `body`: empty after an error."""

    xid: int
    error: int
    zxid: int
    body: JuteReader


class Entered(NamedTuple):
    """The connection is up. `fresh`: for the first time in this session."""

    fresh: bool


Received = ZooKeeperReply | WatchEvent | Entered


class _Pending(NamedTuple):
    xid: int
    sent_ms: int


class ZooKeeperSession:
    """`timeout_ms`: what is asked for, and from the first connection on what the server granted. Times are those of a
    steady clock."""

    def __init__(self, timeout_ms: int, auth: Sequence[tuple[str, bytes]] = ()) -> None:
        """`auth`: pairs (scheme, secret), such as ("digest", b"name:password")."""
        self.timeout_ms = timeout_ms
        self.status = Status.DOWN
        self.id = 0
        self.zxid = 0  # the highest that an answer had
        self._auth = auth
        self._password = b"\0" * 16
        self._xid = 0
        self._pending: deque[_Pending] = deque()
        self._pinged_ms: int | None = None  # when the ping was sent that waits for its answer
        self._sent_ms = 0
        self._heard_ms = 0  # when the last request that was answered had been sent
        self._connected_ms = 0
        self._received_ms = 0
        self._buffer = bytearray()

    def connect(self, now_ms: int) -> bytes:
        """Begins a connection. Returns what is to be sent first. Raises ConnectionLost when the session is over."""
        if self.is_over(now_ms):
            raise ConnectionLost("the session with ZooKeeper has ended")
        self.status = Status.CONNECTING
        self._buffer.clear()
        self._connected_ms = self._sent_ms = now_ms
        return jute.connect(self.timeout_ms, self.id, self._password, self.zxid)

    def first(self) -> bytes:
        """What is to be sent as soon as a connection is up, before all else."""
        return b"".join(jute.auth(scheme, secret) for scheme, secret in self._auth)

    def send(self, opcode: Opcode, fields: Sequence[bytes], now_ms: int) -> tuple[int, bytes]:
        """(the request's xid, its bytes). They must go out in the order of these calls. Raises ConnectionLost."""
        if self.status != Status.UP:
            raise ConnectionLost(f"there is no connection to ZooKeeper (the session is {self.status})")
        self._xid = self._xid % 0x7FFFFFFF + 1
        self._pending.append(_Pending(self._xid, now_ms))
        self._sent_ms = now_ms
        return self._xid, jute.request(self._xid, opcode, *fields)

    def receive(self, data: bytes | bytearray, now_ms: int) -> list[Received]:
        """What these bytes complete, in their order. Raises ProtocolError, and ConnectionLost when the server wants the
        session to go on elsewhere: the connection is to be closed then."""
        self._received_ms = now_ms
        self._buffer += data
        found: list[Received] = []
        while (frame := self._frame()) is not None:
            if self.status == Status.CONNECTING:
                found += self._enter(frame.connected())
            else:
                found += self._take(frame)
        return found

    def lost(self) -> None:
        """The connection has ended. Nobody knows whether the requests without an answer were done."""
        if self.status != Status.OVER:
            self.status = Status.DOWN
        self._pending.clear()
        self._pinged_ms = None

    def ping(self, now_ms: int) -> bytes:
        """A ping, if one is due; else nothing. To be called at least once in `pause_ms`."""
        if self.status != Status.UP or self._pinged_ms is not None or now_ms - self._sent_ms < self.pause_ms:
            return b""
        self._pinged_ms = self._sent_ms = now_ms
        return jute.ping()

    @property
    def pause_ms(self) -> int:
        return self.timeout_ms // PINGS

    def is_stuck(self, now_ms: int) -> bool:
        """Whether this connection has given no answer for so long that another server should be asked. A server that
        answers, though late, is kept: each write waits for its disk, and all that was asked is lost with a connection.
        """
        if self.status == Status.CONNECTING:
            return now_ms - self._connected_ms >= self.timeout_ms // LET_IN
        waits = [each.sent_ms for each in list(self._pending)[:1]]
        waits += [] if self._pinged_ms is None else [self._pinged_ms]
        return bool(waits) and now_ms - max(min(waits), self._received_ms) >= self.timeout_ms // SILENCE

    def is_over(self, now_ms: int) -> bool:
        """Whether the session has ended, or may have."""
        if self.id and now_ms - self._heard_ms >= self.timeout_ms:
            self.status = Status.OVER
        return self.status == Status.OVER

    def end(self) -> None:
        """Its owner has closed it."""
        self.status = Status.OVER

    def _frame(self) -> JuteReader | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        [size] = _LENGTH.unpack_from(self._buffer)
        if not 0 <= size <= jute.MAX_FRAME:
            raise ProtocolError(f"ZooKeeper announced a frame of {size} bytes: is it a ZooKeeper?")
        end = _LENGTH.size + size
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return JuteReader(frame)

    def _enter(self, answer: ConnectAnswer) -> list[Received]:
        if answer.timeout_ms <= 0:
            self.status = Status.OVER
            return []
        fresh = self.id == 0
        self.id, self._password, self.timeout_ms = answer.session, answer.password, answer.timeout_ms
        self.status = Status.UP
        self._heard_ms = self._connected_ms
        return [Entered(fresh)]

    def _take(self, frame: JuteReader) -> list[Received]:
        xid, zxid, error = frame.reply()
        if xid == Xid.EVENT:
            return [frame.event()]
        if xid == Xid.PING:
            if self._pinged_ms is not None:
                self._heard_ms = max(self._heard_ms, self._pinged_ms)
            self._pinged_ms = None
            return []
        if xid == Xid.AUTH:
            if error != ErrorCode.OK:
                raise ProtocolError("ZooKeeper refused zookeeper_user and its password")
            return []
        if not self._pending or xid != self._pending[0].xid:
            raise ProtocolError(f"ZooKeeper answered request {xid}, which is not the next one")
        self._heard_ms = max(self._heard_ms, self._pending.popleft().sent_ms)
        self.zxid = max(self.zxid, zxid)
        if error == ErrorCode.SESSION_EXPIRED:
            self.status = Status.OVER
        elif error == ErrorCode.SESSION_MOVED:
            raise ConnectionLost("the session with ZooKeeper goes on over another connection")
        return [ZooKeeperReply(xid, error, zxid, frame)]
