"""What the handlers of transactional requests have in common."""

from __future__ import annotations

from krappy.core.kafka.faults import Refused
from krappy.errors import InvalidRequest, KrappyError, ShuttingDown, StorageError
from krappy.wire.kafka import Code, code_for


def code_of(error: KrappyError, *, fenced: bool) -> Code:
    """The code of an error. `fenced`: the version of the request has PRODUCER_FENCED (KIP-588)."""
    if isinstance(error, Refused):
        return Code(int(error.fault))
    if isinstance(error, StorageError | ShuttingDown):
        return Code.COORDINATOR_NOT_AVAILABLE  # clients retry, which is safe: the request was not acknowledged
    code = code_for(error)
    return Code.INVALID_PRODUCER_EPOCH if code is Code.PRODUCER_FENCED and not fenced else code


def named(transactional_id: str | None) -> str:
    """The id. Raises InvalidRequest when it is empty or None."""
    if not transactional_id:
        raise InvalidRequest("a transactional id may not be empty")
    return transactional_id
