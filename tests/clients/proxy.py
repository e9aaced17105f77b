"""A TCP proxy between a client and a broker. When it is told to, it loses connections in the ways that networks do."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

BUFFER = 64 << 10


class Proxy:
    """`address` is where clients connect. `to`: the broker's address, which may be changed, as when the
    broker moves."""

    def __init__(self, to: str) -> None:
        self.to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._deaf = False
        self._refusing = self._hanging = False
        self._silent: list[socket.socket] = []
        self._frozen: set[socket.socket] = set()
        self._stalled: set[socket.socket] = set()
        self.refused = 0
        self.accepted = 0
        self.dropped = 0  # bytes of answers that were not passed on
        self.holds = threading.Event()  # set once answers wait, after the bytes that `hold` was given
        self._room: int | None = None
        self._released = threading.Event()
        self._goes_on = threading.Event()
        self._goes_on.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Resets every connection: what is under way is lost."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self._deaf = False
        for pair in pairs:
            for sock in pair:
                with contextlib.suppress(OSError):  # its thread closes it, with a reset
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    sock.shutdown(socket.SHUT_RDWR)

    def deafen(self) -> None:
        """From now on requests go through, and their answers do not, until the next cut."""
        self._deaf = True

    def hold(self, after: int) -> None:
        """Passes so many more bytes of answers; the others wait for `release`. `holds` is set when they wait."""
        self._room = after

    def release(self) -> None:
        """Cuts the connections whose answers wait; new connections are not held."""
        self._room = None
        self.cut()
        self._released.set()

    def freeze(self) -> None:
        """The open connections go silent for good, and are not closed: as of a peer that was unplugged."""
        with self._lock:
            self._frozen.update(sock for pair in self._pairs for sock in pair)

    def hang(self) -> None:
        """All connections are silent from now on, new ones, too: as of a process that was stopped."""
        self._hanging = True
        self.freeze()

    def pause(self) -> None:
        """All connections are silent until `go_on`, and nothing is lost: as of a process that is stopped,
        and goes on."""
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    def stall(self) -> None:
        """Reads no more from the open connections, and does not close them: they fill up."""
        with self._lock:
            self._stalled.update(sock for pair in self._pairs for sock in pair)

    def refuse(self, refusing: bool = True) -> None:
        """New connections are closed at once; old ones are cut."""
        self._refusing = refusing
        if refusing:
            self.cut()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for each in self._silent:
            each.close()
        self.go_on()
        self.release()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                self.refused += 1
                near.close()
                continue
            if self._hanging:
                self._silent.append(near)
                continue
            host, _, port = self.to.rpartition(":")
            try:
                far = socket.create_connection((host, int(port)), timeout=10)
            except OSError:
                near.close()
                continue
            for sock in (near, far):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.accepted += 1
                self._pairs.append((near, far))
            threading.Thread(target=self._relay, args=(near, far), daemon=True).start()

    def _relay(self, near: socket.socket, far: socket.socket) -> None:
        with near, far:
            other = threading.Thread(target=self._pump, args=(far, near, True), daemon=True)
            other.start()
            self._pump(near, far, False)
            other.join()
        with self._lock:
            if (near, far) in self._pairs:
                self._pairs.remove((near, far))

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(BUFFER):
                if source in self._stalled:
                    self._released.wait()
                self._goes_on.wait()
                if source in self._frozen:
                    continue
                if answers and self._deaf:
                    self.dropped += len(data)
                else:
                    if answers:
                        self._wait(len(data))
                    sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _wait(self, size: int) -> None:
        with self._lock:
            if self._room is None:
                return
            self._room -= size
            held = self._room < 0
        if held:
            self.holds.set()
            self._released.wait()


@contextmanager
def proxy(to: str) -> Iterator[Proxy]:
    found = Proxy(to)
    try:
        yield found
    finally:
        found.close()
