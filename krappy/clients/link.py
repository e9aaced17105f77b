"""A connection to a broker that is made again whenever it is lost, and the requests that survive that.

What is sent again, and what is not: `ask` repeats a request when the broker answers with a retriable error (it was
not applied then), and, with `again`, when the connection was lost after the request had been sent (it may have been
applied: right for reads, and for whatever does nothing the second time). All tries together take `timeout` at most;
when it is over, the broker's last error says why, if there was one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from krappy.clients.backoff import Backoff
from krappy.clients.conversation import Conversation, Reply
from krappy.clients.runtime import ClientRuntime, ClientSignal, ClientStream
from krappy.clients.values import Address
from krappy.errors import ConnectionLost, FrameTooLarge, KrappyError, RequestTimeout
from krappy.wire.frames import DEFAULT_LIMIT
from krappy.wire.messages import Answer, Ping, Pong, Request

A = TypeVar("A", bound=Answer)
GREETING_SECONDS = 10.0  # for a connection to be made, and for a first answer on it
NO_GREETING = (
    " instead of answering: is that the port of Krappy's native protocol? (Kafka's clients have one of their own)"
)
LARGE = 16 << 10  # bytes of a request that is sent alone
BACKLOG = 1 << 20  # bytes waiting for the socket from which on large senders hold back


class ReplySlot:
    """A reply that someone waits for. Waiting may be cancelled and begun again."""

    __slots__ = ("_signal", "instead", "result")

    def __init__(self, signal: ClientSignal) -> None:
        self._signal = signal
        self.instead: Callable[[Any], None] | None = None  # gets an answer that nobody waits for any more
        self.result: Any = None

    def __call__(self, result: Any) -> None:
        self.result = result
        self._signal.set()
        if self.instead is not None:
            self.abandon(self.instead)

    def abandon(self, instead: Callable[[Any], None] | None) -> None:
        """Nobody waits any more: `instead` gets the answer, which may be there already."""
        self.instead = instead
        if instead is not None and self._signal.is_set():
            self.instead = None
            if isinstance(self.result, Answer):
                instead(self.result)

    def is_set(self) -> bool:
        return self._signal.is_set()

    async def wait(self, seconds: float | None = None) -> bool:
        return await self._signal.wait(seconds)


class Link:
    """`timeout` seconds bound one operation; `keepalive` is how often a silent peer is asked whether it lives."""

    def __init__(
        self,
        runtime: ClientRuntime,
        address: Address,
        random: Callable[[], float],
        timeout: float = 30.0,
        keepalive: float = 30.0,
    ) -> None:
        self.runtime = runtime
        self.address = address
        self.timeout = timeout
        self.generation = 0  # counts the connections made; a handle is good for one of them
        self.pong: Pong | None = None  # what the broker last said of itself
        self._keepalive = keepalive
        self._backoff = Backoff(random)
        self._random = random
        self._ids = itertools.count(1)  # never used twice, so that a late `forget` hits nobody else
        self._stream: ClientStream | None = None
        self._conversation: Conversation | None = None  # while requests may be sent
        self._up = runtime.signal()  # set while they may
        self._begun = False
        self._tried = runtime.signal()  # the first try is over
        self.closed = False  # for good
        self._closing = runtime.signal()  # set when it is
        self.told_of_closing: set[Callable[[], object]] = set()  # who waits for nothing that the connection brings
        self._paused: ClientSignal | None = None
        self.trouble = ""  # why there is no connection

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects; who was cancelled in it may call it again. Raises ConnectionLost when nothing answers at the
        address now: only later losses are healed."""
        if not self._begun:
            self._begun = True
            self.runtime.spawn(self._keep, f"krappy link to {self.address}")
        await self._tried.wait()
        if self._conversation is None:
            trouble = self.trouble
            self.close()
            self.trouble = trouble
            raise ConnectionLost(trouble, address=str(self.address))

    def close(self) -> None:
        """Ends it; whoever waits gets ConnectionLost."""
        with self.runtime.lock:
            self.trouble = "the client is closed"
            self.closed = True
            self._closing.set()
            self._tried.set()
            if self._stream is not None:
                self._stream.end()
            self._lost(self.trouble)
            self._up.set()
            if self._paused is not None:
                self._paused.set()
            for tell in self.told_of_closing:
                tell()

    def disown(self, why: str) -> None:
        """In a process that was forked off: the connection is the parent's, and nothing here may touch it."""
        self._stream = self._conversation = None
        self.trouble = why
        self.closed = True
        self._closing, self._up = self.runtime.signal(), self.runtime.signal()
        self._closing.set()
        self._up.set()

    def pause(self) -> None:
        """Stops reading, so that the broker meets back-pressure. For a connection with a single user."""
        if self._paused is None:
            self._paused = self.runtime.signal()

    def resume(self) -> None:
        paused, self._paused = self._paused, None
        if paused is not None:
            paused.set()

    async def _keep(self) -> None:
        while not self.closed:
            try:
                stream = await self.runtime.dial(self.address.host, self.address.port, GREETING_SECONDS)
            except OSError as error:
                self._tell(_no_broker(self.address, error))
            else:
                try:
                    await self._converse(stream)
                finally:
                    stream.close()
                    self._lost(self.trouble)
            self._tried.set()
            if not self.closed:
                await self._closing.wait(self._backoff.pause())

    async def _converse(self, stream: ClientStream) -> None:
        """Reads until the connection is lost."""
        conversation = Conversation(self._ids)
        with self.runtime.lock:
            if self.closed:
                return
            self._stream = stream
        pinged = True
        greeting_ends = self.runtime.now() + GREETING_SECONDS
        self._tell(f"the connection to {self.address} was lost")
        try:
            self._ping(conversation, stream)
            while True:
                if self._paused is not None:
                    await self._paused.wait()
                greeted = self._conversation is conversation
                data = await stream.receive(self._keepalive if greeted else greeting_ends - self.runtime.now())
                if data:
                    pinged = False
                    conversation.receive(data)
                elif data is not None:
                    self._tell(f"the broker at {self.address} closed the connection{'' if greeted else NO_GREETING}")
                    return
                elif pinged or not greeted:
                    self._tell(f"{self.address} accepts connections but does not answer")
                    return
                elif self._paused is None:
                    pinged = True
                    self._ping(conversation, stream)
        except OSError as error:
            self._tell(f"the connection to {self.address} was lost ({_reason(error)})")
        except ConnectionLost as error:
            self._tell(f"{self.address}: {error}")
        except KrappyError as error:
            self._tell(f"what listens at {self.address} does not speak Krappy's protocol: {error}")

    def _tell(self, trouble: str) -> None:
        """Why there is no connection; when this was closed, that is why, whatever its reader saw of it."""
        with self.runtime.lock:
            if not self.closed:
                self.trouble = trouble

    def _ping(self, conversation: Conversation, stream: ClientStream) -> None:
        def answered(pong: Any) -> None:
            if not isinstance(pong, Pong):
                return
            with self.runtime.lock:
                self.pong = pong
                conversation.allow(pong.max_frame)
                if self._stream is stream and not self.closed and self._conversation is not conversation:
                    self._conversation = conversation
                    self.generation += 1
                    self._backoff.reset()
                    self._up.set()
                    self._tried.set()

        id, data = conversation.ask(Ping(), Pong, answered)
        if not stream.send(data, patience=0.0):  # who reads waits for no sender; what fills the socket asks as well
            with self.runtime.lock:
                conversation.forget(id)

    def _lost(self, why: str) -> None:
        with self.runtime.lock:
            conversation, self._conversation = self._conversation, None
            self._stream = None
            if self._up.is_set() and not self.closed:
                self._up = self.runtime.signal()
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
        """Sends now; `reply` will be called with the answer or an error. The request's id, for `forget`.

        Raises, having sent nothing, ConnectionLost when there is no connection, or not that of `generation`,
        FrameTooLarge for what the broker would close the connection for, and RequestTimeout when the connection has no
        room for `patience` seconds.
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

    @property
    def broken(self) -> str:
        """Why there is no connection now; empty while there is one."""
        return self.trouble if self._conversation is None else ""

    def lives(self, generation: int) -> bool:
        """Whether the connection of that generation is there."""
        return generation == self.generation and self._conversation is not None

    def forget(self, id: int) -> None:
        with self.runtime.lock:
            if self._conversation is not None:
                self._conversation.forget(id)

    async def ready(self, deadline: float) -> int:
        """Waits for a connection; its generation. Raises ConnectionLost at the deadline, or when closed."""
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
        abandoned: Callable[[A], None] | None = None,
    ) -> A:
        """The answer to a request. With `generation`, only on that connection, and never sent again after its loss.

        `again`: it is sent anew when the connection is lost before the answer, though it may have been carried out.
        What would do more the second time needs `again=False`. What the broker refuses for now is asked again in any
        case.

        `timeout` in seconds; None: the link's own. `abandoned` gets an answer that comes after its asker was cancelled
        or gave up, to undo what it stands for. Raises the broker's error, ConnectionLost, RequestTimeout.
        """
        seconds = self.timeout if timeout is None else timeout
        deadline = self.runtime.now() + seconds
        backoff = Backoff(self._random)
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
                raise said or RequestTimeout(
                    f"no answer to {type(request).__name__} in {seconds:g} s", address=str(self.address)
                )
            result = slot.result
            if isinstance(result, answer):
                return result
            error: KrappyError = result
            if isinstance(error, ConnectionLost):
                if not again or generation is not None or self.closed:
                    raise error
            elif error.retriable and self.runtime.now() < deadline:
                said = error
                pause = min(backoff.pause(), deadline - self.runtime.now())
                await self.runtime.sleep(max(0.0, pause))
            else:
                raise error

    async def drained(self, seconds: float | None = None) -> bool:
        """Waits while much of what was posted is still here, so that small requests find their way between. Whether
        that is over within so many seconds."""
        stream = self._stream
        return stream is None or stream.backlog <= BACKLOG or await stream.drained(seconds)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _no_broker(address: Address, error: OSError) -> str:
    return (
        f"no broker at {address} ({_reason(error)}): is one running? `krappy serve` starts one; another address is "
        f"given to connect() or in $KRAPPY_ADDRESS"
    )
