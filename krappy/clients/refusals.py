"""What a broker's error says about the request: whether it is done, and whom to ask next."""

from __future__ import annotations

import warnings

from krappy.clients.backoff import Backoff
from krappy.errors import (
    ConnectionLost,
    KrappyError,
    NotCoordinator,
    NotLeader,
    RequestTimeout,
    StillRefused,
    StorageError,
)


def is_cut_off(error: KrappyError) -> bool:
    """Whether a broker says that it does not reach ZooKeeper. It has changed nothing."""
    return isinstance(error, ConnectionLost) and error.details.get("sent") is False


def is_undone(error: KrappyError) -> bool:
    """Whether it is certain that the broker has not done what it was asked for."""
    return is_cut_off(error) or not isinstance(error, ConnectionLost | RequestTimeout)


def is_elsewhere(error: KrappyError) -> bool:
    """Whether another broker has to be asked, or another question."""
    if isinstance(error, NotLeader):
        return error.details.get("leader", -1) >= 0 or "partitions" in error.details
    return isinstance(error, NotCoordinator)


def repeats(error: KrappyError, *, again: bool, here: bool, others: bool) -> bool:
    """Whether a broker that has answered with this error is asked the same once more. If not, the caller gets the
    error.

    `again`: the request does no more the second time. `here`: it is for one connection, and its caller looks for
    another broker when this one has lost its own connections. `others`: its caller asks other brokers if this one is
    cut off from ZooKeeper.
    """
    if not error.retriable or is_elsewhere(error):
        return False
    if (here and isinstance(error, ConnectionLost)) or (others and is_cut_off(error)):
        return False
    return again or is_undone(error)


def pause_before(again: KrappyError, backoff: Backoff) -> float:
    """Seconds to wait before events are asked for again, after this error. If the broker's disk has refused them for
    some seconds, it warns with StillRefused: nobody else tells the program why it waits."""
    if backoff.is_long and isinstance(again, StorageError):
        warnings.warn(StillRefused(again), stacklevel=2)
    return backoff.pause()
