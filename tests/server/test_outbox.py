"""How much of the bytes that wait for a peer goes out at once."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from krappy.server.budget import Budget
from krappy.server.outbox import MUCH, Outbox
from krappy.tls import PIECE, TlsSocket
from krappy.types import FilePart

SIZE = 3 * MUCH + 100


class Taking(TlsSocket):
    """A socket without a peer. It takes `room` bytes, a piece at a time."""

    def __init__(self, room: int) -> None:
        socket.socket.__init__(self)
        self._server_side = False  # so it sends nothing when it is closed
        self.room, self.got = room, b""

    def send(self, data: Any, flags: int = 0) -> int:
        if not self.room:
            raise BlockingIOError
        taken = bytes(data[: min(self.room, PIECE)])
        self.room -= len(taken)
        self.got += taken
        return len(taken)

    def send_file(self, descriptor: int, position: int, size: int) -> int:
        return self.send(os.pread(descriptor, size, position))


@pytest.mark.parametrize("from_file", [False, True])
def test_with_tls_a_bounded_part_goes_out_at_once(from_file: bool, tmp_path: Path) -> None:
    data, budget = os.urandom(SIZE), Budget(100 << 20)
    (tmp_path / "file").write_bytes(data)
    with Taking(10 * SIZE) as sock, (tmp_path / "file").open("rb") as file:
        outbox = Outbox(sock, budget)
        outbox.add(FilePart(SimpleNamespace(fd=file.fileno()), 0, SIZE) if from_file else data)
        sizes = []
        while outbox:
            outbox.send()
            sizes.append(outbox.sent)
        assert sizes == [MUCH, 2 * MUCH, 3 * MUCH, SIZE]
        assert sock.got == data
        assert not outbox.size
        assert not budget.used
        sock.room = PIECE + 1
        outbox.add(FilePart(SimpleNamespace(fd=file.fileno()), 0, SIZE) if from_file else data)
        outbox.send()
        outbox.send()
        assert outbox.size == SIZE - PIECE - 1
        assert sock.got == data + data[: PIECE + 1]


def test_without_tls_as_much_as_the_system_takes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(64 << 20))
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "file").open("rb") as file:
        ours.setblocking(False)
        outbox = Outbox(ours, Budget(100 << 20))
        outbox.add(FilePart(SimpleNamespace(fd=file.fileno()), 0, 64 << 20))
        outbox.add(b"end")
        outbox.send()
        assert 0 < outbox.sent < 64 << 20
        assert outbox.size == (64 << 20) + 3 - outbox.sent
        os.truncate(tmp_path / "file", 0)
        left = outbox.sent
        while left:
            left -= len(theirs.recv(left))
        with pytest.raises(OSError, match="shorter than it was"):
            outbox.send()
