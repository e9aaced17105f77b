"""What DescribeConfigs tells of the broker's own settings."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.broker.settings import broker_settings
from krappy.settings.server import ServerConfig


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "1"),
        ({"zookeeper_connect": "localhost:2181"}, "-1"),
        ({"zookeeper_connect": "localhost:2181", "default_replication_factor": 2}, "2"),
    ],
)
def test_the_default_replication_factor_is_the_one_that_new_topics_get(given: dict[str, Any], told: str) -> None:
    rows = {row.name: row for row in broker_settings(ServerConfig(**given), "localhost:9092")}
    assert rows["default.replication.factor"].value == told
