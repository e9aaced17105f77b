"""How an administration handler refuses one part of a request: with a code of Kafka's, and a text for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.errors import AuthorizationFailed, KrappyError
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code, code_for

K = TypeVar("K", bound=Hashable)
SHOWN = 300  # characters of a name that an answer repeats


class RefusedApi(Exception):
    """A part of a request is refused. The handler that raises it catches it and puts it into the answer."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


NO = (RefusedApi, KrappyError)  # what a handler turns into the error code of one topic, or one resource


def refusal(error: Exception) -> dict[str, Any]:
    """The fields `error_code` and `error_message` of an answer."""
    if isinstance(error, RefusedApi):
        return {"error_code": error.code, "error_message": error.text}
    assert isinstance(error, KrappyError)
    return {"error_code": code_for(error), "error_message": error.text}


def denied_on_cluster(session: KafkaSessionPort, op: Op) -> dict[str, Any] | None:
    """The fields `error_code` and `error_message` if the client may not do this to the cluster."""
    try:
        session.access.check(Resource.CLUSTER, CLUSTER_NAME, op)
    except AuthorizationFailed as error:
        return refusal(error)
    return None


DONE: Mapping[str, Any] = {"error_code": Code.NONE, "error_message": None}


def more_than_once(names: Iterable[K]) -> set[K]:
    """The names that occur more than once in `names`."""
    return {name for name, count in Counter(names).items() if count > 1}


def replicas(assigned: Iterable[int], known: Collection[int]) -> None:
    """Checks the brokers that a partition is assigned to: at least one, each once, all known. Raises RefusedApi."""
    brokers = list(assigned)
    if not brokers:
        raise RefusedApi(Code.INVALID_REPLICA_ASSIGNMENT, "the list of replicas of a partition is empty")
    if len(set(brokers)) < len(brokers):
        raise RefusedApi(Code.INVALID_REPLICA_ASSIGNMENT, "the list of replicas of a partition names a broker twice")
    unknown = next((broker for broker in brokers if broker not in known), None)
    if unknown is not None:
        raise RefusedApi(Code.INVALID_REPLICA_ASSIGNMENT, f"there is no broker {unknown}; there are {sorted(known)}")
