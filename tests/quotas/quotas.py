"""Sets quotas by Kafka's protocol, and removes them at the end of a test."""

from __future__ import annotations

import re
from typing import Any

import httpx

from krappy.testing.running import RunningBroker
from krappy.wire.kafka import ApiKey
from tests.kafka.raw import Raw

Parts = dict[str, str | None]  # an entity's parts by Kafka's names, such as "user"; None: the default entity


class Quotas:
    def __init__(self, broker: str | Raw) -> None:
        """`broker`: its address, or a connection to it, which is closed at the end."""
        self.raw = Raw(broker, client_id="admin") if isinstance(broker, str) else broker
        self._set: list[tuple[Parts, list[str]]] = []

    def __enter__(self) -> Quotas:
        return self

    def __exit__(self, *_: object) -> None:
        for parts, keys in self._set:
            self.alter(parts, **dict.fromkeys(keys))
        self.raw.close()

    def set(self, parts: Parts, **rates: float) -> None:
        self._set.append((parts, list(rates)))
        answer = self.alter(parts, **rates)
        assert answer["error_code"] == 0, answer

    def alter(self, parts: Parts, validate_only: bool = False, /, **rates: float | None) -> dict[str, Any]:
        """Sets the quotas of one entity; returns the answer for it. A rate of None removes the quota."""
        entity = [{"entity_type": kind, "entity_name": name} for kind, name in parts.items()]
        ops = [{"key": key, "value": rate or 0.0, "remove": rate is None} for key, rate in rates.items()]
        asked = {"entries": [{"entity": entity, "ops": ops}], "validate_only": validate_only}
        [answer] = self.raw.ask(ApiKey.ALTER_CLIENT_QUOTAS, asked)["entries"]
        return dict(answer)

    def describe(self, *components: tuple[str, int, str | None], strict: bool = False) -> dict[str, Any]:
        asked = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
        return self.raw.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": asked, "strict": strict})

    def found(self, *components: tuple[str, int, str | None], strict: bool = False) -> list[tuple[Parts, Any]]:
        answer = self.describe(*components, strict=strict)
        assert answer["error_code"] == 0, answer
        return [
            (
                {each["entity_type"]: each["entity_name"] for each in entry["entity"]},
                {each["key"]: each["value"] for each in entry["values"]},
            )
            for entry in answer["entries"]
        ]


def throttled_seconds(broker: RunningBroker, quota: str = "producer_byte_rate") -> float:
    """For how many seconds clients were silenced, as the broker's own metric says."""
    text = httpx.get(f"http://{broker.http_address}/metrics", trust_env=False).text
    [found] = re.findall(rf'^krappy_throttled_seconds_total\{{quota="{quota}"\}} (\S+)$', text, re.MULTILINE)
    return float(found)
