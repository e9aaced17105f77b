"""The APIs of authentication, authorization and quotas, which this broker does not have. The answers are Kafka's.

- SaslHandshake (17), SaslAuthenticate (36): the listener asks for no authentication.
- DescribeAcls, CreateAcls, DeleteAcls (29 to 31): there is no authorizer.
- Delegation tokens (38 to 41, KIP-48): Kafka refuses them on a listener without authentication.
- DescribeUserScramCredentials (50, KIP-554): no user has any.
- DescribeClientQuotas, AlterClientQuotas (48, 49, KIP-546): there are no quotas; back-pressure bounds clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Need, Op
from krappy.handlers.kafka.refusals import SHOWN
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

Message = dict[str, Any]
NO_AUTHORIZER: Message = {
    "error_code": Code.SECURITY_DISABLED,
    "error_message": "No Authorizer is configured on the broker",
}
NO_TOKEN: Message = {"error_code": Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED}
OF_NOBODY = {"principal_type": "User", "principal_name": "ANONYMOUS"}
NEVER = {"issue_timestamp_ms": -1, "expiry_timestamp_ms": -1, "max_timestamp_ms": -1}
NOT_ASKED_WHO = "this listener asks for no authentication: connect to it with security.protocol=PLAINTEXT"
NO_QUOTAS = "this broker has no quotas, so none can be set; its memory budget slows down clients that are too fast"
ENTITIES = ("user", "client-id", "ip")  # to which Kafka's quotas apply


def _credentials(request: Message) -> Message:
    results = [
        {
            "user": user["name"],
            "error_code": Code.RESOURCE_NOT_FOUND,
            "error_message": f"there are no credentials of the user '{user['name']:.{SHOWN}}'",
            "credential_infos": [],
        }
        for user in request["users"] or ()
    ]
    return {"error_code": 0, "error_message": None, "results": results}


def _quotas(request: Message) -> Message:
    for component in request["components"]:
        if component["entity_type"] not in ENTITIES:
            text = f"there are no quotas by '{component['entity_type']:.80}', only by {', '.join(ENTITIES)}"
            return {"error_code": Code.INVALID_REQUEST, "error_message": text, "entries": None}
    return {"error_code": 0, "error_message": None, "entries": []}


def _alter_quotas(request: Message) -> Message:
    """Removing a quota succeeds, since there is none; setting one is refused."""
    entries = []
    for entry in request["entries"]:
        sets = any(not op["remove"] for op in entry["ops"])
        code, said = (Code.INVALID_REQUEST, NO_QUOTAS) if sets else (Code.NONE, None)
        entries.append({"error_code": code, "error_message": said, "entity": entry["entity"]})
    return {"entries": entries}


_SASL: Message = {"error_code": Code.ILLEGAL_SASL_STATE}
_DESCRIBE, _ALTER = needs.cluster(Op.DESCRIBE), needs.cluster(Op.ALTER)
_QUOTAS, _ALTER_QUOTAS = needs.cluster(Op.DESCRIBE_CONFIGS), needs.cluster(Op.ALTER_CONFIGS)
REFUSED: list[tuple[ApiKey, int, int, tuple[Need, ...], Callable[[Message], Message]]] = [
    (ApiKey.SASL_HANDSHAKE, 0, 1, needs.NOTHING, lambda _: {**_SASL, "mechanisms": []}),
    (
        *(ApiKey.SASL_AUTHENTICATE, 0, 2, needs.NOTHING),
        lambda _: {**_SASL, "error_message": NOT_ASKED_WHO, "auth_bytes": b"", "session_lifetime_ms": 0},
    ),
    (ApiKey.DESCRIBE_ACLS, 1, 3, _DESCRIBE, lambda _: {**NO_AUTHORIZER, "resources": []}),
    (ApiKey.CREATE_ACLS, 1, 3, _ALTER, lambda asked: {"results": [NO_AUTHORIZER for _ in asked["creations"]]}),
    (
        *(ApiKey.DELETE_ACLS, 1, 3, _ALTER),
        lambda asked: {"filter_results": [{**NO_AUTHORIZER, "matching_acls": []} for _ in asked["filters"]]},
    ),
    (ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, needs.NOTHING, lambda _: {**NO_TOKEN, **OF_NOBODY, **NEVER}),
    (ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, needs.NOTHING, lambda _: {**NO_TOKEN, "expiry_timestamp_ms": -1}),
    (ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, needs.NOTHING, lambda _: {**NO_TOKEN, "expiry_timestamp_ms": -1}),
    (ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, needs.NOTHING, lambda _: {**NO_TOKEN, "tokens": []}),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, _DESCRIBE, _credentials),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, _QUOTAS, _quotas),
    (ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, _ALTER_QUOTAS, _alter_quotas),
]


def _register(key: ApiKey, low: int, high: int, need: tuple[Need, ...], answer: Callable[[Message], Message]) -> None:
    @serves(key, low, high, needs=need)
    def refuse(session: KafkaSessionPort, request: Message, version: int) -> Message:
        return {"throttle_time_ms": 0, **answer(request)}


for each in REFUSED:
    _register(*each)
