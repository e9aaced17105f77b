"""How Kafka's clients log in: SaslHandshake (17) names a mechanism, SaslAuthenticate (36) carries its messages (KIP-43,
KIP-152), again before the session ends (KIP-368)."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.errors import BrokerError
from krappy.handlers.kafka.registry import Message, serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

NOT_ASKED_WHO = "this listener has no users: connect to it without SASL, with security.protocol=PLAINTEXT or SSL"


@serves(ApiKey.SASL_HANDSHAKE, needs=needs.NOTHING)
def sasl_handshake(session: KafkaSessionPort, request: Message, version: int) -> Message:
    login = session.login
    if login is None:
        return {"error_code": Code.ILLEGAL_SASL_STATE, "mechanisms": []}
    try:
        login.begin(request["mechanism"])
    except BrokerError as error:
        return {"error_code": error.code, "mechanisms": list(login.mechanisms)}
    return {"error_code": Code.NONE, "mechanisms": list(login.mechanisms)}


@serves(ApiKey.SASL_AUTHENTICATE, needs=needs.NOTHING)
async def sasl_authenticate(session: KafkaSessionPort, request: Message, version: int) -> Message:
    login = session.login
    if login is None:
        return _answer(Code.ILLEGAL_SASL_STATE, NOT_ASKED_WHO)
    try:
        data, done = await login.step(bytes(request["auth_bytes"]))
    except BrokerError as error:
        return _answer(error.code, error.text)
    return _answer(Code.NONE, None, data, login.lifetime_ms if done else 0)


def _answer(code: int, text: str | None, data: bytes = b"", lifetime_ms: int = 0) -> Message:
    return {"error_code": code, "error_message": text, "auth_bytes": data, "session_lifetime_ms": lifetime_ms}
