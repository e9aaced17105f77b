"""Connections as handlers see them, and the server that holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypedDict, TypeVar

from krappy.core.security.operations import Grant
from krappy.core.security.principal import Principal
from krappy.core.security.quota import Payer
from krappy.errors import AuthorizationFailed, KrappyError
from krappy.measures import Histogram
from krappy.ports.access import AccessPort
from krappy.ports.broker import BrokerPort
from krappy.ports.registrations import Registered, RegistrationFacts
from krappy.waiting import Later
from krappy.wire.messages import Answer

T = TypeVar("T")
S = TypeVar("S")


class LoginPort(Protocol):
    """How a peer says who it is. A failure ends the connection, once it is answered."""

    user: str | None  # who has logged in
    lifetime_ms: int  # how long after its last login it has to log in again; 0: never

    @property
    def mechanisms(self) -> Sequence[str]: ...
    def begin(self, mechanism: str) -> None:
        """Raises UnsupportedMechanism, IllegalLogin."""

    async def step(self, data: bytes) -> tuple[bytes, bool]:
        """(what the peer is sent, whether it has logged in). Raises AuthenticationFailed, IllegalLogin."""


class SessionFacts(TypedDict):
    """What a connection's protocol tells of it. `client_id`: of Kafka's protocol."""

    client_id: str | None
    registrations: list[RegistrationFacts]


class ConnectionFacts(SessionFacts):
    """A connection now. `received_bytes`, `sent_bytes` and `requests` count since it began; `waiting_bytes` are of
    answers that the peer has not taken, `in_flight_bytes` of unanswered requests."""

    client: str
    protocol: str
    seconds: float
    received_bytes: int
    sent_bytes: int
    requests: int
    waiting_bytes: int
    in_flight_bytes: int


class PacedPort(Protocol):
    """The back-pressure of a session of any protocol."""

    @property
    def ready(self) -> bool:
        """Whether the peer keeps up with what it is sent, and there is memory for another answer."""

    async def writable(self) -> None:
        """Waits until it is `ready`."""

    @property
    def answer_bytes(self) -> int:
        """How large an answer that is made now should be at the most: less when memory is short."""

    def answering(self, limit: int) -> AbstractAsyncContextManager[int]:
        """`async with` while an answer is made that takes its time: gives how large it may be, up to `limit`."""

    @property
    def read_bytes(self) -> int:
        """As `answer_bytes`, for an answer with events: it is less, too, if a quota allows less in a second."""

    def reading(self, limit: int) -> AbstractAsyncContextManager[None]:
        """`async with` while an answer of about `limit` bytes, with events, is made, if others may begin meanwhile.
        Waits until the peer's user is within the quota. Raises Overloaded when that takes too long."""

    async def affordable(self, stands: Callable[[], bool] = ...) -> None:
        """Waits until it is writable, and its user is within the quota for reading, however long that takes; or soon
        after `stands` is false."""

    async def pause(self) -> None:
        """Lets others have their turn, in the middle of long work."""

    @property
    def proved_for(self) -> float:
        """Seconds until its peer has to log in anew; infinite: never."""

    @property
    def throttled(self) -> float:
        """Seconds for which `throttle` has kept it silent, over its life."""

    def throttle(self, seconds: float) -> None:
        """Begins no further request of the peer for so long: it is over a quota."""


class SessionPort(PacedPort, Protocol):
    """`address`: HOST:PORT of this broker as the peer is told it, which is the one that it used unless another one is
    advertised."""

    client: str
    max_frame: int
    address: str
    closed: bool  # its connection ends

    principal: Principal  # who the peer is; `access` is for it
    login: LoginPort | None  # None: nobody logs in at this listener
    access: AccessPort  # to whatever has a name
    says_broker: bool  # it says that it is another broker, which no quota limits
    patience: float  # seconds of silence after which its connection ends, if others may be silent for longer

    @property
    def payer(self) -> Payer:
        """Who pays for what is asked here."""

    @property
    def is_broker(self) -> bool:
        """Whether it is another broker."""

    @property
    def broker(self) -> BrokerPort: ...
    def add(self, registration: Registered, grants: Sequence[Grant], kept: int = 0) -> int:
        """A handle for a registration, which is closed with the connection, or when one of the `grants` that it stands
        on is not allowed any more. `kept`: about how many bytes of memory it keeps, if it may be many. Raises
        Overloaded, having closed it."""

    def standing_on(self, grants: Sequence[Grant]) -> AbstractContextManager[None]:
        """Around a wait: it ends when one of the grants is not allowed any more. Raises AuthorizationFailed then, even
        if the wait was over."""

    def registration(self, handle: int) -> Registered:
        """Raises UnknownHandle."""

    def find(self, handle: int, kind: type[T]) -> T:
        """A registration of this kind. Raises UnknownHandle, AuthorizationFailed when it is not allowed any more."""

    def revoked(self, handle: int) -> AuthorizationFailed | None:
        """Why a registration is not allowed any more; None: it is, or there is none."""

    def registered(self, handle: int) -> bool: ...
    def remove(self, handle: int) -> None:
        """Closes a registration. Raises UnknownHandle."""

    def forget(self, handle: int) -> None:
        """As `remove`, but nothing when it is gone already."""


class RequestTimesPort(Protocol):
    def observe(self, kind: int | str, seconds: float, times: int = 1) -> None: ...


class ServerNumbers(NamedTuple):
    """Counts since the server started, and the use of its memory. By protocol: `connections`, which are open now, and
    the bytes that were received and sent. `parked_bytes`: of requests that wait. `certificate_expires`: when the
    certificate for TLS expires, in seconds since the epoch; None: no listener has TLS. `handshakes_failed`: of TLS.
    `oauth_keys_age`: seconds since the keys of the identity provider were read, infinite if they never were; None:
    there is no provider."""

    connections: dict[str, int]
    accepted: int
    refused: int
    received_bytes: dict[str, int]
    sent_bytes: dict[str, int]
    budget_bytes: int
    budget_used_bytes: int
    parked_bytes: int
    stalls: int
    handshakes_failed: int
    certificate_expires: float | None
    oauth_keys_age: float | None


class ServerPort(Protocol):
    """The listeners and connections of every protocol, for the console and the metrics."""

    def describe_connections(self) -> Iterator[ConnectionFacts]: ...
    def measure(self) -> ServerNumbers: ...
    def request_times(self) -> Iterable[tuple[str, str, Histogram]]: ...
    def times(self, protocol: str) -> RequestTimesPort: ...
    def fault(self, error: Exception, kind: int) -> Exception: ...
    @property
    def report(self) -> Callable[..., None]: ...
    async def turn(self, whose: str) -> None:
        """Returns when it is the turn of this user, or address, to use the event loop for some ms."""


class NodeInfo(NamedTuple):
    """A broker, with the address that is advertised on one Kafka connection."""

    node_id: int
    host: str
    port: int
    rack: str | None


class KafkaSessionPort(PacedPort, Protocol):
    """One connection of Kafka's protocol."""

    client: str  # HOST:PORT of the peer, for people
    client_host: str
    listener: str  # the name of the listener that the peer connected to
    state: dict[str, Any]  # what handlers keep for the connection
    closed: bool  # the peer has left
    principal: Principal
    login: LoginPort | None
    access: AccessPort
    on_close: list[Callable[[], None]]  # called once when it ends
    knows_quotas: bool  # the answer that is being made may refuse a change of topics because of a quota
    is_broker: bool  # it is another broker, which no quota limits
    refusal: KrappyError | None  # what a Produce is answered with, because of a quota. Valid until the handler returns

    @property
    def broker(self) -> BrokerPort: ...
    async def until_mutable(self) -> None:
        """If the answer can't tell a refusal by a quota: waits while the client is over the quota for changes of
        topics. Returns after a while in any case."""

    def fetch_share(self) -> int | None:
        """How many bytes a Fetch should bring; 0: the client is over its quota; None: there is none."""

    def nodes(self) -> Mapping[int, NodeInfo]:
        """The live brokers, by id."""

    @property
    def client_id(self) -> str | None:
        """The client id of the request that is being handled. Valid until the handler first returns or awaits."""

    def gather(self, laters: Sequence[Later[T]], finish: Callable[[list[T | Exception]], S]) -> Later[S]:
        """A Later of `finish(results)`, once all are there; a result is a value, or the exception instead of it."""


class StreamPort(Protocol):
    async def send(self, answer: Answer, stands: Callable[[], bool] = ...) -> None:
        """Sends an answer once the peer's user is within the quota. `stands`: whether the answer may still be told.
        Once it may not, the wait for the quota ends, and the answer is not sent."""
