"""Options of accepted sockets; and whether a peer has left, which the system knows without reading."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import trio

from krappy.hosts import plain
from krappy.tls import TlsSocket

_ESTABLISHED = 1  # the first byte of Linux's tcp_info is the state (include/net/tcp_states.h)
_INFO = getattr(socket, "TCP_INFO", None)
# A host that vanishes without closing is noticed after a minute and a half, however long its requests may wait; unless
# bytes have been sent to it since. See `has_vanished`.
_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
_AGAIN = 8  # times that the system has sent the same bytes again, each time after twice as long: for about a minute


def prepare(sock: socket.socket) -> None:
    """Sets the options of a socket that was just accepted. Raises OSError when its peer has left."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE:
        if (option := getattr(socket, name, None)) is not None:  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def endpoint(name: Any) -> tuple[str, int]:
    """The address and the port of one end of a connection, as `accept`, `getpeername` and `getsockname` give it. All
    that the broker knows of where a peer comes from passes here."""
    return plain(str(name[0])), int(name[1])


def has_left(sock: socket.socket) -> bool:
    """Whether the peer sends no more, though there may be more to read.

    Known on Linux only. Elsewhere it is False, and reading to the end shows it.
    """
    with contextlib.suppress(OSError):
        return _INFO is not None and sock.getsockopt(socket.IPPROTO_TCP, _INFO, 1)[0] != _ESTABLISHED
    return True


def has_vanished(sock: socket.socket) -> bool:
    """Whether the peer's system has confirmed nothing for a minute or so, although bytes were sent to it again and
    again. (By itself this system goes on with that for a quarter of an hour.) A peer that only does not read is still
    there, and its system answers; with TCP_USER_TIMEOUT it would lose its connection, too. Known on Linux only."""
    with contextlib.suppress(OSError):
        return _INFO is not None and sock.getsockopt(socket.IPPROTO_TCP, _INFO, 3)[2] >= _AGAIN
    return False


async def readable(sock: TlsSocket) -> None:
    """Waits until reading from it may give something."""
    if sock.pending():
        await trio.lowlevel.checkpoint()
    else:
        await trio.lowlevel.wait_readable(sock)
