"""A native client that hides nothing: one socket, no retry, no reconnection. It returns the broker's answers as they
are.

`send` and `receive` are separate, so that a test can pipeline, stop reading, or send bytes that are no request.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from krappy.errors import KrappyError
from krappy.records import batch
from krappy.types import Headers
from krappy.wire import messages as m
from krappy.wire.frames import ERROR, FrameReader
from krappy.wire.messages import ANSWERS, Answer, Request, read_answer, read_error, take_id, unpack

TIMEOUT = 60.0  # seconds: far longer than any answer should take
T = TypeVar("T")


class Gone(Exception):
    """The connection ended: closed or reset by the broker, or it died."""


class Stored(NamedTuple):
    """One event as it is in a log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Peer:
    def __init__(self, address: str, timeout: float = TIMEOUT, receive_buffer: int = 0) -> None:
        """Raises Gone if nobody listens. `receive_buffer`: of the socket, in bytes; 0: the system's default."""
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect((host, int(port)))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError:
            self.socket.close()
            raise
        except OSError as error:
            self.socket.close()
            raise Gone(str(error)) from None
        self._reader = FrameReader()
        self._frames: Iterator[tuple[int, Any]] = iter(())
        self._kept: dict[int, deque[Answer | KrappyError]] = {}
        self._last = 0
        self.signs = 0  # of life, which the broker has sent though no answer was due

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Ends the connection by RST: bytes that are under way are lost."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    # --- frames

    def post(self, data: bytes) -> None:
        """Sends any bytes. Raises Gone, TimeoutError."""
        try:
            self.socket.sendall(data)
        except TimeoutError:
            raise
        except OSError as error:
            raise Gone(str(error)) from None

    def send(self, *requests: Request) -> list[int]:
        """Sends requests in one go; returns their ids. Raises Gone."""
        first = self._last + 1
        self._last += len(requests)
        self.post(b"".join(request.frame(first + index) for index, request in enumerate(requests)))
        return list(range(first, self._last + 1))

    def receive(self) -> tuple[int, Answer | KrappyError]:
        """The next answer to any request: (id, answer or error). Raises Gone, TimeoutError."""
        while True:
            for kind, body in self._frames:
                values = unpack(body)
                id = take_id(values)
                if kind == ERROR:
                    return id, read_error(values)
                if id == 0:  # a sign of life
                    self.signs += 1
                    continue
                return id, read_answer(ANSWERS[kind & 0x7FFFFFFF], values)
            try:
                data = self.socket.recv(1 << 18)
            except TimeoutError:
                raise
            except OSError as error:
                raise Gone(str(error)) from None
            if not data:
                raise Gone("closed")
            self._reader.feed(data)
            self._frames = self._reader.frames()

    def answer(self, id: int, kind: type[T]) -> T:
        """The next answer to request `id`; answers to others are kept. Raises the broker's error, if that is the
        answer."""
        kept = self._kept.get(id)
        if kept:
            found = kept.popleft()
            if not kept:
                del self._kept[id]
        else:
            its, found = self.receive()
            while its != id:
                self._kept.setdefault(its, deque()).append(found)
                its, found = self.receive()
        if isinstance(found, KrappyError):
            raise found
        assert isinstance(found, kind), f"a {kind.__name__} was due, not {found!r:.200}"
        return found

    def ask(self, request: Request, kind: type[T]) -> T:
        """Sends a request and waits for its answer. Raises the broker's error, Gone."""
        return self.answer(self.send(request)[0], kind)

    # --- requests that many tests send

    def producer(self, topic: str, **more: Any) -> m.ProducerRegistered:
        return self.ask(m.ProducerRegistration(topic, **more), m.ProducerRegistered)

    def describe(self, topic: str) -> dict[str, Any]:
        return self.ask(m.DescribeTopics([topic]), m.TopicsDescribed).topics[0]

    def topics(self) -> dict[str, dict[str, Any]]:
        return {topic["name"]: topic for topic in self.ask(m.DescribeTopics(), m.TopicsDescribed).topics}

    def read_log(self, topic: str, partition: int = 0, **start: Any) -> tuple[list[Stored], int, int]:
        """(every event of a partition up to its high watermark, where reading began, the high watermark)."""
        consumer = self.ask(m.ConsumerRegistration([topic], partitions=[partition], **start), m.ConsumerRegistered)
        ((_, _, first),), ((_, _, end),) = consumer.positions, consumer.ends
        found: list[Stored] = []
        position = first
        while position < end:
            parts = self.ask(m.Poll(consumer.handle, max_records=10_000, max_bytes=1 << 20), m.Polled).parts
            if not parts:
                break  # the cleaner has removed all events up to the end
            for _, _, wanted, _, data in parts:
                events, position = unfold(data, wanted)
                found += events
        self.ask(m.Unregister(consumer.handle), m.Unregistered)
        return found, first, end

    def get(self, topic: str, key: bytes, partition: int | None = None) -> list[Any] | None:
        """A table's entry of a key: [offset, timestamp, value, headers]."""
        (entry,) = self.ask(m.Get(topic, key, partition), m.Got).entry
        return entry  # type: ignore[no-any-return]

    def scan(self, topic: str, partition: int | None = None, **more: Any) -> dict[bytes, list[Any]]:
        """A table's entries by key, each [offset, timestamp, value, headers]; fails if a key comes twice."""
        partitions = None if partition is None else [partition]
        page = self.ask(m.Scan(topic, partitions=partitions, **more), m.Scanned)
        found: dict[bytes, list[Any]] = {}
        while True:
            for key, entry in zip(page.entries[::2], page.entries[1::2], strict=True):
                assert key not in found, f"the scan gave {key!r} twice"
                found[key] = entry
            if page.cursor is None:
                return found
            page = self.ask(m.Scan(cursor=page.cursor), m.Scanned)


def unfold(data: bytes, first: int = 0) -> tuple[list[Stored], int]:
    """(the events from offset `first` on in record batches as a poll returns them, the next offset)."""
    found: list[Stored] = []
    following = first
    for header, view in batch.split(data):
        columns = batch.decode(view)
        headers = columns.headers or [()] * len(columns)
        for event in zip(columns.offsets, columns.timestamps, columns.keys, columns.values, headers, strict=True):
            if event[0] >= first:
                found.append(Stored(*event))
        following = header.next_offset
    return found, following
