"""One connection's requests and answers, without I/O: requests go in and frames come out; bytes go in and replies are
called. Answers may come in any order; a stream's reply is called for each of its answers.

Rules of this file: unless its request is forgotten, a reply is called exactly once with the last answer or an error,
even if the connection is lost. `receive` raises only ProtocolError, and ConnectionLost when the broker says that it
closes the connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from krappy.errors import AuthenticationFailed, ConnectionLost, InvalidRequest, KrappyError, ProtocolError
from krappy.wire import messages
from krappy.wire.frames import ANSWER, DEFAULT_LIMIT, ERROR, FrameReader
from krappy.wire.messages import Answer, Authenticated, Request

Reply = Callable[[Any], None]  # an Answer of the class asked for, or a KrappyError


class Conversation:
    """`ids`: correlation ids for the requests; None: from 1. `limit`: the largest answer accepted, in bytes."""

    def __init__(self, ids: Iterator[int] | None = None, limit: int = DEFAULT_LIMIT) -> None:
        self._reader = FrameReader(limit)
        self._ids = ids or itertools.count(1)
        self._waiting: dict[int, tuple[type[Answer], Reply]] = {}

    def allow(self, limit: int) -> None:
        """Raises the limit: answers of up to `limit` bytes are accepted from now on."""
        self._reader.limit = max(self._reader.limit, limit)

    def ask(self, request: Request, answer: type[Answer], reply: Reply) -> tuple[int, bytes]:
        """Returns the request's id and its frame, which the caller sends. `reply` gets the answer or an error. Raises
        InvalidRequest for values that msgpack can't have, such as numbers of more than 64 bits."""
        id = next(self._ids)
        try:
            data = request.frame(id)
        except (OverflowError, TypeError, ValueError) as error:
            raise InvalidRequest(f"a {type(request).__name__} with a value that can't be sent: {error}") from None
        self._waiting[id] = (answer, reply)
        return id, data

    def forget(self, id: int) -> None:
        """The answer to this request will be dropped."""
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
                error = messages.read_error(values)
                known = self._waiting.get(id)
                # The broker says why it closes the connection: in answer to nothing, or to a request that came after
                # the session's end. That was not done, so it waits, and is lost with the connection.
                late = known is not None and known[0] is not Authenticated and isinstance(error, AuthenticationFailed)
                if late or (known is None and id == 0):
                    raise ConnectionLost(f"the broker ended the connection: {error.text}")
                if known is not None:
                    del self._waiting[id]
                    known[1](error)
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
        """Calls each reply that still waits with an error, a new one each time."""
        waiting, self._waiting = self._waiting, {}
        for _, reply in waiting.values():
            reply(error())
