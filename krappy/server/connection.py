"""One native connection: passes requests to handlers, and sends their answers.

A handler that can answer at once runs inside the read loop. One that must wait gets a task of its own, so a waiting
poll delays no other request.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Any

import trio

from krappy.core.security.operations import Need, Op, Resource
from krappy.core.security.quota import Payer
from krappy.core.security.quota_entities import QuotaKey
from krappy.errors import AuthenticationFailed, InvalidRequest, KrappyError, Overloaded, ProtocolError, ShuttingDown
from krappy.handlers.registry import Registry
from krappy.hosts import written
from krappy.ports import SessionFacts
from krappy.ports.audit import ASKED, AskedFor
from krappy.server.authentication import Admission
from krappy.server.budget import FAIR
from krappy.server.channel import LATER, TASK, Channel
from krappy.server.session import Session
from krappy.server.sockets import endpoint
from krappy.server.throttled import HELD, over_quota
from krappy.settings.listeners import NATIVE
from krappy.waiting import Later, wait_any
from krappy.wire import mistaken
from krappy.wire.frames import ANSWER, frame
from krappy.wire.messages import (
    REQUESTS,
    Answer,
    Authenticate,
    Commit,
    ConsumerRegistration,
    Offsets,
    Ping,
    Request,
    ResetGroup,
    Seek,
    error_frame,
    parse,
    take_id,
)
from krappy.wire.schema import pack, unpack_request

if TYPE_CHECKING:
    from krappy.server.server import Server

KIND = struct.Struct(">I")
MAX_TASKS = 2000  # waiting requests of one connection
NO_FRAME = memoryview(b"")
LOGGING_IN = (Ping, Authenticate)
# Requests that need the right to read or write a topic, but bring no events themselves.
NO_EVENTS = frozenset(each.kind for each in (ConsumerRegistration, Seek, Offsets, Commit, ResetGroup))
FEW = 8  # waiting requests of one connection that begin at once; others begin in turns
FAIR_TASKS = 8  # small waiting requests that it may have even when the server has too many
ELEMENT = 150  # about how many bytes an element of a request's array takes
SIGN_S = 1.0  # seconds between two signs of life while a peer's pings have to wait
SIGN = frame(Ping.kind | ANSWER, pack({"id": 0}))  # it answers no request: clients ignore it


class Native:
    """The native protocol, for a listener."""

    protocol = "native"

    def __init__(self, registry: Registry, advertised: str = "", admission: Admission | None = None) -> None:
        """`advertised`: HOST:PORT that clients are told; empty: the one that they used."""
        self.registry = registry
        self.advertised = advertised
        self.admission = admission or Admission(NATIVE)

        reads, writes = (
            frozenset(cls.kind for cls, each in registry.served.items() if Need(Resource.TOPIC, op) in each.needs)
            for op in (Op.READ, Op.WRITE)
        )  # types of messages that count for consumer_byte_rate and for producer_byte_rate
        self.reads, self.writes = reads - NO_EVENTS, writes - NO_EVENTS
        # Requests that wait for consumer_byte_rate before they begin. A stream begins at once; each part of it waits.
        self.held = self.reads - {cls.kind for cls, each in registry.served.items() if each.streams}

    def connect(self, server: Server, sock: socket.socket, client: str) -> Connection:
        return Connection(server, sock, client, self)

    def refusal(self, error: KrappyError) -> bytes:
        return error_frame(0, error)


class Connection(Channel):
    session: Session
    protocol = "native"
    _least = 4  # the message type
    _endless = True
    _longest = HELD  # a client that hears nothing takes the broker for dead

    def __init__(self, server: Server, sock: socket.socket, client: str, speech: Native) -> None:
        super().__init__(server, sock, client)
        self._speech = speech
        self._served = speech.registry.served
        address = speech.advertised or _used(sock)
        self.session = Session(server.broker, client, self, server.max_frame, server.allowance, address)
        self._enter(speech.admission, self.session)
        self._tasks = 0
        self._asked: dict[type[Request], AskedFor] = {}  # kept, since making one takes as long as a lookup of a key
        self._beginning = trio.Lock()  # held by the one of its tasks that waits for its turn to begin
        self._seen, self._signed_at = (0, 0), 0.0  # `received` and `requests` at the last look; when it showed life

    def _broken(self, error: KrappyError) -> None:
        spoken = error.details.get("spoken")
        if spoken is not None:
            self._server.report("native_connection_ended", client=self.client, reason=str(error))
        self._send(mistaken.answer(spoken, mistaken.NATIVE) or error_frame(0, error))

    def _tell(self) -> SessionFacts:
        return self.session.describe()

    @property
    def _patience(self) -> float:
        return min(super()._patience, self.session.patience)

    def look(self, now: float) -> None:
        super().look(now)
        before, self._seen = self._seen, (self.received, self.requests)
        if now - self._signed_at >= SIGN_S and self._keeps_pings_waiting(*before):
            self._signed_at = now
            self._send(SIGN)

    def _keeps_pings_waiting(self, received: int, requests: int) -> bool:
        """Whether a ping of the peer would not be read soon, though all is well: because of a quota, for memory or a
        turn, or behind a large frame that is still coming. `received`, `requests`: how much had come, and how many had
        begun, at the last look."""
        if not requests or requests != self.requests or self._locked or self._finishing or self._outbox.size:
            return False
        if self._server.broker.stillness.was:  # it may not be well
            return False
        halfway = bool(self._rest) or self._large is not None
        if self.received > received:
            return halfway
        return self._silent_since == math.inf

    def _close_session(self) -> None:
        self.session.close()
        self._asked.clear()  # it leads back to this connection

    def _dispatch(self, frame: memoryview, size: int, lent: bool) -> None:
        """Runs one request. Every request of every native connection passes here, and nowhere else."""
        self.requests += 1
        kind, id = KIND.unpack_from(frame)[0], 0
        try:
            values = unpack_request(frame[4:])
            id = take_id(values)
            cls = REQUESTS.get(kind)
            if cls is None:
                raise InvalidRequest(f"unknown message type {kind:#x}", type=kind)
            if self._finishing:
                raise ShuttingDown("the broker is shutting down")
            if self._locked and cls not in LOGGING_IN:
                self._tell_ended("a request came before its sender had logged in again")
                self.finish()
                raise AuthenticationFailed("log in first: this listener has users")
            ASKED.set(self._asked.get(cls) or self._asked.setdefault(cls, AskedFor(self.session, cls.__name__)))
            request = parse(cls, values)
            handler, streams, _ = self._served[cls]
            answer = (
                handler(self.session, request, AnswerStream(self, id)) if streams else handler(self.session, request)
            )
        except KrappyError as error:
            if self.requests == 1 and (spoken := mistaken.framed(frame)) == mistaken.KAFKA:
                raise ProtocolError(error.text + mistaken.told(spoken), spoken=spoken) from None
            self._send(error_frame(id, error))
            return
        except Exception as error:
            self._send(error_frame(id, self._server.fault(error, kind)))
            return
        if isinstance(answer, Answer):
            self._reply(answer, id)
            counted = self._answered_at_once
            counted[kind] = counted.get(kind, 0) + 1
            return
        since = self._since
        if isinstance(answer, Later):
            size += LATER + answer.cost
            self.in_flight += size
            self._server.budget.charge(size)
            answer.then(lambda value, error: self._finished(id, size, kind, since, value, error))
        elif self._too_much(cost := size + TASK + ELEMENT * _elements(request)):
            answer.close()
            # An error, not back-pressure: that could last minutes, and where we don't read we don't see a peer leave.
            self._send(error_frame(id, Overloaded("too many requests wait already; try again when some are answered")))
        else:
            self.in_flight += cost
            self._park(cost)
            self._tasks += 1
            assert self._nursery is not None
            self._nursery.start_soon(self._wait_for, id, cost, kind, since, self._timed(answer))

    def _too_much(self, cost: int) -> bool:
        """Whether there is no room for a request of `cost` bytes to wait."""
        budget = self._server.budget
        if self._tasks >= MAX_TASKS or (budget.crowded and self._tasks >= FAIR_TASKS):
            return True
        return cost > FAIR and budget.laden_for(self.whose)

    async def _wait_for(self, id: int, size: int, kind: int, since: float, answer: Coroutine[Any, Any, Answer]) -> None:
        value: Answer | None = None
        error: Exception | None = None
        try:
            with self._until_it_leaves():
                if self._tasks > FEW:  # hundreds may have come at once, and others need the server's turns, too
                    async with self._beginning:
                        await self.writable()
                        await self.pause()
                elif (turns := self._server.turns).crowded and size > TASK + turns.small:
                    await self.pause()
                value = await answer
        except KrappyError as refused:
            error = refused
        except Exception as fault:
            error = self._server.fault(fault, kind)
        finally:
            answer.close()  # it may not have begun
            self._tasks -= 1
            self._park(-size)
            self._times.observe(kind, perf_counter() - since)
            self._answered(id, size, value, error)

    def _finished(
        self, id: int, size: int, kind: int, since: float, value: Answer | None, error: Exception | None
    ) -> None:
        self._times.observe(kind, perf_counter() - since)
        self._server.budget.credit(size)
        self._answered(id, size, value, error)

    def _answered(self, id: int, size: int, value: Answer | None, error: Exception | None) -> None:
        self.in_flight -= size
        if self._ended:
            return
        if value is not None:
            self._reply(value, id)
        elif isinstance(error, KrappyError):
            self._send(error_frame(id, error))
        self.changed.fire()

    def _reply(self, answer: Answer, id: int) -> None:
        frame = answer.frame(id)
        if self._quotas.on and answer.kind in self._speech.reads and not self._exempt:
            self._spend(QuotaKey.CONSUME, self._payer(), len(frame))
        self._send(frame)

    # --- quotas

    @property
    def _exempt(self) -> bool:
        return self.session.is_broker

    def _payer(self, frame: memoryview = NO_FRAME) -> Payer:
        principal = self.session.principal
        return Payer(host=principal.host) if self._locked else Payer(principal.name)

    def _limit_of(self, frame: memoryview) -> QuotaKey | None:
        kind = KIND.unpack_from(frame)[0]
        if kind in self._speech.held:
            return QuotaKey.CONSUME
        return QuotaKey.PRODUCE if kind in self._speech.writes else None

    def _metered(self, frame: memoryview, size: int, lent: bool) -> None:
        wait = 0.0
        if self._limit_of(frame) is QuotaKey.CONSUME and not self._exempt:
            wait = self._quotas.wait(QuotaKey.CONSUME, self._payer())
        if wait:
            self._refuse(frame, size, lent, over_quota(QuotaKey.CONSUME, wait))  # it was held for long enough
        else:
            super()._metered(frame, size, lent)

    def _refuse(self, frame: memoryview, size: int, lent: bool, error: KrappyError) -> None:
        self.requests += 1
        try:
            id = take_id(unpack_request(frame[4:]))
        except KrappyError as broken:
            id, error = 0, broken
        self._send(error_frame(id, error))

    @property
    def ready(self) -> bool:
        """Not while its client is over a quota: polls wait, and so do streams."""
        return not (self._streams_until and self._silence_of_streams() < math.inf) and super().ready

    async def writable(self) -> None:
        signals = [self.changed, self._server.budget.freed, self._quotas.changed]
        while not await wait_any(signals, lambda: self.ready, self._silence_of_streams()):
            pass


def _used(sock: socket.socket) -> str:
    """HOST:PORT at which the peer reached this broker; empty if the socket tells none."""
    name = sock.getsockname()
    if not isinstance(name, tuple):
        return ""
    return written(*endpoint(name))


def _elements(request: Request) -> int:
    return sum(len(value) for value in request.__dict__.values() if type(value) is list)


class AnswerStream:
    """Answers of a streaming handler, one after the other, as fast as the peer takes them."""

    def __init__(self, connection: Connection, id: int) -> None:
        self._connection = connection
        self._id = id

    async def send(self, answer: Answer, stands: Callable[[], bool] = lambda: True) -> None:
        """Sends one answer once the quota has room for it, if `stands()` is still true then: what it tells may be told.
        Returns when the next one may be made."""
        connection, frame = self._connection, answer.frame(self._id)
        if answer.kind in connection._speech.reads:
            await connection._in_line(len(frame), stands)
        if stands():
            connection._send(frame)
        await trio.lowlevel.checkpoint()
        await connection.writable()
