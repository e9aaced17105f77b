"""A connection to a broker that is made again whenever it is lost, and requests that survive the loss.

`ask` repeats a request when the broker answers with a retriable error (then it was not applied); but not when another
broker leads the partition. With `again`, it also repeats a request whose connection was lost after it was sent; it may
have been applied, so this is for reads and for requests that do nothing the second time. All tries together take at
most `timeout`; after that, `ask` raises the broker's last error, if there was one, else RequestTimeout.
"""

from __future__ import annotations

import itertools
import math
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from krappy.clients.backoff import Backoff
from krappy.clients.conversation import Conversation, Reply
from krappy.clients.login import ClientLogin
from krappy.clients.refusals import repeats
from krappy.clients.replies import ReplySlot
from krappy.clients.runtime import ClientRuntime, ClientSignal, ClientStream
from krappy.clients.security import ClientSecurity
from krappy.clients.trouble import NO_GREETING, no_broker, reason
from krappy.clients.values import Address
from krappy.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    FrameTooLarge,
    KrappyError,
    RequestTimeout,
)
from krappy.wire.frames import DEFAULT_LIMIT
from krappy.wire.messages import Answer, Authenticate, Authenticated, Ping, Pong, Request

A = TypeVar("A", bound=Answer)
GREETING_SECONDS = 10.0  # limit for connecting, and then again for the first answer, with a login
FIRST_SIGN = 3.0  # limit for connecting, and then for the first bytes, while another address is still to be tried
TLS_ALERT = b"\x15\x03"  # how a TLS server answers bytes that are not TLS
LARGE = 16 << 10  # bytes of a request that is sent alone
RENEWED = 0.8  # the share of a session's time after which the client logs in again
RETRIED = 1.0  # seconds until it tries that again, if it had no token
SOONEST = 0.2  # seconds until it logs in again, at least: a token that was not renewed in time may have little left
PATIENCE = 1.0  # seconds that `tell`, and a login, wait for room to send


class Link:
    """`addresses`: where to connect: to the first that answers. `timeout`: seconds that one operation may take.
    `keepalive`: after so many seconds of silence the broker is pinged; after as many again the connection counts as
    lost."""

    def __init__(
        self,
        runtime: ClientRuntime,
        addresses: Sequence[Address],
        timeout: float = 30.0,
        keepalive: float = 30.0,
        security: ClientSecurity | None = None,
    ) -> None:
        self.runtime = runtime
        self._security = security or ClientSecurity()
        self.addresses = addresses  # another sequence may be put here at any time
        self.address = addresses[0]  # of the connection, or of the last try
        self.timeout = timeout
        self.generation = 0  # number of the current connection; a handle is valid on one connection only
        self.pong: Pong | None = None  # the broker's last answer to a ping
        self._keepalive = keepalive
        self._backoff = Backoff()
        self._ids = itertools.count(1)  # across connections, so that a late `forget` hits no other request
        self._stream: ClientStream | None = None
        self._conversation: Conversation | None = None  # not None while requests may be sent
        self._up = runtime.signal()  # set while requests may be sent, and once closed
        self.begun = False  # whether the task or thread that connects runs
        self._tried = runtime.signal()  # set after the first attempt to connect
        self.closed = False  # True for good after `close`
        self._closing = runtime.signal()  # set by `close`
        self.told_of_closing: set[Callable[[], object]] = set()  # called by `close`: for those who wait for no reply
        self.told_of_loss: set[Callable[[], object]] = set()  # called when a connection is lost, before its replies
        self._paused: ClientSignal | None = None
        self.trouble = ""  # why there is no connection
        self._heard = 0.0  # when bytes came last, or nothing was waited for
        self._probed: float | None = None  # since when the broker owes an answer to a ping that `probe` has sent
        self._dropped = ""  # why `drop` has ended the connection
        self._refusal: KrappyError | None = None  # why the broker did not let the user in
        self._refused_at = 0.0  # when it did not first, since it last did
        self._renewed_at = math.inf  # when it logs in again

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self, seconds: float | None = None) -> None:
        """Connects. A cancelled caller may call it again. Raises ConnectionLost when no broker answers at any address
        in `seconds` (None: the link's timeout): only later losses are retried."""
        self.begin()
        limit = self.timeout if seconds is None else min(seconds, self.timeout)
        tried = await self._tried.wait(limit)
        if self._conversation is None:
            trouble = self.trouble if tried else f"{self.address} does not answer in {limit:g} s"
            self.close()
            self.trouble = trouble
            raise self._refusal or ConnectionLost(trouble, address=str(self.address))

    def begin(self) -> None:
        """Begins to connect, and does not wait for that."""
        if not self.begun:
            self.runtime.spawn(self._keep, f"krappy link to {self.address}")

    def close(self) -> None:
        """Ends the link for good; everyone who waits gets ConnectionLost."""
        with self.runtime.lock:
            self.trouble = "the client is closed"
            self.closed = True
            self._closing.set()
            self._tried.set()
            if self._stream is not None:
                self._stream.end()
            self._lost(self.trouble)
            self._up.set()
            self.resume()
            for tell in self.told_of_closing:
                tell()

    def abandon(self) -> None:
        """As `close`, for a finalizer: it takes no lock. Nobody waits for an answer any more; the task or thread that
        reads the connection ends it."""
        self.trouble = "the client is closed"
        self.closed = True
        self._closing.set()
        stream, paused = self._stream, self._paused  # read after `closed` is set: see `_converse`
        if stream is not None:
            stream.end()
        if paused is not None:
            paused.set()

    def disown(self, why: str) -> None:
        """For a forked child process: marks the link closed without touching the connection, which the parent uses."""
        self._stream = self._conversation = None
        self.trouble = why
        self.closed = True
        self._closing, self._up = self.runtime.signal(), self.runtime.signal()
        self._closing.set()
        self._up.set()

    def pause(self) -> None:
        """Stops reading, so that the broker has to hold back. For a connection with a single user."""
        if self._paused is None:
            self._paused = self.runtime.signal()

    def resume(self) -> None:
        paused, self._paused = self._paused, None
        if paused is not None:
            paused.set()

    async def _keep(self) -> None:
        with self.runtime.lock:
            if self.begun:  # a call of `open` that was interrupted has begun it
                return
            self.begun = True
        tried = 0  # addresses, one after the other, since there was a connection
        while not self.closed:
            before = self.generation
            limit = FIRST_SIGN if (tried + 1) % len(self.addresses) else GREETING_SECONDS
            try:
                stream = await self.runtime.dial(*self.address, limit, self._security.context)
            except ssl.SSLError as error:
                self._tell(f"{self.address}: no TLS with it ({reason(error)})")
            except OSError as error:
                self._tell(no_broker(self.addresses if tried + 1 >= len(self.addresses) else [self.address], error))
            else:
                try:
                    await self._converse(stream, limit)
                finally:
                    stream.close()
                    self._lost(self.trouble)
                if self._dropped:
                    self.address = self._next_address()
            tried = 0 if self.generation != before else tried + 1
            if tried:
                self.address = self._next_address()
            if tried % len(self.addresses) == 0:
                self._tried.set()
                if not self.closed:
                    await self._closing.wait(self._backoff.pause())

    def _next_address(self) -> Address:
        """The address after that of the last try."""
        addresses = self.addresses
        at = addresses.index(self.address) + 1 if self.address in addresses else 0
        return addresses[at % len(addresses)]

    async def _converse(self, stream: ClientStream, first: float) -> None:
        """Reads until the connection is lost. `first`: seconds until something must have come."""
        conversation = Conversation(self._ids)
        with self.runtime.lock:
            if self.closed:
                return
            self._stream = stream
            self._heard, self._probed, self._renewed_at, self._dropped = self.runtime.now(), None, math.inf, ""
            if self.closed:  # `abandon` has closed it, and had not seen the stream
                return
        pinged = True
        greeting_ends = self.runtime.now() + first
        self._tell(self.trouble if self._refusal else f"the connection to {self.address} was lost")
        try:
            self._ping(conversation, stream)
            while True:
                paused = self._paused  # once: another thread may call `resume`
                if paused is not None and not self.closed:
                    await paused.wait()
                greeted = self._conversation is conversation
                now = self.runtime.now()
                if now >= self._renewed_at and self.pong is not None:
                    try:
                        self._log_in(conversation, stream, self.pong.mechanisms or ())
                    except ConfigError:  # there is no token now; the session lasts a little longer
                        self._renewed_at = now + RETRIED
                seconds = min(self._keepalive, self._renewed_at - now) if greeted else greeting_ends - now
                data = await stream.receive(seconds)
                if data and not greeted and data.startswith(TLS_ALERT):
                    self._tell(f"{self.address} speaks TLS: connect with ca= or tls=True (--ca, --tls)")
                    return
                if data:
                    # A broker that has begun to answer has all the time for that.
                    greeting_ends, first = greeting_ends + GREETING_SECONDS - first, GREETING_SECONDS
                    pinged, self._probed = False, None
                    self._heard = self.runtime.now()
                    conversation.receive(data)
                elif self._dropped:
                    self._tell(self._dropped)
                    return
                elif data is not None:
                    self._tell(f"the broker at {self.address} closed the connection{'' if greeted else NO_GREETING}")
                    return
                elif greeted and self.runtime.now() >= self._renewed_at:
                    continue
                elif pinged or not greeted:
                    self._tell(f"{self.address} accepts connections but does not answer")
                    return
                elif self._paused is None:
                    pinged = True
                    self._ping(conversation, stream)
        except OSError as error:
            self._tell(self._dropped or f"the connection to {self.address} was lost ({reason(error)})")
        except ConnectionLost as error:
            self._tell(f"{self.address}: {error}")
        except (AuthenticationFailed, ConfigError) as error:
            self._refused(error, stream)
        except KrappyError as error:
            self._tell(f"what listens at {self.address} does not speak Krappy's protocol: {error}")

    def _tell(self, trouble: str) -> None:
        """Notes why there is no connection. After `close`, that stays the reason."""
        with self.runtime.lock:
            if not self.closed:
                self.trouble = trouble

    def _ping(self, conversation: Conversation, stream: ClientStream) -> None:
        def answered(pong: Any) -> None:
            if not isinstance(pong, Pong):
                return
            if pong.mechanisms and pong.principal is None:
                self._log_in(conversation, stream, pong.mechanisms)
                return
            with self.runtime.lock:
                self.pong = pong
                conversation.allow(pong.max_frame)
                if self._stream is stream and not self.closed and self._conversation is not conversation:
                    self._conversation, self._refusal = conversation, None
                    self.generation += 1
                    self._backoff.reset()
                    self._up.set()
                    self._tried.set()

        id, data = conversation.ask(Ping(self._security.is_broker), Pong, answered)
        if not stream.send(data, patience=0.0):  # the reader must not wait; what fills the socket gets answers too
            with self.runtime.lock:
                conversation.forget(id)

    def _log_in(self, conversation: Conversation, stream: ClientStream, mechanisms: Sequence[str]) -> None:
        """Called in the task or thread that reads. Raises AuthenticationFailed, ConfigError."""
        self._renewed_at = math.inf
        login = ClientLogin(self._security, mechanisms)

        def answered(answer: Any) -> None:
            if isinstance(answer, KrappyError):
                self._refused(answer, stream)
            else:
                following = login.step(answer.data, done=answer.done)
                if not answer.done:
                    say("", following)
                    return
                if answer.lifetime:
                    self._renewed_at = self.runtime.now() + max(SOONEST, RENEWED * answer.lifetime / 1000)
                if self._conversation is not conversation:
                    self._ping(conversation, stream)

        def say(mechanism: str, data: bytes) -> None:
            _, frame = conversation.ask(Authenticate(mechanism, data), Authenticated, answered)
            if not stream.send(frame, patience=PATIENCE):
                self._refused(RequestTimeout("the broker takes no login"), stream)

        say(login.mechanism, login.first)

    def _refused(self, error: KrappyError, stream: ClientStream) -> None:
        with self.runtime.lock:
            if not self.closed and not isinstance(error, ConnectionLost):
                self._refused_at = self.runtime.now() if self._refusal is None else self._refused_at
                self._refusal = error
                self._dropped = self.trouble = f"{self.address} does not let this client in: {error}"
        stream.end()

    def _lost(self, why: str) -> None:
        with self.runtime.lock:
            conversation, self._conversation = self._conversation, None
            self._stream = None
            if self._up.is_set() and not self.closed:
                self._up = self.runtime.signal()
            for tell in self.told_of_loss:
                tell()
        if conversation is not None:
            conversation.end(lambda: ConnectionLost(why, address=str(self.address)))

    # --- requests -----------------------------------------------------------------------------------------------

    def post(
        self,
        request: Request,
        answer: type[Answer],
        reply: Reply,
        generation: int | None = None,
        patience: float | None = None,
    ) -> int:
        """Sends now; `reply` will be called with the answer or an error. Returns the request's id, for `forget`.

        When it raises, nothing was sent: ConnectionLost when there is no connection, or not that of `generation`;
        FrameTooLarge when the request is larger than the broker accepts; RequestTimeout when the socket has no room
        for `patience` seconds (None: no limit).
        """
        with self.runtime.lock:
            conversation, stream = self._conversation, self._stream
            if conversation is None or stream is None or generation not in (None, self.generation):
                raise ConnectionLost(self.trouble, address=str(self.address))
            id, data = conversation.ask(request, answer, reply)
            limit = DEFAULT_LIMIT if self.pong is None else self.pong.max_frame
            if len(data) - 4 > limit:
                conversation.forget(id)
                raise FrameTooLarge(f"a {type(request).__name__} of {len(data)} bytes; the broker takes {limit}")
        try:
            taken = stream.send(data, conversation.waiting <= 1 or len(data) >= LARGE, patience)
        except OSError:
            stream.end()  # its reader then ends the conversation, and with it this request
            return id
        if not taken:
            self.forget(id)
            text = f"the broker took no {type(request).__name__} in {patience:g} s"
            raise RequestTimeout(text, address=str(self.address))
        return id

    def tell(self, request: Request, answer: type[Answer], generation: int | None = None) -> None:
        """Sends a request whose answer nobody waits for, unless there is no connection, or no room on it: it only frees
        what the broker would keep until the connection ends."""
        with suppress(ConnectionLost, RequestTimeout):
            self.post(request, answer, lambda _: None, generation, PATIENCE)

    @property
    def broken(self) -> str:
        """Why there is no connection now; empty while there is one."""
        return self.trouble if self._conversation is None else ""

    @property
    def refusal(self) -> KrappyError | None:
        """Why the broker has not let the user in for the link's timeout: who waits longer waits in vain."""
        return self._refusal if self.runtime.now() >= self._refused_at + self.timeout else None

    def lives(self, generation: int) -> bool:
        """Whether the connection of that generation still exists."""
        return generation == self.generation and self._conversation is not None

    def probe(self, silence: float | None) -> None:
        """Sends the ping that `silent` counts from, once nothing has come for `silence` seconds though answers are
        waited for. None: at once. To be called again and again."""
        now = self.runtime.now()
        with self.runtime.lock:
            conversation = self._conversation
            if conversation is None or self._paused is not None:
                self._heard, self._probed = now, None
                return
            if self._probed is not None:
                return
            if silence is not None:
                if not conversation.waiting:
                    self._heard = now
                if now - self._heard < silence:
                    return
            self._probed = now
        with suppress(ConnectionLost, RequestTimeout):
            self.post(Ping(), Pong, lambda _: None, patience=0.0)

    def silent(self, seconds: float) -> bool:
        """Whether no byte has come for so long since the ping of `probe`."""
        probed = self._probed
        return probed is not None and self._paused is None and self.runtime.now() - probed >= seconds

    def drop(self, why: str) -> None:
        """Ends the connection, as if it were lost. The next one is to another address, if there are several."""
        with self.runtime.lock:
            stream, self._dropped = self._stream, why
        if stream is not None:
            stream.end()

    async def ends(self, seconds: float) -> bool:
        """Waits for `close`. False when `seconds` passed first."""
        return await self._closing.wait(seconds)

    def forget(self, id: int) -> None:
        """The answer to this request will be dropped, and its reply not called."""
        with self.runtime.lock:
            if self._conversation is not None:
                self._conversation.forget(id)

    async def ready(self, deadline: float) -> int:
        """Waits for a connection and returns its generation. Raises ConnectionLost at the deadline, or when closed."""
        while True:
            up = self._up
            with self.runtime.lock:
                if self._conversation is not None:
                    return self.generation
            left = deadline - self.runtime.now()
            if self.closed or left <= 0 or not await up.wait(left):
                raise ConnectionLost(self.trouble, address=str(self.address))

    async def ask(
        self,
        request: Request,
        answer: type[A],
        *,
        again: bool = True,
        generation: int | None = None,
        timeout: float | None = None,
        patience: float | None = None,
        abandoned: Callable[[A], None] | None = None,
        others: bool = False,
    ) -> A:
        """Sends a request and returns its answer. With `generation`, it is sent on that connection only, and never
        again after its loss.

        `again`: it is also sent again when the connection is lost before the answer, though the broker may have applied
        it; not for requests that do more the second time. After a retriable error that says that nothing was applied it
        is always sent again. `others`: the caller asks other brokers if this one is cut off from ZooKeeper. (`repeats`)

        `timeout` in seconds; None: the link's own. `patience`: seconds after which retriable errors are raised, too;
        None: `timeout`. `abandoned` gets an answer that comes after the caller was cancelled or timed out, to undo what
        the request did. Raises the broker's error, ConnectionLost, RequestTimeout.
        """
        seconds = self.timeout if timeout is None else timeout
        deadline = self.runtime.now() + seconds
        until = deadline if patience is None else deadline - seconds + patience
        backoff = Backoff()
        said: KrappyError | None = None
        while True:
            on = await self.ready(deadline) if generation is None else generation
            slot = ReplySlot(self.runtime.signal())
            try:
                id = self.post(request, answer, slot, on, max(0.0, deadline - self.runtime.now()))
            except ConnectionLost:
                if generation is None and not self.closed:
                    continue
                raise
            answered = False
            try:
                answered = await slot.wait(max(0.0, deadline - self.runtime.now()))
            finally:
                if not answered:
                    slot.abandon(abandoned)
                    if abandoned is None:
                        self.forget(id)
            if not answered:
                # A caller that gives less has spent the rest of its time on other brokers, or connections.
                within = f"in {self.timeout:g} s" if seconds > 0.9 * self.timeout else "in time"
                text = f"no answer to {type(request).__name__} {within}"
                raise said or RequestTimeout(text, address=str(self.address))
            if isinstance(slot.result, answer):
                return slot.result
            error: KrappyError = slot.result
            if isinstance(error, ConnectionLost) and not self.lives(on):
                if not again or generation is not None or self.closed:
                    raise error
                continue
            repeated = repeats(error, again=again, here=generation is not None, others=others)
            if not repeated or self.runtime.now() >= until:
                raise error
            said = error
            await self.runtime.sleep(max(0.0, min(backoff.pause(), until - self.runtime.now())))

    async def drained(self, seconds: float | None = None) -> bool:
        """Waits while much of what was posted still waits for the socket. False when that still holds after
        `seconds`."""
        stream = self._stream
        return stream is None or await stream.drained(seconds)
