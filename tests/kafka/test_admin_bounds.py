"""Small requests that ask for much: the number of things that they may name is bounded, and so is what is
made of them."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.wire.kafka import RANGES, ApiKey
from tests.kafka.raw import Closed, Raw
from tests.process import BrokerProcess

TOO_MANY = 20_001
TOPIC = {"name": "", "num_partitions": 1, "replication_factor": 1}
PARTITION = {"partition_index": 0}


@pytest.mark.parametrize(
    ("key", "body"),
    [
        (ApiKey.CREATE_TOPICS, {"topics": [TOPIC] * TOO_MANY}),
        (ApiKey.DELETE_TOPICS, {"topics": [{"name": ""}] * TOO_MANY}),
        (ApiKey.CREATE_PARTITIONS, {"topics": [{"name": "", "count": 1}] * TOO_MANY}),
        (ApiKey.DELETE_RECORDS, {"topics": [{"name": ""}] * TOO_MANY}),
        (ApiKey.DELETE_RECORDS, {"topics": [{"name": "", "partitions": [PARTITION] * TOO_MANY}]}),
        (ApiKey.DESCRIBE_CONFIGS, {"resources": [{"resource_type": 2}] * TOO_MANY}),
        (ApiKey.ALTER_CONFIGS, {"resources": [{"resource_type": 2}] * TOO_MANY}),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [{"resource_type": 2}] * TOO_MANY}),
        (ApiKey.DESCRIBE_TOPIC_PARTITIONS, {"topics": [{"name": ""}] * TOO_MANY}),
        (ApiKey.ELECT_LEADERS, {"topic_partitions": [{"topic": "", "partitions": [0] * TOO_MANY}]}),
        (ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": [{"topics": [{"partitions": [0] * TOO_MANY}]}]}),
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": [{"partitions": [PARTITION] * TOO_MANY}]}),
        (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": [{"name": ""}] * TOO_MANY}),
        (ApiKey.DESCRIBE_QUORUM, {"topics": [{"partitions": [PARTITION] * TOO_MANY}]}),
        (ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [""] * TOO_MANY}),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
def test_naming_too_much_ends_the_connection(broker: BrokerProcess, key: ApiKey, body: dict[str, Any]) -> None:
    with Raw(broker.kafka) as greedy, pytest.raises(Closed):
        greedy.ask(key, body)
    with Raw(broker.kafka) as other:
        assert other.ask(ApiKey.DESCRIBE_CLUSTER)["error_code"] == 0


@pytest.mark.parametrize(
    ("key", "body"),
    [
        (ApiKey.CREATE_TOPICS, {"topics": [TOPIC, {**TOPIC, "assignments": [{"broker_ids": []}]}]}),
        (ApiKey.DELETE_TOPICS, {"topics": [{"name": None}, {"name": ""}], "topic_names": [""]}),
        (ApiKey.CREATE_PARTITIONS, {"topics": [{"name": "", "assignments": []}]}),
        (ApiKey.DELETE_RECORDS, {"topics": [{"name": "", "partitions": []}]}),
        (ApiKey.DESCRIBE_CONFIGS, {"resources": [{"resource_type": 2, "configuration_keys": [""]}]}),
        (ApiKey.ALTER_CONFIGS, {"resources": [{"resource_type": 2, "configs": [{"name": "", "value": None}]}]}),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [{"configs": [{"config_operation": -1}]}]}),
        (ApiKey.DESCRIBE_TOPIC_PARTITIONS, {"cursor": {"topic_name": "", "partition_index": -(2**31)}}),
        (ApiKey.DESCRIBE_LOG_DIRS, {"topics": [{"topic": "", "partitions": [-1]}]}),
        (ApiKey.DESCRIBE_ACLS, {"resource_type_filter": -1}),
        (ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": [{"entity_type": "", "match": None}]}),
        (ApiKey.DESCRIBE_QUORUM, {}),
        (ApiKey.ELECT_LEADERS, {"topic_partitions": []}),
        (ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": [{"path": "", "topics": [{"partitions": [-1]}]}]}),
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": [{"partitions": [{"replicas": [-1]}]}]}),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": []}),
        (ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": [-128, 127]}),
        (ApiKey.LIST_TRANSACTIONS, {"state_filters": [""], "duration_filter": -(2**63)}),
        (ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [""]}),
        (ApiKey.SASL_HANDSHAKE, {"mechanism": ""}),
        (ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b""}),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
def test_empty_and_impossible_fields_are_answered_in_every_version(raw: Raw, key: ApiKey, body: dict[str, Any]) -> None:
    """The answer is one that its schema can write; the broker fixture fails if a handler raised an error."""
    low, high = RANGES[key]
    for version in range(low, high + 1):
        assert raw.ask(key, body, version) is not None
        assert raw.ask(key, {}, version) is not None


def test_a_thousand_topics_described_at_once_take_little_memory(broker: BrokerProcess, raw: Raw) -> None:
    topics = [{"name": f"many-{number}", "num_partitions": 1, "replication_factor": 1} for number in range(1000)]
    answer = raw.ask(ApiKey.CREATE_TOPICS, {"topics": topics, "timeout_ms": 60_000})
    assert all(topic["error_code"] == 0 for topic in answer["topics"])
    resources = [{"resource_type": 2, "resource_name": topic["name"], "configuration_keys": None} for topic in topics]
    asked = {"resources": resources, "include_synonyms": True, "include_documentation": True}
    raw.ask(ApiKey.DESCRIBE_CONFIGS, asked)
    before = broker.rss()
    broker.reset_peak()
    for _ in range(3):
        results = raw.ask(ApiKey.DESCRIBE_CONFIGS, asked)["results"]
        assert len(results) == 1000
    assert broker.peak_rss() - before < 48 << 20
