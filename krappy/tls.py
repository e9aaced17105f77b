"""TLS on a socket that does not block, for the server and the clients: `ssl.SSLSocket`, with the errors of a plain
socket. (An SSLSocket costs half of what trio.SSLStream does, for it copies nothing through a memory BIO.)

Rules, kept here:

- What would wait raises BlockingIOError. Reading may have to wait until something can be written (a key update of
  TLS 1.3, RFC 8446, section 4.6.3): then `wants_write` is True.
- After BlockingIOError, `send` has to be called again with data that begins alike and is not shorter: a part of it may
  have been sent. It takes at most `PIECE` bytes at a time.
- Nothing of a connection is ever sent without encryption: `shutdown` and `close` keep the TLS in force.
"""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from typing import Any

RECORD = 16 << 10  # bytes of the largest record (RFC 8446, section 5.1): a read gives one at a time
PIECE = 256 << 10  # bytes of one `send`, which takes about 0.3 ms


class TlsSocket(ssl.SSLSocket):
    wants_write = False

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Reads records until the buffer (of which `nbytes` count, if given) is full, or nothing more is there."""
        view = memoryview(buffer)[: nbytes or None]
        count = 0
        try:
            while count < len(view):
                got = super().recv_into(view[count:])
                count += got
                if got < RECORD:
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            self.wants_write = isinstance(error, ssl.SSLWantWriteError)
            if not count:
                raise BlockingIOError from None
        return count

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Up to `buflen` bytes, of several records if they are there."""
        parts: list[bytes] = []
        try:
            while buflen > 0:
                parts.append(super().recv(buflen))
                buflen -= len(parts[-1])
                if len(parts[-1]) < RECORD:
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            self.wants_write = isinstance(error, ssl.SSLWantWriteError)
            if not parts:
                raise BlockingIOError from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(memoryview(data)[:PIECE])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def send_file(self, descriptor: int, position: int, size: int) -> int:
        """As os.sendfile, whose place it takes: the bytes have to pass through this process. Returns how many were
        sent."""
        data = os.pread(descriptor, min(size, PIECE), position)
        return self.send(data) if data else 0

    def reject(self, alert: bytes) -> None:
        """Says to a peer whose handshake has failed that this is TLS. What it has sent is read away: else the system
        would reset the connection, before the peer has read the alert."""
        with suppress(OSError):
            socket.socket.send(self, alert)
            for _ in range(16):
                if not socket.socket.recv(self, 64 << 10):
                    break

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self, how)  # SSLSocket's own would end the encryption as well

    def close(self) -> None:
        """Tells the peer that nothing more comes, if this is the server's side, and closes the socket. (A client's may
        be a copy in a forked process, which must not say anything.)"""
        if self.server_side:
            with suppress(OSError, ValueError):
                self.unwrap()
        super().close()


def wrapped(context: ssl.SSLContext, sock: Any, host: str | None = None) -> TlsSocket:
    """The socket with TLS, before its handshake; for a server if no host is given. Raises OSError."""
    found = context.wrap_socket(
        sock, server_side=host is None, server_hostname=host, do_handshake_on_connect=False, suppress_ragged_eofs=True
    )
    assert isinstance(found, TlsSocket)
    return found


def client_context(ca: str | None = None, cert: str | tuple[str, str] | None = None) -> ssl.SSLContext:
    """For clients. `ca`: PEM file of the authorities that may vouch for the broker; None: the system's. `cert`: PEM
    file of the client's own certificate and key, or (certificate, key). Raises OSError (ssl.SSLError is one)."""
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None:
        context.load_cert_chain(*((cert,) if isinstance(cert, str) else cert))
    return context


def prepared(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context, whose sockets are TlsSockets from now on."""
    context.sslsocket_class = TlsSocket
    return context
