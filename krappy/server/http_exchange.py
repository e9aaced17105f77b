"""The requests of one HTTP connection, one after the other: from h11 to an application (ASGI 3, "http" scopes)."""

from __future__ import annotations

import re
from typing import Any

import h11
import trio

from krappy.server import http
from krappy.server.http_wire import Wire
from krappy.server.strangers import StrangerSteps
from krappy.wire import mistaken

ABSOLUTE = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE)  # a request's target as proxies get it
NO_BODY = (204, 304)
PARTS, PART = 1000, 64  # beyond its first 1000 chunks a body needs 64 bytes a chunk on average, since each takes time
UNWANTED = 32  # parts of a body that are skipped


class HttpExchange:
    """`steps`: does the work that its requests cause. `peer`, `here`: (host, port)."""

    def __init__(self, wire: Wire, steps: StrangerSteps, peer: tuple[str, int], here: tuple[str, int]) -> None:
        self._wire = wire
        self._steps = steps
        self._peer = peer
        self._here = here
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=http.MAX_HEAD)
        self.spoken: str | None = None  # the other protocol that the peer speaks
        self._broken: h11.RemoteProtocolError | None = None
        self._whole = False  # the request has come, with its body
        self._chunked = False  # the request's body comes in chunks
        self._bare = False  # the answer has no body, whatever the application sends
        self._ahead = 0  # bytes held beyond the whole request: h11 keeps them for the next ones
        self._parts = self._body = 0  # how many parts the request's body has so far, and how many bytes
        self._seconds = 0.0  # that parsing took, since `parsed` was asked last

    # --- requests

    async def next_request(self) -> h11.Request | None:
        """The next request; None when the peer has ended, was idle for too long, or sent something else (refused)."""
        begun = self._held() > 0
        seconds = http.HEAD_SECONDS if begun else http.KEEP_ALIVE_SECONDS
        first = b""
        with trio.move_on_after(seconds) as patience:
            while True:
                try:
                    event = await self._next_event() if self._held() else self._http.next_event()
                except h11.RemoteProtocolError as error:
                    found = mistaken.spoken(first)
                    self.spoken = None if found == mistaken.HTTP else found
                    if self.spoken == "TLS":
                        await self._wire.send(mistaken.TLS_ALERT)
                    else:
                        await self.refuse(error.error_status_hint, str(error) + mistaken.told(self.spoken))
                    return None
                if isinstance(event, h11.Request):
                    return await self._accepted(event)
                if event is not h11.NEED_DATA:
                    return None  # the peer has ended the connection
                data = await self._wire.receive()
                first = first or data[: mistaken.ENOUGH]
                self._http.receive_data(data)
                if data and not begun:
                    begun = True
                    patience.deadline = trio.current_time() + http.HEAD_SECONDS
        if begun:
            await self.refuse(408, f"the head of the request did not come within {http.HEAD_SECONDS:g} s")
        return None

    async def _accepted(self, request: h11.Request) -> h11.Request | None:
        if len(request.target) + sum(len(name) + len(value) for name, value in request.headers) > http.MAX_HEAD:
            await self.refuse(431, "the head of the request is too large")  # h11 limits only heads that are incomplete
            return None
        if len(request.headers) > http.HEADERS:
            await self.refuse(431, f"a request has at most {http.HEADERS} headers")
            return None
        named = {bytes(name) for name, _ in request.headers}
        if {b"content-length", b"transfer-encoding"} <= named:  # RFC 9112, section 6.3: request smuggling
            await self.refuse(400, "a request has Content-Length or Transfer-Encoding, and not both")
            return None
        if request.http_version not in (b"1.0", b"1.1"):
            await self.refuse(505, "this server speaks HTTP/1.1")
            return None
        self._whole = self._bare = False
        self._chunked = b"transfer-encoding" in named
        self._parts = self._body = 0
        return request

    def scope(self, request: h11.Request) -> dict[str, Any]:
        target, headers = request.target, [(bytes(name), bytes(value)) for name, value in request.headers]
        if absolute := ABSOLUTE.fullmatch(target):  # RFC 9112, section 3.2.2: the Host header does not count then
            host, target = absolute.groups()
            target = target if target.startswith(b"/") else b"/" + target
            headers = [(name, host if name == b"host" else value) for name, value in headers]
        path, _, query = target.partition(b"?")
        self._bare = request.method == b"HEAD"
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode("ascii"),
            "method": request.method.decode("ascii"),
            "scheme": self._wire.scheme,
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": self._peer,
            "server": self._here,
            "parsed": self.parsed,
        }

    def parsed(self) -> float:
        """For how many seconds requests were parsed since this was asked last."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _parse_took(self, seconds: float) -> None:
        self._seconds += seconds

    async def receive(self) -> dict[str, Any]:
        """For the application: the parts of the body, then `http.disconnect` when the peer sends no more."""
        while not self._whole:
            try:
                event = await self._next_part()
            except h11.RemoteProtocolError as error:
                self._broken = error
                break
            if isinstance(event, h11.Data):
                self._parts += 1
                self._body += len(event.data)
                if self._parts - PARTS > self._body / PART:
                    self._broken = h11.RemoteProtocolError("the chunks of the body are too small", 400)
                    break
                return {"type": "http.request", "body": bytes(event.data), "more_body": True}
            if isinstance(event, h11.EndOfMessage):
                self._whole = True
                self._ahead = self._held()
                return {"type": "http.request", "body": b"", "more_body": False}
            if event is not h11.NEED_DATA:
                break
            if self._http.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._wire.receive_body())
        while self._whole and not self._wire.gone:
            if self._ahead >= http.AHEAD:  # read no further
                await self._wire.until_it_leaves()
                break
            data = await self._wire.receive(http.AHEAD - self._ahead)
            self._http.receive_data(data)
            self._ahead += len(data)
            if not data:
                break
        await trio.lowlevel.checkpoint()
        return {"type": "http.disconnect"}

    async def _next_part(self) -> Any:
        """The next event of a body. A body of chunks is parsed in turns, like a head: it may have thousands of trailers
        (RFC 9112, section 7.1.2), and hundreds of bodies may come together. Raises h11.RemoteProtocolError."""
        return await self._next_event() if self._chunked else self._http.next_event()

    async def _next_event(self) -> Any:
        """The next event of h11, when it is this peer's turn. Raises h11.RemoteProtocolError."""
        return await self._steps.make(self._peer[0], self._http.next_event, self._parse_took)

    def _held(self) -> int:
        """How many bytes h11 holds that it has not parsed: never more than a head that is not whole, and `AHEAD`."""
        return len(self._http.trailing_data[0])

    # --- answers

    async def send(self, message: dict[str, Any]) -> None:
        """From the application. Dropped when the peer has gone; `receive` tells the application so."""
        if message["type"] == "http.response.start":
            status = int(message["status"])
            self._bare = self._bare or status in NO_BODY
            headers = [*message.get("headers", ()), (b"date", http.date())]
            await self._write(h11.Response(status_code=status, headers=headers))
            return
        body = message.get("body", b"")
        data = b""
        if body and not self._bare:
            data = self._made(h11.Data(data=body))
        if not message.get("more_body", False):
            data += self._made(h11.EndOfMessage())
        await self._wire.send(data)

    async def finish(self) -> None:
        """Called when the application has returned: answers with an error if it has not answered."""
        if self._http.our_state is h11.SEND_RESPONSE:
            if self._broken is not None:
                await self.refuse(self._broken.error_status_hint, str(self._broken))
            elif not self._wire.gone and not self._whole:
                await self.refuse(400, "the body of the request ended before its end")
            elif not self._wire.gone:
                await self.refuse(500, "the broker made no answer")

    async def next(self) -> bool:
        """Whether another request may follow on this connection. Skips a small rest of the body first."""
        if self._wire.gone or self._http.our_state is not h11.DONE:
            return False
        with trio.move_on_after(http.LINGER_SECONDS):
            await self._pass_over(http.AHEAD)
        if self._http.their_state is not h11.DONE or self._wire.gone:
            return False
        self._http.start_next_cycle()
        return True

    async def _pass_over(self, size: int) -> None:
        parts = 0
        while self._http.their_state is h11.SEND_BODY and size > 0 and parts < UNWANTED:
            parts += 1
            try:
                event = await self._next_part()
            except h11.RemoteProtocolError:
                return
            if isinstance(event, h11.Data):
                size -= len(event.data)
            elif event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    return
                self._http.receive_data(await self._wire.receive())

    async def end(self) -> None:
        """If the peer still sends: closes our side and reads on for a while. Closing at once would reset the connection
        before the peer has the answer."""
        if self._wire.gone or self._http.their_state not in (h11.SEND_BODY, h11.ERROR):
            return
        self._wire.send_eof()
        with trio.move_on_after(http.LINGER_SECONDS):
            while await self._wire.receive():
                pass

    async def refuse(self, status: int, detail: str) -> None:
        """Answers a request with an error instead of the application, unless an answer has begun."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        status = status if status in http.REFUSALS else 400
        body = http.problem(status, detail)
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"date", http.date()),
            (b"connection", b"close"),
        ]
        head = self._made(h11.Response(status_code=status, headers=headers))
        await self._wire.send(head + self._made(h11.Data(data=body)) + self._made(h11.EndOfMessage()))

    async def _write(self, event: h11.Event) -> None:
        await self._wire.send(self._made(event))

    def _made(self, event: h11.Event) -> bytes:
        return b"" if self._wire.gone else self._http.send(event) or b""
