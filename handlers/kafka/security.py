"""Authentication and ACLs, which this broker does not have. The answers are Kafka's.

- SaslHandshake (17), SaslAuthenticate (36): the listener asks for no authentication.
- DescribeAcls, CreateAcls, DeleteAcls (29 to 31): there is no authorizer.
"""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.registry import Message, serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

NO_AUTHORIZER: Message = {
    "error_code": Code.SECURITY_DISABLED,
    "error_message": "No Authorizer is configured on the broker",
}
NOT_ASKED_WHO = "this listener asks for no authentication: connect to it with security.protocol=PLAINTEXT"


@serves(ApiKey.SASL_HANDSHAKE, needs=needs.NOTHING)
def sasl_handshake(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return {"error_code": Code.ILLEGAL_SASL_STATE, "mechanisms": []}


@serves(ApiKey.SASL_AUTHENTICATE, needs=needs.NOTHING)
def sasl_authenticate(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return {"error_code": Code.ILLEGAL_SASL_STATE, "error_message": NOT_ASKED_WHO}


@serves(ApiKey.DESCRIBE_ACLS, needs=needs.cluster(Op.DESCRIBE))
def describe_acls(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return {**NO_AUTHORIZER, "resources": []}


@serves(ApiKey.CREATE_ACLS, needs=needs.cluster(Op.ALTER))
def create_acls(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return {"results": [NO_AUTHORIZER for _ in request["creations"]]}


@serves(ApiKey.DELETE_ACLS, needs=needs.cluster(Op.ALTER))
def delete_acls(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return {"filter_results": [NO_AUTHORIZER for _ in request["filters"]]}
