"""Errors as problem details (RFC 9457): `application/problem+json`, or `application/problem+msgpack` when asked for."""

from __future__ import annotations

from typing import Any

import msgspec

from krappy import errors
from krappy.errors import KrappyError

TYPE = "urn:krappy:error:"  # with the error's name, which both protocols use too

# The first class of an error's MRO that is here counts. Other errors are the broker's fault: 500.
STATUS: dict[type[KrappyError], int] = {
    errors.UnknownTopic: 404,
    errors.UnknownPartition: 404,
    errors.UnknownGroup: 404,
    errors.AuthorizationFailed: 403,
    errors.TopicExists: 409,
    errors.GroupNotEmpty: 409,
    errors.WrongGroupKind: 409,
    errors.PolicyViolation: 409,
    errors.ViewDisabled: 409,
    errors.TransactionPending: 409,
    errors.OffsetMismatch: 412,
    errors.RecordTooLarge: 413,
    errors.ShuttingDown: 503,
    errors.Overloaded: 503,
    errors.CorruptBatch: 500,
    errors.NotLeader: 503,  # nobody leads it now; else the leader would have been asked
    errors.NotEnoughReplicas: 503,
    errors.NotEnoughReplicasAfterAppend: 503,
    errors.CoordinatorNotAvailable: 503,
    errors.NotCoordinator: 503,
    errors.ConnectionLost: 503,
    errors.StorageError: 503,
    errors.RequestTimeout: 504,
    errors.BrokerError: 400,
}
TITLES = {
    400: "Bad request",
    401: "Not logged in",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    408: "Request timed out",
    409: "Conflict",
    412: "Precondition failed",
    413: "Too large",
    415: "Unsupported media type",
    421: "Misdirected request",
    429: "Too many requests",
    500: "Internal error",
    503: "Not available now",
    504: "Timed out",
}


class Problem(msgspec.Struct, omit_defaults=True):
    """An error (RFC 9457). `code` is its name in the native protocol, `details` are its facts."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retriable: bool = False
    details: dict[str, Any] = {}


class HttpError(Exception):
    """An error of HTTP itself, answered as a problem. `headers`: those of the answer, with `_` for `-` in their
    names."""

    def __init__(self, status: int, code: str, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.problem = Problem(TYPE + code, TITLES[status], status, detail, code)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def problem_of(error: KrappyError) -> Problem:
    """The broker's error as a problem."""
    status = next((STATUS[cls] for cls in type(error).__mro__ if cls in STATUS), 500)
    return Problem(TYPE + error.name, TITLES[status], status, error.text, error.name, error.retriable, error.details)
