"""SaslHandshake (17): this listener asks nobody who they are, and says so as Kafka's plaintext listeners do."""

from __future__ import annotations

from typing import Any

from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code


def sasl_handshake(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    return {"error_code": Code.ILLEGAL_SASL_STATE, "mechanisms": []}
