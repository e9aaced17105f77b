"""A native client with nothing around it: frames over a socket, no retries, nothing hidden. It is not for users."""

from __future__ import annotations

import socket
from collections import defaultdict, deque
from typing import Any

from krappy.errors import KrappyError
from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.frames import ERROR, FrameReader
from krappy.wire.messages import ANSWERS, Answer, Request, read_answer, read_error, take_id, unpack


class Raw:
    def __init__(self, address: str, timeout: float = 20.0, source: str = "127.0.0.1") -> None:
        """`source`: the address of this machine from which it connects."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout, (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        self._last = 0
        self._answers: dict[int, deque[Any]] = defaultdict(deque)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, request: Request) -> int:
        """Sends a request; returns its id."""
        self._last += 1
        self.socket.sendall(request.frame(self._last))
        return self._last

    def receive(self, id: int) -> Any:
        """The next answer with this id. Raises the error that the broker answers, or EOFError at the end."""
        while not self._answers[id]:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError("the broker closed the connection")
            self._reader.feed(data)
            for kind, body in self._reader.frames():
                values = unpack(body)
                its = take_id(values)
                if its == 0 and kind != ERROR:  # a sign of life
                    continue
                found: Answer | KrappyError = (
                    read_error(values) if kind == ERROR else read_answer(ANSWERS[kind & 0x7FFFFFFF], values)
                )
                self._answers[its].append(found)
        answer = self._answers[id].popleft()
        if isinstance(answer, KrappyError):
            raise answer
        return answer

    def call(self, request: Request) -> Any:
        return self.receive(self.send(request))

    def producer(self, topic: str, **more: Any) -> m.ProducerRegistered:
        found: m.ProducerRegistered = self.call(m.ProducerRegistration(topic, **more))
        return found


def records(*pairs: tuple[bytes | None, bytes | None], **more: Any) -> bytes:
    return batch.encode([key for key, _ in pairs], [value for _, value in pairs], timestamps=1_000, **more)


def read_all(raw: Raw, topic: str, **more: Any) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """(partition, offset, key, value) of every event that a reader is given, until it is at the high watermarks."""
    registered = raw.call(m.ConsumerRegistration([topic], **more))
    left = {(t, p): end for t, p, end in registered.ends}
    for t, p, position in registered.positions:
        if position >= left[t, p]:
            del left[t, p]
    found = []
    while left:
        for t, p, first, _, data in raw.call(m.Poll(registered.handle)).parts:
            for header, view in batch.split(data):
                columns = batch.decode(view)
                for offset, key, value in zip(columns.offsets, columns.keys, columns.values, strict=True):
                    if offset >= first:
                        found.append((p, offset, key, value))
                if header.next_offset >= left.get((t, p), 0):
                    left.pop((t, p), None)
    raw.call(m.Unregister(registered.handle))
    return sorted(found)


def scan(raw: Raw, **what: Any) -> tuple[list[tuple[int, bytes, Any]], list[list[int]]]:
    page = raw.call(m.Scan(**what))
    found = []
    while True:
        found += [(page.partition, page.entries[i], page.entries[i + 1]) for i in range(0, len(page.entries), 2)]
        if page.cursor is None:
            return found, page.offsets
        page = raw.call(m.Scan(cursor=page.cursor, max_entries=what.get("max_entries", 1000)))
