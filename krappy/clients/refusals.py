"""What an error that a broker tells says about the request: whether it is done, and whom to ask next."""

from __future__ import annotations

from krappy.errors import ConnectionLost, KrappyError, NotCoordinator, NotLeader, RequestTimeout


def is_cut_off(error: KrappyError) -> bool:
    """Whether a broker says that it does not reach ZooKeeper. It has changed nothing."""
    return isinstance(error, ConnectionLost) and error.details.get("sent") is False


def is_undone(error: KrappyError) -> bool:
    """Whether what a broker was asked for is not done for sure."""
    return is_cut_off(error) or not isinstance(error, ConnectionLost | RequestTimeout)


def is_elsewhere(error: KrappyError) -> bool:
    """Whether another broker has to be asked, or another question."""
    if isinstance(error, NotLeader):
        return error.details.get("leader", -1) >= 0 or "partitions" in error.details
    return isinstance(error, NotCoordinator)
