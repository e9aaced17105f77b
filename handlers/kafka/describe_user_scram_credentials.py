"""DescribeUserScramCredentials (50): nobody has any, as nobody authenticates (KIP-554)."""

from __future__ import annotations

from typing import Any

from krappy.handlers.kafka.refusals import SHOWN
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code


def describe_user_scram_credentials(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    results = [
        {
            "user": user["name"],
            "error_code": Code.RESOURCE_NOT_FOUND,
            "error_message": f"there are no credentials of the user '{user['name']:.{SHOWN}}'",
            "credential_infos": [],
        }
        for user in request["users"] or ()
    ]
    return {"throttle_time_ms": 0, "error_code": 0, "error_message": None, "results": results}
