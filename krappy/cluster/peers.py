"""A link to another broker: one connection to its Kafka listener.

- Requests may be asked at the same time. They are sent in the order in which they were asked, and their answers come in
  that order.
- The connection is made when the first request needs it. Whatever goes wrong with one request ends it, and then nobody
  knows what became of the other requests: all of them fail, and the next request makes a new connection. Nothing is
  sent twice.
- Where users share a link, they take turns (`together`): else a user whose work needs many requests would keep those of
  all others waiting, as another broker serves most kinds of them one by one.
- The longer a broker does not answer, the longer the pause before the next connection. An attempt to connect is made
  for all who wait when it begins: if it fails, all of them fail. Else each would make its own, one after another.
- Both brokers may have different software. So a connection begins with ApiVersions, and each request is asked in the
  highest version that both know.
- If brokers have to log in to each other, that comes next. If a login holds only for some time (KIP-368), the
  connection is logged in again before the next request.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
from math import inf
from typing import Any, TypeVar

import trio

from krappy.cluster.inter_broker import InterBroker
from krappy.cluster.streams import Address, ByteStream, open_stream
from krappy.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    FrameTooLarge,
    KrappyError,
    ProtocolError,
    RequestTimeout,
)
from krappy.ports.audit import whose
from krappy.turns import UserTurns
from krappy.wire.kafka import RANGES, ApiKey, decode_response, encode_request
from krappy.wire.mistaken import spoken

CHUNK = 256 << 10  # bytes that are received at a time
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
TIMEOUT_S = 10.0  # for a connection, and between two parts of an answer
LARGEST = 64 << 20  # bytes of an answer
RENEWED = 0.8  # after this part of the time for which a login holds, the connection is logged in again
SOFTWARE = {"client_software_name": "krappy", "client_software_version": "1"}
Message = dict[str, Any]
T = TypeVar("T")


class PeerLink:
    """`address()`: where the broker is now; None: it is not registered."""

    def __init__(
        self,
        address: Callable[[], Address | None],
        client_id: str,
        way: InterBroker = InterBroker(),  # noqa: B008  (a constant)
        *,
        timeout_s: float = TIMEOUT_S,
        silence_s: float | None = None,
        largest: int = LARGEST,
        together: int | None = None,
    ) -> None:
        """`silence_s`: in place of `timeout_s` while it is connected and logged in. `together`: how many requests are
        asked at the same time, of one user as many as are left for others; None: any number."""
        self._address, self._client_id, self._way = address, client_id, way
        self._timeout_s, self._largest = timeout_s, largest
        self._silence_s = timeout_s if silence_s is None else silence_s
        self._turns = None if together is None else UserTurns(together)
        self._sending = trio.StrictFIFOLock()
        self._connection: _Connection | None = None
        self._pause = 0.0  # seconds before the next attempt to connect
        self._not_before = 0.0  # when it may begin, on trio's clock
        self._attempts = 0  # to connect, that were begun
        self._refusal: tuple[int, KrappyError] | None = None  # the number of the last one that failed, and why

    async def ask(
        self,
        api_key: ApiKey,
        body: Mapping[str, Any],
        *,
        least: int = 0,
        held_s: float = 0.0,
        begun: Callable[[], object] = lambda: None,
    ) -> Message:
        """The answer to a request.

        `least`: the lowest version that will do. `held_s`: how long the broker may wait before it answers. `begun()` is
        called when the first part of the answer is there. A cancelled request ends the connection, and so the broker
        does not wait any longer. But where users take turns, one that was sent goes on until it is answered: a user who
        leaves would end the requests of others, too.

        Raises ConnectionLost and RequestTimeout, and ProtocolError for an answer that can't be understood, or a broker
        that does not know the request. The request may have been done nevertheless.
        """
        before = self._attempts
        if self._turns is None:
            return await self._ask(before, api_key, body, least, held_s, begun)
        async with self._turns.one(whose()):
            return await self._ask(before, api_key, body, least, held_s, begun)

    async def _ask(
        self,
        before: int,
        api_key: ApiKey,
        body: Mapping[str, Any],
        least: int,
        held_s: float,
        begun: Callable[[], object],
    ) -> Message:
        """`before`: how many attempts to connect had begun when the request came."""
        with trio.CancelScope() as kept:
            async with self._sending:
                connection = await self._connected(before)
                kept.shield = self._turns is not None  # from here on a cancel would end the requests of others
                await self._renew(connection)
                await self._attempt(connection, connection.send(api_key, least, body))
            answer = await self._attempt(connection, connection.answer(held_s, begun))
        self._pause = 0.0
        return answer

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent at once."""
        known = self._connection
        return known is not None and not known.is_over and trio.current_time() < known.renewed_at

    async def open(self) -> None:
        """Connects and logs in, if the next request would have to. Raises as `ask`."""
        before = self._attempts
        async with self._sending:
            await self._renew(await self._connected(before))

    async def _connected(self, before: int) -> _Connection:
        """The connection, which is made if there is none. Raises what `ask` does."""
        if self._connection is None or self._connection.is_over:
            self._connection = await self._connect_for_all(before)
        return self._connection

    async def _renew(self, connection: _Connection) -> None:
        """Logs in again once that is due. Raises what `ask` does."""
        if trio.current_time() >= connection.renewed_at:
            connection.timeout_s = self._timeout_s
            await self._attempt(connection, self._log_in(connection))
            connection.timeout_s = self._silence_s

    async def _connect_for_all(self, before: int) -> _Connection:
        """Raises what `ask` does."""
        if self._refusal is not None and self._refusal[0] > before:
            raise self._refusal[1].copy()
        self._attempts = number = self._attempts + 1
        try:
            return await self._connect()
        except KrappyError as error:
            self._refusal = number, error.copy()
            raise

    async def _connect(self) -> _Connection:
        """Raises what `ask` does."""
        await trio.sleep_until(self._not_before)
        address = self._address()
        if address is None:
            self._failed()
            raise ConnectionLost("the broker is not registered, or has no such listener")
        try:
            with trio.fail_after(self._timeout_s):
                stream = await open_stream(address, self._way.tls)
        except OSError as error:
            self._failed()
            raise ConnectionLost(f"{_shown(address)}: {error}") from error
        except trio.TooSlowError:
            self._failed()
            raise RequestTimeout(f"{_shown(address)}: no connection within {self._timeout_s:g} s") from None
        connection = _Connection(stream, address, self._client_id, self._timeout_s, self._largest)
        connection.take_versions(await self._attempt(connection, connection.ask(ApiKey.API_VERSIONS, SOFTWARE)))
        if self._way.login is not None:
            await self._attempt(connection, self._log_in(connection))
        connection.timeout_s = self._silence_s
        return connection

    async def _log_in(self, connection: _Connection) -> None:
        """Raises ConnectionLost when the broker does not let this one in."""
        assert self._way.login is not None
        try:
            lifetime_ms = await self._way.login.log_in(connection.ask)
        except (AuthenticationFailed, ConfigError) as error:
            raise ConnectionLost(f"{connection}: {error.text}") from error
        connection.renewed_at = trio.current_time() + RENEWED * lifetime_ms / 1000 if lifetime_ms else inf

    async def _attempt(self, connection: _Connection, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives. Its failure, and its cancellation, end the connection."""
        try:
            return await work
        except KrappyError:
            self._failed()
            connection.end()
            raise
        except BaseException:
            connection.end()
            raise

    def _failed(self) -> None:
        self._pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause))
        self._not_before = trio.current_time() + self._pause * random.uniform(0.5, 1)

    def close(self) -> None:
        """Ends the connection. The next request makes a new one."""
        if self._connection is not None:
            self._connection.end()


class _Connection:
    """One connection, with the requests that wait for their answers."""

    def __init__(self, stream: ByteStream, address: Address, client_id: str, timeout_s: float, largest: int) -> None:
        self.is_over = False
        self.renewed_at = inf  # when it has to be logged in again, on trio's clock
        self._stream, self._address, self._client_id = stream, address, client_id
        self.timeout_s, self._largest = timeout_s, largest
        self._receiving = trio.StrictFIFOLock()  # so that answers go to the waiting requests in their order
        self._asked: list[tuple[int, ApiKey, int]] = []  # correlation id, API and version of the requests that wait
        self._number = 0
        self._got = bytearray()  # what has come of the next answer
        self._versions = {int(ApiKey.API_VERSIONS): (3, 3)}  # lowest and highest, by API

    def __str__(self) -> str:
        return _shown(self._address)

    def take_versions(self, answer: Message) -> None:
        self._versions = {each["api_key"]: (each["min_version"], each["max_version"]) for each in answer["api_keys"]}

    def _version(self, api_key: ApiKey, least: int) -> int:
        """The highest version that both brokers know, and at least `least`. Raises ProtocolError."""
        low, high = RANGES[api_key]
        their_low, their_high = self._versions.get(api_key, (0, -1))
        found = min(high, their_high)
        if found < max(low, least, their_low):
            has = f"versions {their_low} to {their_high}" if their_high >= 0 else "no version"
            raise ProtocolError(
                f"{self}: the broker serves {has} of {api_key.name}, and one from {max(low, least)} to {high} is "
                "needed: its software is too old or too new"
            )
        return found

    async def send(self, api_key: ApiKey, least: int, body: Mapping[str, Any]) -> None:
        version = self._version(api_key, least)
        self._number = (self._number + 1) & 0x7FFFFFFF
        data = encode_request(api_key, version, self._number, self._client_id, body)
        try:
            with trio.fail_after(self.timeout_s):
                await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost(f"{self}: the connection was lost") from error
        except trio.TooSlowError:
            raise RequestTimeout(f"{self}: no request could be sent for {self.timeout_s:g} s") from None
        self._asked.append((self._number, api_key, version))

    async def ask(self, api_key: ApiKey, body: Mapping[str, Any]) -> Message:
        """The answer to a request for which the broker does not wait."""
        await self.send(api_key, 0, body)
        return await self.answer(0.0, lambda: None)

    async def answer(self, held_s: float, begun: Callable[[], object]) -> Message:
        """The answer to the caller's request. To be called in the order in which the requests were sent."""
        async with self._receiving:
            number, api_key, version = self._asked.pop(0)
            frame = await self._frame(held_s, begun)
            correlation_id, answer = decode_response(api_key, version, frame)
            if correlation_id != number:
                raise ProtocolError(f"{self}: an answer to request {correlation_id}, where {number} comes next")
            return answer

    async def _frame(self, held_s: float, begun: Callable[[], object]) -> memoryview:
        """The bytes of the next answer, after its size."""
        await self._receive(4, CHUNK, held_s + self.timeout_s)
        got = self._got
        size = int.from_bytes(got[:4], "big", signed=True)
        if spoken(bytes(got[:4])) == "TLS":
            raise ProtocolError(f"{self}: the listener there has TLS, and this broker connects to it without")
        if not 4 <= size <= self._largest:
            raise FrameTooLarge(f"{self}: an answer of {size} bytes; the limit is {self._largest}", limit=self._largest)
        begun()
        end = 4 + size
        while len(got) < end:
            await self._receive(len(got) + 1, min(CHUNK, end - len(got)), self.timeout_s)
        self._got = got[end:]
        return memoryview(got)[4:end]

    async def _receive(self, least: int, most: int, seconds: float) -> None:
        """Receives until there are `least` bytes, at most `most` at a time. `seconds`: how long each time may take."""
        while len(self._got) < least:
            try:
                with trio.fail_after(seconds):
                    data = await self._stream.receive_some(most)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionLost(f"{self}: the connection was lost before the answer came") from error
            except trio.TooSlowError:
                raise RequestTimeout(f"{self}: no answer for {seconds:g} s") from None
            if not data:
                raise ConnectionLost(f"{self}: the broker closed the connection before the answer came")
            self._got += data

    def end(self) -> None:
        """Closes the connection at once. Who waits for an answer gets ConnectionLost."""
        self.is_over = True
        self._stream.close()


def _shown(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
