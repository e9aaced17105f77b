"""One connected client for each broker, for as long as the process lives.

Spark's Python workers are used for many tasks; a connection for each task would cost more than a lookup does.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading

from krappy.blocking import Client, connect
from krappy.spark.workers import settle

_clients: dict[tuple[int, str | None], Client] = {}  # by process: a worker is forked from another process
_lock = threading.Lock()


def client(address: str | None) -> Client:
    """The client of this process for a broker (None: $KRAPPY_ADDRESS, else 127.0.0.1:7092). Do not close it.

    Raises ConnectionLost when no broker answers there.
    """
    place = (os.getpid(), address)
    with _lock:
        found = _clients.get(place)
        if found is None:
            found = connect(address)
            found.__enter__()
            _clients[place] = found
            settle("connecting")
    return found


@atexit.register
def close() -> None:
    """Closes the connections of this process."""
    with _lock:
        mine = [place for place in _clients if place[0] == os.getpid()]
        some = [_clients.pop(place) for place in mine]
    for each in some:
        with contextlib.suppress(Exception):
            each.__exit__(None, None, None)
