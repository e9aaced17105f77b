"""One connection's requests and answers, sans-IO: requests go in and frames come out, bytes go in and replies are
called. Answers may come in any order; a stream's reply is called for each of its answers.

Rules of this file: a reply is called exactly once with its last answer or an error, whatever becomes of the
connection, unless it is forgotten. Only ProtocolError leaves `receive`, and ConnectionLost at a broker's farewell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from krappy.errors import ConnectionLost, KrappyError, ProtocolError
from krappy.wire import messages
from krappy.wire.frames import ANSWER, DEFAULT_LIMIT, ERROR, FrameReader
from krappy.wire.messages import Answer, Request

Reply = Callable[[Any], None]  # an Answer of the class asked for, or a KrappyError


class Conversation:
    """`ids` gives correlation ids, `limit` is the largest answer taken, in bytes."""

    def __init__(self, ids: Iterator[int] | None = None, limit: int = DEFAULT_LIMIT) -> None:
        self._reader = FrameReader(limit)
        self._ids = ids or itertools.count(1)
        self._waiting: dict[int, tuple[type[Answer], Reply]] = {}

    def allow(self, limit: int) -> None:
        """Takes answers of up to `limit` bytes from now on."""
        self._reader.limit = max(self._reader.limit, limit)

    def ask(self, request: Request, answer: type[Answer], reply: Reply) -> tuple[int, bytes]:
        """The request's id and its frame, to be sent."""
        id = next(self._ids)
        data = request.frame(id)
        self._waiting[id] = (answer, reply)
        return id, data

    def forget(self, id: int) -> None:
        """Its answer is not waited for any more and will be dropped."""
        self._waiting.pop(id, None)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def receive(self, data: bytes) -> None:
        """Calls the reply of each answer that these bytes complete. Raises ProtocolError, ConnectionLost."""
        self._reader.feed(data)
        for kind, body in self._reader.frames():
            values = messages.unpack(body, lists=False)
            id = messages.take_id(values)
            if kind == ERROR:
                known = self._waiting.pop(id, None)
                error = messages.read_error(values)
                if known is not None:
                    known[1](error)
                elif id == 0:  # what the broker says before it closes, in answer to nothing
                    raise ConnectionLost(f"the broker ended the connection: {error.text}")
                continue
            known = self._waiting.get(id)
            if known is None:
                continue
            cls, reply = known
            if kind != cls.kind | ANSWER:
                raise ProtocolError(f"an answer of type {kind:#x} to a request whose answers are {cls.__name__}")
            answer = messages.read_answer(cls, values)
            if not getattr(answer, "more", False):
                del self._waiting[id]
            reply(answer)

    def end(self, error: Callable[[], KrappyError]) -> None:
        """Gives everyone who still waits an error of their own."""
        waiting, self._waiting = self._waiting, {}
        for _, reply in waiting.values():
            reply(error())
