"""A blocking call that a signal's exception ends, as Ctrl-C does: the client goes on afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from krappy import blocking
from krappy.clients.sync.io import ThreadStream


class Interrupt(BaseException):
    """As KeyboardInterrupt, at which pytest would end."""


class InterruptedSocket:
    """Sends half of what it is given first, and then the signal comes."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._interrupted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: bytes) -> None:
        if self._interrupted:
            self._sock.sendall(data)
            return
        self._interrupted = True
        self._sock.sendall(data[: len(data) // 2])
        raise Interrupt


def test_nothing_follows_half_of_a_request(address: str, topic: str) -> None:
    """The broker would take what follows for the rest of it."""
    with blocking.connect(address, timeout=5) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send(b"before", key=b"k").result()
            stream = client._connection.link._stream
            assert isinstance(stream, ThreadStream)
            stream._out = InterruptedSocket(stream._out)  # type: ignore[assignment]
            with pytest.raises(Interrupt):
                client.table(topic).get(b"k" * 100_000)
            entry = client.table(topic).get(b"k")
            assert entry is not None
            assert entry.value == b"before"
            assert producer.send(b"after", key=b"k").result().offset == 1
