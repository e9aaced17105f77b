"""`TOPIC@latest` in raw requests: every API that knows the name, and those that do not."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.records import batch
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, create, fetch, produce
from tests.process import BrokerProcess

Pair = tuple[str, str | None]
Row = tuple[int, str, str | None]


def records(*pairs: Pair, **more: Any) -> bytes:
    keys = [key.encode() for key, _ in pairs]
    values = [None if value is None else value.encode() for _, value in pairs]
    return batch.encode(keys, values, timestamps=1_000, **more)


def rows(data: Any, offset: int = 0) -> list[Row]:
    found: list[Row] = []
    for _, view in batch.split(data):
        columns = batch.decode(bytes(view))
        for at, key, value in zip(columns.offsets, columns.keys, columns.values, strict=True):
            assert key is not None
            if at >= offset:
                found.append((at, key.decode(), None if value is None else value.decode()))
    return found


def following(data: Any) -> int:
    return max(header.next_offset for header, _ in batch.split(data))


@pytest.fixture(scope="module")
def topic(broker: BrokerProcess) -> str:
    """A topic with six events, of which two are of keys that live: at offsets 2 and 4."""
    with Raw(broker.kafka) as raw:
        create(broker, "events", 2)
        raw.produce("events", records(("a", "1"), ("b", "1"), ("c", "1")))
        raw.produce("events", records(("b", None), ("a", "2"), ("d", "1")))
        raw.produce("events", records(("d", None)))
    return "events"


LIVE = [(2, "c", "1"), (4, "a", "2")]


@pytest.mark.parametrize("version", range(14))
def test_metadata_knows_it_by_name_alone(raw: Raw, topic: str, version: int) -> None:
    (found,) = raw.ask(ApiKey.METADATA, {"topics": [{"name": topic + "@latest"}]}, version)["topics"]
    assert (found["error_code"], found["name"], len(found["partitions"])) == (0, topic + "@latest", 2)
    assert not found["is_internal"]
    everything = raw.ask(ApiKey.METADATA, {"topics": [] if version == 0 else None}, version)["topics"]
    assert topic in [each["name"] for each in everything]
    assert not [each["name"] for each in everything if "@" in each["name"]]


def test_it_has_an_id_of_its_own(raw: Raw, topic: str) -> None:
    uuid = raw.topic_id(topic + "@latest")
    assert uuid not in (raw.topic_id(topic), bytes(16))
    (found,) = raw.ask(ApiKey.METADATA, {"topics": [{"name": None, "topic_id": uuid}]}, 13)["topics"]
    assert (found["error_code"], found["name"]) == (0, topic + "@latest")
    (partition,) = raw.ask(ApiKey.FETCH, fetch([(uuid, 0, 0)]), 17)["responses"][0]["partitions"]
    assert rows(partition["records"]) == LIVE


@pytest.mark.parametrize("name", ["nothing@latest", "@latest", "events@", "events@earliest", "events@latest@latest"])
def test_there_is_no_such_table(raw: Raw, topic: str, name: str) -> None:
    (found,) = raw.ask(ApiKey.METADATA, {"topics": [{"name": name}], "allow_auto_topic_creation": True})["topics"]
    assert found["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.fetch(name, 0)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_without_a_view_has_none(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "no-view", view_enable="false")
    (found,) = raw.ask(ApiKey.METADATA, {"topics": [{"name": "no-view@latest"}]})["topics"]
    assert found["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(4, 13))
@pytest.mark.parametrize("isolation", [0, 1])
def test_fetch_in_every_version(raw: Raw, topic: str, version: int, isolation: int) -> None:
    found = raw.fetch(topic + "@latest", 0, version=version, isolation_level=isolation)
    assert (found["error_code"], found["high_watermark"], found["last_stable_offset"]) == (0, 7, 7)
    assert not found["aborted_transactions"]
    assert rows(found["records"]) == LIVE
    assert following(found["records"]) == 7, "the consumer goes on behind what was left out at the end"
    assert raw.fetch(topic + "@latest", 7, version=version)["records"] == b""


def test_a_fetch_is_as_small_as_it_may_be(raw: Raw, topic: str) -> None:
    found = raw.fetch(topic + "@latest", 0, partition_max_bytes=1)
    assert rows(found["records"]) == LIVE[:1]
    at = following(found["records"])
    found = raw.fetch(topic + "@latest", at, partition_max_bytes=1)
    assert rows(found["records"]) == LIVE[1:]


def test_several_partitions_and_the_topic_itself_in_one_request(raw: Raw, topic: str) -> None:
    answer = raw.ask(ApiKey.FETCH, fetch([(topic, 0, 0), (topic + "@latest", 0, 0), (topic + "@latest", 1, 0)]), 12)
    found = [partition for each in answer["responses"] for partition in each["partitions"]]
    assert [len(rows(each["records"])) for each in found] == [7, 2, 0]
    assert [each["error_code"] for each in found] == [0, 0, 0]


def test_list_offsets_are_the_topics(raw: Raw, topic: str) -> None:
    def ask(time: int) -> tuple[int, int]:
        body = {"name": topic + "@latest", "partitions": [{"partition_index": 0, "timestamp": time}]}
        (found,) = raw.ask(ApiKey.LIST_OFFSETS, {"replica_id": -1, "topics": [body]}, 7)["topics"][0]["partitions"]
        return found["error_code"], found["offset"]

    assert [ask(-2), ask(-1), ask(500)] == [(0, 0), (0, 7), (0, 0)]


def test_positions_of_it_are_apart_from_the_topics(raw: Raw, topic: str) -> None:
    def commit(name: str, offset: int) -> int:
        partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
        body = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": name, "partitions": partitions}],
        }
        answer = raw.ask(ApiKey.OFFSET_COMMIT, body, 8)
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    assert commit(topic, 1) == commit(topic + "@latest", 4) == 0
    body = {"group_id": "g", "topics": None}
    answer = raw.ask(ApiKey.OFFSET_FETCH, body, 7)
    found = {each["name"]: each["partitions"][0]["committed_offset"] for each in answer["topics"]}
    assert found == {topic: 1, topic + "@latest": 4}


def test_it_is_refused_to_writers_and_can_not_be_made(raw: Raw, topic: str) -> None:
    found = raw.produce(topic + "@latest", records(("a", "1")))
    assert found["error_code"] == Code.INVALID_TOPIC_EXCEPTION
    assert topic in found["error_message"]
    body = produce("", records(("a", "1")))
    body["topic_data"][0]["topic_id"] = raw.topic_id(topic + "@latest")
    (found,) = raw.ask(ApiKey.PRODUCE, body, 13)["responses"][0]["partition_responses"]
    assert found["error_code"] == Code.INVALID_TOPIC_EXCEPTION
    asked = {"name": "new@latest", "num_partitions": 1, "replication_factor": 1}
    (made,) = raw.ask(ApiKey.CREATE_TOPICS, {"topics": [asked], "timeout_ms": 1000})["topics"]
    assert made["error_code"] == Code.INVALID_TOPIC_EXCEPTION
    for chosen in ({"name": topic + "@latest"}, {"name": None, "topic_id": raw.topic_id(topic + "@latest")}):
        (gone,) = raw.ask(ApiKey.DELETE_TOPICS, {"topics": [chosen], "timeout_ms": 1000})["responses"]
        assert gone["error_code"] in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID)
    assert rows(raw.fetch(topic + "@latest", 0)["records"]) == LIVE


def test_out_of_range(raw: Raw, broker: BrokerProcess) -> None:
    """A consumer whose position fell out of the log is given the deletions that are left, on the same connection."""
    create(broker, "short")
    raw.produce("short", records(("a", "1"), ("b", "1")))
    raw.produce("short", records(("a", None), ("c", "1")))
    partitions = [{"partition_index": 0, "offset": 2}]
    raw.ask(ApiKey.DELETE_RECORDS, {"topics": [{"name": "short", "partitions": partitions}], "timeout_ms": 1000})
    assert raw.fetch("short@latest", 1)["error_code"] == Code.OFFSET_OUT_OF_RANGE
    assert raw.fetch("short@latest", 5)["error_code"] == Code.OFFSET_OUT_OF_RANGE
    assert rows(raw.fetch("short@latest", 2)["records"], 2) == [(2, "a", None), (3, "c", "1")]
    with Raw(broker.kafka) as other:
        asked = {"name": "short@latest", "partitions": [{"partition_index": 0, "timestamp": -2}]}
        other.ask(ApiKey.LIST_OFFSETS, {"replica_id": -1, "topics": [asked]}, 7)
        assert rows(other.fetch("short@latest", 2)["records"]) == [(3, "c", "1")], "it asked where the log starts"


def test_an_aborted_transaction_is_not_in_it(raw: Raw) -> None:
    raw.make("money")
    raw.produce("money", records(("a", "1"), ("b", "1")))
    who = raw.ask(ApiKey.INIT_PRODUCER_ID, {"transactional_id": "t", "transaction_timeout_ms": 60_000})
    id, epoch = who["producer_id"], who["producer_epoch"]

    def transact(sequence: int, commit: bool | None, *pairs: Pair) -> None:
        named = {
            "v3_and_below_transactional_id": "t",
            "v3_and_below_producer_id": id,
            "v3_and_below_producer_epoch": epoch,
        }
        added = {"v3_and_below_topics": [{"name": "money", "partitions": [0]}]}
        raw.ask(ApiKey.ADD_PARTITIONS_TO_TXN, named | added, 3)
        data = records(*pairs, producer_id=id, producer_epoch=epoch, base_sequence=sequence, transactional=True)
        body = produce("money", data) | {"transactional_id": "t"}
        (found,) = raw.ask(ApiKey.PRODUCE, body, 11)["responses"][0]["partition_responses"]
        assert found["error_code"] == 0
        if commit is not None:
            ended = {"transactional_id": "t", "producer_id": id, "producer_epoch": epoch, "committed": commit}
            assert raw.ask(ApiKey.END_TXN, ended, 3)["error_code"] == 0

    transact(0, False, ("a", "aborted"), ("c", "aborted"))
    transact(2, True, ("b", "2"))
    transact(3, None, ("a", "open"))
    with Raw(broker_address(raw)) as reader:
        found = reader.fetch("money@latest", 0, isolation_level=1)
        assert [(key, value) for _, key, value in rows(found["records"])] == [("a", "1"), ("b", "2")]
        at = following(found["records"])
        assert at == found["last_stable_offset"] < found["high_watermark"]
        assert reader.fetch("money@latest", at, isolation_level=1)["records"] == b""
        ended = {"transactional_id": "t", "producer_id": id, "producer_epoch": epoch, "committed": True}
        assert raw.ask(ApiKey.END_TXN, ended, 3)["error_code"] == 0
        found = reader.fetch("money@latest", at, isolation_level=1, max_wait_ms=10_000)
        tail = [
            batch.decode(bytes(view)).values for header, view in batch.split(found["records"]) if not header.is_control
        ]
        assert tail == [[b"open"]]


def broker_address(raw: Raw) -> str:
    host, port = raw.socket.getpeername()[:2]
    return f"{host}:{port}"
