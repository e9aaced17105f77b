"""The answers of one connection that wait to be sent: parts in their order.

Bytes in memory count against the budget until the system has taken them. A part of a file takes no memory.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from functools import partial

from krappy.server.budget import Budget
from krappy.tls import TlsSocket
from krappy.types import FilePart

Part = bytes | memoryview | FilePart

JOIN = 128 << 10  # small answers are joined up to this size for one send
MUCH = 1 << 20  # bytes that are encrypted at a time, which takes about 0.4 ms
MORE = getattr(socket, "MSG_MORE", 0)  # more follows at once: the system may join it into fewer packets


class Outbox:
    def __init__(self, sock: socket.socket, budget: Budget) -> None:
        self._sock = sock
        # TLS takes a piece at a time, and not all that the socket has room for.
        self._encrypts = isinstance(sock, TlsSocket)
        self._send_from = sock.send_file if isinstance(sock, TlsSocket) else partial(os.sendfile, sock.fileno())
        self._budget = budget
        self._parts: deque[Part] = deque()
        self.size = 0  # bytes that wait
        self.charged = 0  # how many of these are in memory
        self.sent = 0  # bytes since the connection began

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, data: Part) -> None:
        size = len(data)
        self._parts.append(data)
        self.size += size
        if type(data) is not FilePart:
            self.charged += size
            self._budget.charge(size)

    def clear(self) -> None:
        """Drops everything: the peer has left."""
        self._parts.clear()
        self._budget.credit(self.charged)
        self.size = self.charged = 0

    def send(self) -> None:
        """Sends until nothing waits, the socket is full, or much was encrypted. Raises OSError when the connection is
        broken."""
        parts, before = self._parts, self.sent
        while parts:
            part = parts.popleft()
            if not isinstance(part, FilePart) and len(part) < JOIN and parts:
                part = self._joined(part)
            try:
                sent = self._send_part(part)
            except OSError as error:
                parts.appendleft(part)
                if isinstance(error, BlockingIOError):
                    return
                raise
            self.sent += sent
            self.size -= sent
            if sent < len(part):
                parts.appendleft(part.after(sent) if isinstance(part, FilePart) else memoryview(part)[sent:])
                if not self._encrypts or self.sent - before >= MUCH:
                    return

    def _send_part(self, part: Part) -> int:
        """Sends what the socket takes of a part. Without TLS, a part of a file is not copied. Raises OSError."""
        if isinstance(part, FilePart):
            sent = self._send_from(part.file.fd, part.position, part.size)
            if not sent:
                raise OSError("a file that is shorter than it was")
            return sent
        sent = self._sock.send(part, MORE if self._parts else 0)
        self.charged -= sent
        self._budget.credit(sent)
        return sent

    def _joined(self, first: bytes | memoryview) -> bytes:
        """`first` and the parts behind it, up to `JOIN` bytes."""
        waiting, parts, total = self._parts, [first], len(first)
        while waiting and total + len(waiting[0]) <= JOIN:
            following = waiting[0]
            if isinstance(following, FilePart):
                break
            parts.append(following)
            total += len(following)
            waiting.popleft()
        return b"".join(parts)
