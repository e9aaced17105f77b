"""The server: accepts connections of all protocols, holds what they share, and ends them gracefully."""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import trio

from krappy.errors import KrappyError, Overloaded, Unavailable
from krappy.hosts import written
from krappy.measures import Histogram, RequestTimes
from krappy.ports import BrokerPort, ConnectionFacts, ServerNumbers
from krappy.ports.tokens import TokensPort
from krappy.server.budget import FAIR, Budget
from krappy.server.handshakes import Handshakes
from krappy.server.joint_reader import JointReader
from krappy.server.pages import Pages
from krappy.server.places import BROKERS, HEALTH, HTTP, MOST_APART, Places, is_local
from krappy.server.session import REGISTRATION, Allowance
from krappy.server.sockets import endpoint, has_vanished, prepare
from krappy.server.strangers import StrangerBytes, StrangerSteps
from krappy.server.tls import ServerTls
from krappy.server.turns import Turns
from krappy.settings.listeners import parse_address
from krappy.tls import TlsSocket
from krappy.waiting import Signal, wait_any
from krappy.wire.kafka.apis import ApiKey
from krappy.wire.messages import REQUESTS

SCRATCH = 256 << 10
BACKLOG = 1024
TOGETHER = 16  # connections that are accepted in one turn: each may bring its first request
LOOK_SECONDS = 0.25
LOOKS = 40  # after so many looks it is asked of the system which peers have vanished
LOOKED = 100  # connections looked at between two turns of the event loop
PAGES = 4  # HTTP may take a quarter of the budget
STRANGERS = 16  # peers that have not logged in may keep a 16th of it, besides


def _name(protocol: str, kind: int | str) -> str:
    """The name of a type of request in its protocol's documentation."""
    if isinstance(kind, str):
        return kind
    return REQUESTS[kind].__name__ if protocol == "native" else ApiKey(kind).name.lower()


class Connected(Protocol):
    """One connection of any protocol. `reserved_for`: the user or address for which it has room in the budget for a
    large frame; empty: it has none."""

    protocol: str
    requests: int
    reserved_for: str

    async def serve(self) -> None: ...
    def finish(self) -> None: ...
    def drop(self) -> None: ...
    def look(self, now: float) -> None: ...
    def overdue(self, now: float) -> bool: ...
    def describe(self) -> ConnectionFacts: ...
    def waits_since(self, now: float) -> float | None: ...
    def give_way(self, why: str) -> None: ...
    @property
    def sock(self) -> socket.socket: ...
    @property
    def received(self) -> int: ...
    @property
    def sent(self) -> int: ...
    @property
    def held(self) -> int: ...


class Posting(Protocol):
    """A connection whose answers wait to be sent."""

    def post(self) -> None: ...
    def drop(self) -> None: ...


class Speech(Protocol):
    """A listener's protocol. `protocol`: its name."""

    protocol: str

    def connect(self, server: Server, sock: socket.socket, client: str) -> Connected: ...
    def refusal(self, error: KrappyError) -> bytes:
        """The bytes that tell a peer that it can't be served; empty when the protocol has none."""


class Listener(NamedTuple):
    """`tls`: gives the context of a new connection; None: the listener has no TLS. `for_brokers`: other brokers come
    by it, and clients by other listeners."""

    socket: socket.socket
    speech: Speech
    tls: Callable[[], ssl.SSLContext] | None = None
    for_brokers: bool = False

    @property
    def kind(self) -> str:
        """Under which its connections take their places (see `places`)."""
        return BROKERS if self.for_brokers else self.speech.protocol


class InternalError(KrappyError):
    """A bug in the broker; the peer learns no details."""


class Server:
    def __init__(
        self,
        broker: BrokerPort,
        report: Callable[..., None],
        *,
        memory_bytes: int,
        max_frame: int,
        places: Places,
        idle_seconds: float,
        stall_seconds: float = 30.0,
        drain_seconds: float = 5.0,
    ) -> None:
        self.broker = broker
        self.report = report
        self.budget = Budget(memory_bytes)
        self.turns = Turns()
        self.joint_reader = JointReader(self.turns)
        self.handshakes = Handshakes(self.turns.next, report)
        self.logins = StrangerSteps()  # logins and heads do not wait for each other
        self.heads = StrangerSteps()  # of HTTP requests
        self.stranger_bytes = StrangerBytes(max(memory_bytes // STRANGERS, FAIR))
        self.tls: ServerTls | None = None  # if a listener has it
        self.tokens: TokensPort | None = None  # if users log in with them
        self.pages = Pages(max(memory_bytes // PAGES, 1))  # HTTP's answers count against both
        self.allowance = Allowance(memory_bytes // REGISTRATION)
        self.max_frame = min(max_frame, memory_bytes // 2)  # a larger frame might never find room
        self.places = places
        self.idle_seconds = idle_seconds
        self.stall_seconds = stall_seconds
        self.drain_seconds = drain_seconds
        self.scratch = memoryview(bytearray(SCRATCH))  # one loop reads one socket at a time
        self.connections: set[Connected] = set()
        self.ended = Signal()
        self._times: dict[str, RequestTimes] = {}
        self._received: dict[str, int] = {}  # bytes of connections that have ended, by protocol
        self._sent: dict[str, int] = {}
        self.accepted = 0
        self.refused = 0
        self._accepters: trio.Nursery | None = None
        self._outgoing: dict[Posting, None] = {}  # connections with answers to be sent
        self._has_outgoing = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._accepting = trio.CancelScope()

    async def serve(
        self, listeners: list[Listener], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accepts until `stop_accepting`. Returns when the last connection has ended, or when it is cancelled."""
        trio.lowlevel.add_instrument(self.turns)
        async with trio.open_nursery() as posting:
            posting.start_soon(self._post)
            posting.start_soon(self.joint_reader.run)
            # Also for those that were accepted before the end.
            for steps in (self.handshakes.steps, self.logins, self.heads):
                posting.start_soon(steps.run)
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self._accept_all, listeners)
                task_status.started()
            posting.cancel_scope.cancel()
        trio.lowlevel.remove_instrument(self.turns)

    async def _accept_all(
        self, listeners: list[Listener], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with self._accepting:
            async with trio.open_nursery() as nursery:
                self._accepters = nursery
                for listener in listeners:
                    nursery.start_soon(self._accept, listener)
                nursery.start_soon(self._look_after)
                task_status.started()

    def listen(self, listener: Listener) -> None:
        """Accepts from one more listener; `serve` must be running."""
        assert self._accepters is not None, "the server does not serve"
        self._accepters.start_soon(self._accept, listener)

    def post(self, connection: Posting) -> None:
        """Sends the connection's answers soon: those of one round of the event loop together. One task sends for all
        connections, which costs less than a task for each."""
        if not self._outgoing:
            self._has_outgoing.set()
        self._outgoing[connection] = None

    async def _post(self) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing = trio.Event()
            outgoing, self._outgoing = self._outgoing, {}
            for connection in outgoing:
                try:
                    connection.post()
                except Exception as error:
                    self.fault(error, 0)
                    connection.drop()

    async def _look_after(self) -> None:
        """Ends connections whose peers are silent for too long. While memory is short, it also ends those whose peers
        keep memory for too long, the one with most first."""
        for number in itertools.count(1):
            await trio.sleep(LOOK_SECONDS)
            await self._look_at(tuple(self.connections), thoroughly=number % LOOKS == 0)
            while overdue := self._overdue():
                worst = max(overdue, key=lambda connection: connection.held)
                worst.drop()
                await wait_any([self.ended], lambda worst=worst: worst not in self.connections, LOOK_SECONDS)  # type: ignore[misc]

    def _overdue(self) -> list[Connected]:
        """The connections whose peers keep memory for too long, among those for whose memory somebody waits."""
        now, budget, pages = trio.current_time(), self.budget, self.pages
        short, least, short_for = budget.short, budget.least_waiting, budget.short_for
        if not (short or short_for or pages.short):
            return []

        def concerned(each: Connected) -> bool:
            owner = each.reserved_for
            if owner in short_for or (pages.short and each.protocol == HTTP):
                return True
            return short and (not owner or budget.reserved_by(owner) >= least)

        return [each for each in self.connections if concerned(each) and each.overdue(now)]

    async def _look_at(self, connections: Sequence[Connected], *, thoroughly: bool) -> None:
        """A function of its own, so that none of them is referred to, and stays, until the next look."""
        for start in range(0, len(connections), LOOKED):
            now = trio.current_time()
            for connection in connections[start : start + LOOKED]:
                if connection in self.connections:
                    connection.look(now)
                    if thoroughly and has_vanished(connection.sock):
                        connection.drop()
            await trio.lowlevel.checkpoint()  # thousands may have left at once

    def stop_accepting(self) -> None:
        self._accepting.cancel()

    async def _accept(self, listener: Listener) -> None:
        assert self._nursery is not None
        try:
            while True:
                await trio.lowlevel.wait_readable(listener.socket)
                for _ in range(TOGETHER):
                    try:
                        sock, address = listener.socket.accept()
                    except (BlockingIOError, InterruptedError):
                        break
                    except OSError as error:
                        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                            break  # the peer left before it was accepted
                        self.report("accept_failed", error=str(error))
                        await trio.sleep(0.1)
                        break
                    try:
                        self._start(listener, sock, address)
                    except OSError:  # the peer left meanwhile
                        sock.close()
        finally:
            listener.socket.close()

    def _start(self, listener: Listener, sock: socket.socket, address: tuple[str, int]) -> None:
        assert self._nursery is not None
        speech = listener.speech
        prepare(sock)
        host, port = endpoint(address)
        client = written(host, port)
        refusal = self._refusal(listener.kind, host, sock.fileno())
        if refusal is not None:
            self.refused += 1
            self.report("connection_refused", client=client, protocol=speech.protocol, reason=refusal.text)
            if listener.tls is None:
                with contextlib.suppress(OSError):
                    sock.send(speech.refusal(refusal))
            sock.close()
            return
        if listener.tls is not None:
            sock = TlsSocket(listener.tls(), sock)
        connection = speech.connect(self, sock, client)
        self.accepted += 1
        self.connections.add(connection)
        self.places.take(connection, listener.kind, host)
        self._nursery.start_soon(self._run, connection, listener.kind, host)

    def _refusal(self, kind: str, host: str, descriptor: int) -> KrappyError | None:
        """Why a new connection has no place."""
        apart = kind if kind in MOST_APART else ""
        if kind != HEALTH and not self.broker.client_quotas.connect(host, apart=apart, local=is_local(host)):
            return Overloaded(f"{host} opens connections faster than one address may")
        return self.places.refusal(kind, host, descriptor, trio.current_time())

    async def _run(self, connection: Connected, kind: str, host: str) -> None:
        try:
            await connection.serve()
        except Exception as error:
            self.fault(error, 0)
        finally:
            self.connections.discard(connection)
            self.places.leave(connection, kind, host)
            self._keep_count(connection)
            self.ended.fire()

    def _keep_count(self, connection: Connected) -> None:
        protocol = connection.protocol
        self._received[protocol] = self._received.get(protocol, 0) + connection.received
        self._sent[protocol] = self._sent.get(protocol, 0) + connection.sent

    async def turn(self, whose: str) -> None:
        """Returns when it is the turn of this user, or address, to use the event loop for some ms (see `Turns`)."""
        await self.turns.next(whose)

    # --- for people

    def times(self, protocol: str) -> RequestTimes:
        """The latencies of a protocol's requests."""
        found = self._times.get(protocol)
        if found is None:
            found = self._times[protocol] = RequestTimes()
        return found

    def describe_connections(self) -> Iterator[ConnectionFacts]:
        """The description of each connection; each is made when the iterator reaches it, if it lasts until then."""
        return (connection.describe() for connection in list(self.connections) if connection in self.connections)

    def measure(self) -> ServerNumbers:
        received, sent = dict(self._received), dict(self._sent)
        count: dict[str, int] = {}
        for connection in self.connections:
            protocol = connection.protocol
            count[protocol] = count.get(protocol, 0) + 1
            received[protocol] = received.get(protocol, 0) + connection.received
            sent[protocol] = sent.get(protocol, 0) + connection.sent
        return ServerNumbers(
            connections=count,
            accepted=self.accepted,
            refused=self.refused,
            received_bytes=received,
            sent_bytes=sent,
            budget_bytes=self.budget.total,
            budget_used_bytes=self.budget.used,
            parked_bytes=self.budget.parked,
            stalls=self.budget.stalls,
            handshakes_failed=self.handshakes.failed,
            certificate_expires=None if self.tls is None else self.tls.contexts.expires,
            oauth_keys_age=None if self.tokens is None else self.tokens.keys_age,
        )

    def request_times(self) -> Iterator[tuple[str, str, Histogram]]:
        """(protocol, type of request, its latencies)."""
        for protocol, times in self._times.items():
            for kind, histogram in times.by_kind.items():
                yield protocol, _name(protocol, kind), histogram

    def fault(self, error: Exception, kind: int) -> KrappyError:
        """Reports a bug with its traceback. Returns the error for the peer."""
        self.report("internal_error", exc_info=error, request=kind)
        return InternalError("the broker failed inside; its log has the traceback")

    async def finish(self) -> None:
        """Ends every connection once its requests in flight are answered, at most `drain_seconds` and a second
        later."""
        for connection in tuple(self.connections):
            connection.finish()
        await wait_any([self.ended], lambda: not self.connections, self.drain_seconds + 1)


def bind(address: str, setting: str) -> socket.socket:
    """A listening, non-blocking socket for "HOST:PORT" ("[::1]:7092" for IPv6; port 0 takes a free one). Raises
    ConfigError for a malformed address, Unavailable when the address can't be bound; its text names the flag of
    `setting`, which gave the address."""
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise Unavailable(f"can't listen on {address}: {error}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        flag = "--" + setting.replace("_", "-")
        taken = f"; another program has that port: choose another one by {flag} HOST:PORT, or none by {flag} none"
        hint = taken if error.errno == errno.EADDRINUSE else ""
        raise Unavailable(f"can't listen on {address}: {error.strerror}{hint}") from None
    return sock
