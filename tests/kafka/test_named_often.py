"""One thing that is named very often in one request is answered once, or refused, and nobody else notices."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.handlers.kafka import rows
from krappy.records import batch
from krappy.wire.kafka import ApiKey, Code
from krappy.wire.kafka.reading import MOST
from tests.kafka.raw import Closed, Raw, create, fetch, values_of
from tests.process import BrokerProcess

COMMITTED = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"}


def test_descriptions_of_one_thing_are_one(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "often", 2)
    raw.produce("often", batch.encode([b"k"], [b"v"], timestamps=1))
    body: dict[str, Any] = {"group_id": "often", "topics": [{"name": "often", "partitions": [COMMITTED]}]}
    raw.ask(ApiKey.OFFSET_COMMIT, body, 8)
    (group,) = raw.ask(ApiKey.OFFSET_FETCH, {"groups": [{"group_id": "often", "topics": None}] * MOST}, 9)["groups"]
    ((told,),) = (topic["partitions"] for topic in group["topics"])
    assert told["committed_offset"] == 7
    (group,) = raw.ask(ApiKey.DESCRIBE_GROUPS, {"groups": ["often"] * MOST})["groups"]
    assert group["group_state"] == "Empty"
    (group,) = raw.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, {"group_ids": ["often"] * MOST})["groups"]
    assert group["error_code"] == Code.GROUP_ID_NOT_FOUND
    asked = [{"name": "often", "partition_indexes": [0] * 9_000}, {"name": "often", "partition_indexes": [1] * 9_000}]
    (topic,) = raw.ask(ApiKey.DESCRIBE_PRODUCERS, {"topics": asked})["topics"]
    assert [each["partition_index"] for each in topic["partitions"]] == [0, 1]


def test_a_fetch_that_names_a_partition_often_waits_for_it_once(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "waits")
    raw.send(ApiKey.FETCH, fetch([("waits", 0, 0)] * 9_000, max_wait_ms=30_000), 12)
    with Raw(broker.kafka) as other:
        other.produce("waits", batch.encode([b"k"], [b"v"], timestamps=1))
    (topic,) = raw.receive()["responses"]
    (found,) = topic["partitions"]
    assert values_of(found["records"]) == [b"v"]


def test_what_is_written_or_looked_up_twice_is_refused(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "twice", 2)
    one = {"index": 0, "records": batch.encode([b"k"], [b"v"], timestamps=1)}
    topic = {"name": "twice", "partition_data": [one, {**one, "index": 1}, one]}
    answer = raw.ask(ApiKey.PRODUCE, {"acks": -1, "timeout_ms": 9_000, "topic_data": [topic]}, 9)
    told = [(each["index"], each["error_code"]) for each in answer["responses"][0]["partition_responses"]]
    assert told == [(0, Code.INVALID_REQUEST), (1, 0), (0, Code.INVALID_REQUEST)]
    assert raw.fetch("twice", 0)["high_watermark"] == 0
    asked = {"partition_index": 1, "timestamp": 0, "current_leader_epoch": -1}
    topic = {"name": "twice", "partitions": [asked, {**asked, "partition_index": 0}, asked]}
    answer = raw.ask(ApiKey.LIST_OFFSETS, {"topics": [topic]}, 7)
    told = [(each["partition_index"], each["error_code"]) for each in answer["topics"][0]["partitions"]]
    assert told == [(1, Code.INVALID_REQUEST), (0, 0), (1, Code.INVALID_REQUEST)]


def test_many_batches_in_one_request(raw: Raw, broker: BrokerProcess) -> None:
    """There are more than are published in one turn: all are stored, with one answer."""
    create(broker, "wide", 2 * rows.FEW + 1)
    one = batch.encode([b"k"], [b"v"], timestamps=1)
    data = [{"index": at, "records": one} for at in range(2 * rows.FEW + 1)]
    body = {"acks": -1, "timeout_ms": 9_000, "topic_data": [{"name": "wide", "partition_data": data}]}
    (topic,) = raw.ask(ApiKey.PRODUCE, body, 9)["responses"]
    told = [(each["index"], each["error_code"], each["base_offset"]) for each in topic["partition_responses"]]
    assert told == [(at, 0, 0) for at in range(2 * rows.FEW + 1)]
    raw.send(ApiKey.PRODUCE, body, 9)
    body["topic_data"][0]["partition_data"][-1] = {"index": 2 * rows.FEW, "records": b"x"}  # type: ignore[index]
    raw.send(ApiKey.PRODUCE, body, 9)
    assert {each["base_offset"] for each in raw.receive()["responses"][0]["partition_responses"]} == {1}
    (*told, last) = raw.receive()["responses"][0]["partition_responses"]
    assert {each["base_offset"] for each in told} == {2}
    assert last["error_code"] == Code.INVALID_RECORD


@pytest.mark.parametrize(
    ("key", "body"),
    [
        (ApiKey.FETCH, {"topics": [{"topic": "", "partitions": [{"partition": 0}] * (MOST + 1)}]}),
        (ApiKey.LIST_OFFSETS, {"topics": [{"name": "", "partitions": [{"partition_index": 0}] * (MOST + 1)}]}),
        (ApiKey.PRODUCE, {"topic_data": [{"name": "", "partition_data": [{"index": 0}] * (MOST + 1)}]}),
        (ApiKey.OFFSET_FETCH, {"groups": [{"group_id": ""}] * (MOST + 1)}),
        (ApiKey.DESCRIBE_GROUPS, {"groups": [""] * (MOST + 1)}),
        (ApiKey.METADATA, {"topics": [{"name": ""}] * (MOST + 1)}),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
def test_more_than_a_request_may_name_ends_the_connection(
    broker: BrokerProcess, key: ApiKey, body: dict[str, Any]
) -> None:
    with Raw(broker.kafka) as greedy, pytest.raises(Closed):
        greedy.ask(key, body)
