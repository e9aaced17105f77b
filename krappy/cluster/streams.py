"""Connections to other brokers and to ZooKeeper, with TLS or without."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Protocol, TypeAlias

import trio

from krappy.tls import TlsSocket

Address = tuple[str, int]
Tls: TypeAlias = "Callable[[], ssl.SSLContext] | None"  # gives the context of a new connection; None: no TLS


class ByteStream(Protocol):
    """Methods raise trio.BrokenResourceError and trio.ClosedResourceError. `close` ends the calls that wait."""

    async def send_all(self, data: bytes | bytearray) -> None: ...
    async def receive_some(self, most: int) -> bytes | bytearray: ...
    def close(self) -> None: ...


async def open_stream(address: Address, tls: Tls) -> ByteStream:
    """A connection, after its handshake. Raises OSError, which says what is wrong with a certificate."""
    stream = await trio.open_tcp_stream(*address)
    if tls is None:
        return PlainStream(stream)
    try:
        found = EncryptedStream(TlsSocket(tls(), stream.socket, address[0]))  # type: ignore[arg-type]
    except BaseException:
        stream.socket.close()
        raise
    try:
        await found.shake_hands()
    except ssl.SSLCertVerificationError as error:
        found.close()
        raise OSError(f"its certificate is not good: {error.verify_message}") from error
    except ssl.SSLError as error:
        found.close()
        raise OSError(f"no TLS with it ({(error.reason or str(error)).replace('_', ' ').lower()})") from error
    except BaseException:
        found.close()
        raise
    return found


class PlainStream:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.send_all, self.receive_some = stream.send_all, stream.receive_some

    def close(self) -> None:
        self._stream.socket.close()


class EncryptedStream:
    def __init__(self, sock: TlsSocket) -> None:
        self._socket = sock

    async def shake_hands(self) -> None:
        """Raises OSError (ssl.SSLError is one)."""
        while True:
            try:
                self._socket.do_handshake()
                return
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._socket)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._socket)

    async def send_all(self, data: bytes | bytearray) -> None:
        rest = memoryview(data)
        await trio.lowlevel.checkpoint()
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except (OSError, ValueError) as error:
                raise self._lost() from error

    async def receive_some(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self._socket.recv(most)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
            except (OSError, ValueError) as error:
                raise self._lost() from error

    def _lost(self) -> Exception:
        return trio.ClosedResourceError() if self._socket.fileno() < 0 else trio.BrokenResourceError()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
