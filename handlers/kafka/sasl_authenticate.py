"""SaslAuthenticate (36): nobody has to, on this listener; the answer is that of Kafka's plaintext listeners."""

from __future__ import annotations

from typing import Any

from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code


def sasl_authenticate(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    text = "this listener asks for no authentication: connect to it with security.protocol=PLAINTEXT"
    return {"error_code": Code.ILLEGAL_SASL_STATE, "error_message": text, "auth_bytes": b"", "session_lifetime_ms": 0}
