"""Connections that keep requests in flight: the bench's own client, as thin as possible.

One thread drives all of them, so N clients switch threads no more than one does. A latency is the time from passing a
request to the socket until its answer is unpacked. The time of a run also includes packing the requests, because a real
client does that too.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from krappy.clients.values import address as parse_address
from krappy.errors import ConnectionLost, KrappyError
from krappy.wire import messages
from krappy.wire.frames import ANSWER, ERROR, FrameReader
from krappy.wire.messages import Ping, Request

Frame = Callable[[int], bytes]  # from a request's number, which is its id, to its frame
CHUNK = 256 << 10  # bytes asked for in one receive
SIGN = Ping.kind | ANSWER  # of an answer that tells nothing but its id: the broker shows that it lives


class Pipe:
    """One connection. Raises ConnectionLost when no broker answers at `address` (HOST:PORT)."""

    def __init__(self, address: str) -> None:
        host, port = parse_address(address)
        try:
            self.socket = socket.create_connection((host, port), timeout=10)
        except OSError as error:
            raise ConnectionLost(f"no broker answers at {address}: {error.strerror or error}") from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = FrameReader()
        self.unsent = bytearray()

    def ask(self, request: Request) -> dict[str, Any]:
        """Sends one request, waits, and returns the fields of its answer. Raises the broker's error."""
        self.socket.setblocking(True)
        self.socket.sendall(request.frame(0))
        while True:
            for values in self.answers():
                return values

    def send(self, data: bytes) -> None:
        """Passes bytes to the socket. Keeps in `unsent` what it does not take, for `flush`."""
        if self.unsent:
            self.unsent += data
            return
        try:
            count = self.socket.send(data)
        except BlockingIOError:
            count = 0
        if count < len(data):
            self.unsent += memoryview(data)[count:]

    def flush(self) -> None:
        try:
            count = self.socket.send(self.unsent)
        except BlockingIOError:
            return
        del self.unsent[:count]

    def answers(self) -> list[dict[str, Any]]:
        """Receives once, and returns the fields of each complete answer, but for signs of life. Raises the broker's
        error."""
        self.reader.feed(self._receive())
        found = []
        for kind, body in self.reader.frames():
            values = messages.unpack(body)
            if kind == ERROR:
                raise messages.read_error(values)
            if kind != SIGN or len(values) > 1:
                found.append(values)
        return found

    def _receive(self) -> bytes:
        try:
            data = self.socket.recv(CHUNK)
        except OSError as error:
            raise ConnectionLost(f"the broker went away: {error.strerror}") from None
        if not data:
            raise ConnectionLost("the broker closed the connection")
        return data

    def close(self) -> None:
        self.socket.close()


class DriveResult:
    """`seconds`: of the whole run. `latencies`: seconds of each request, in the order of the answers."""

    def __init__(self, seconds: float, latencies: list[float], answers: int) -> None:
        self.seconds = seconds
        self.latencies = latencies
        self.answers = answers


def drive(
    pipes: Sequence[Pipe],
    frames: Sequence[Frame],
    count: int,
    window: int,
    check: Callable[[dict[str, Any]], None] = lambda values: None,
) -> DriveResult:
    """Sends `count` requests over all pipes together; each pipe keeps up to `window` of them in flight.

    `frames`: for each pipe, the function that makes its frames. `check` is called with each answer. Raises the broker's
    error.
    """
    sent_at = [0.0] * count
    latencies: list[float] = []
    issued = answered = 0
    now = time.perf_counter

    def issue(index: int, wanted: int) -> None:
        nonlocal issued
        wanted = min(wanted, count - issued)
        if wanted <= 0:
            return
        data = b"".join(map(frames[index], range(issued, issued + wanted)))
        moment = now()
        for id in range(issued, issued + wanted):
            sent_at[id] = moment
        issued += wanted
        pipes[index].send(data)

    with selectors.DefaultSelector() as selector:
        for index, pipe in enumerate(pipes):
            pipe.socket.setblocking(False)
            selector.register(pipe.socket, selectors.EVENT_READ, index)
        start = now()
        for index in range(len(pipes)):
            issue(index, window)
        while answered < count:
            for key, mask in selector.select():
                index = key.data
                pipe = pipes[index]
                if mask & selectors.EVENT_WRITE:
                    pipe.flush()
                if mask & selectors.EVENT_READ:
                    found = pipe.answers()
                    moment = now()
                    for values in found:
                        check(values)
                        latencies.append(moment - sent_at[values["id"]])
                    answered += len(found)
                    issue(index, len(found))
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if pipe.unsent else 0)
                if events != key.events:
                    selector.modify(key.fileobj, events, index)
        return DriveResult(now() - start, latencies, answered)


def open_pipes(address: str, count: int) -> list[Pipe]:
    """Opens `count` connections. Raises ConnectionLost, and leaves none open then."""
    pipes: list[Pipe] = []
    try:
        for _ in range(count):
            pipes.append(Pipe(address))
    except KrappyError:
        close_pipes(pipes)
        raise
    return pipes


def close_pipes(pipes: Sequence[Pipe]) -> None:
    for pipe in pipes:
        pipe.close()
