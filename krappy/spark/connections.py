"""One connected client for each broker, for as long as the process lives.

Spark uses a Python worker for many tasks; a connection for each task would cost more than a lookup does.

A task waits PATIENCE seconds for a broker that does not answer: the broker answered when the query was planned, so it
is probably being restarted. If the task failed at once, Spark would try it several times within a second, and give up.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from time import monotonic, sleep

from krappy.blocking import Client
from krappy.errors import ConnectionLost
from krappy.spark.broker_at import BrokerAt
from krappy.spark.workers import is_task, settle

PATIENCE = 10  # seconds for which a task tries to connect

_clients: dict[tuple[int, BrokerAt], Client] = {}  # by process: a worker is forked from another process
_lock = threading.Lock()


def client(broker: BrokerAt | str | None) -> Client:
    """The client of this process for a broker (or its address; None: $KRAPPY_ADDRESS, else 127.0.0.1:7092). Do not
    close it.

    Raises ConnectionLost if no broker answers there: at once, or in a task after PATIENCE seconds;
    AuthenticationFailed.
    """
    at = broker if isinstance(broker, BrokerAt) else BrokerAt(broker)
    place = (os.getpid(), at)
    with _lock:
        found = _clients.get(place)
        if found is None:
            found = _clients[place] = _connected(at)
            settle("connecting")
    return found


def _connected(broker: BrokerAt) -> Client:
    until = monotonic() + (PATIENCE if is_task() else 0)
    while True:
        try:
            return broker.connect().open()
        except ConnectionLost:
            if monotonic() >= until:
                raise
            sleep(0.2)


@atexit.register
def close() -> None:
    """Closes the connections of this process."""
    with _lock:
        mine = [place for place in _clients if place[0] == os.getpid()]
        some = [_clients.pop(place) for place in mine]
    for each in some:
        with contextlib.suppress(Exception):
            each.__exit__(None, None, None)
