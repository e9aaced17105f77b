"""HOST:PORT of listeners."""

from __future__ import annotations

import socket

from krappy.hosts import written as written
from krappy.settings.listeners import parse_address

EVERYWHERE = ("0.0.0.0", "::", "")  # hosts of a listener that is bound to all addresses
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def bound_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return written(host, port)


def reached(address: str) -> str:
    """The HOST:PORT by which this machine reaches a listener that is bound to `address`."""
    host, port = parse_address(address)
    return written(LOOPBACK.get(host, host), port)
