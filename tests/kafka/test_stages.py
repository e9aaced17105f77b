"""What a course about writing one's own broker asks for, step by step, in the versions that the course uses."""

from __future__ import annotations

from contextlib import ExitStack

from krappy.records import batch
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, create, fetch, values_of
from tests.process import BrokerProcess

VERSIONS, PARTITIONS, FETCH, PRODUCE = 4, 0, 16, 11


def records(*values: bytes) -> bytes:
    return batch.encode(None, list(values), timestamps=1)


def test_api_versions_answers_one_after_the_other_and_many_clients(broker: BrokerProcess) -> None:
    asked = {
        ApiKey.API_VERSIONS: VERSIONS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: PARTITIONS,
        ApiKey.FETCH: FETCH,
        ApiKey.PRODUCE: PRODUCE,
    }
    software = {"client_software_name": "stages", "client_software_version": "1"}
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(broker.kafka)) for _ in range(5)]
        for _ in range(2):
            for client in clients:
                client.send(ApiKey.API_VERSIONS, software, VERSIONS)
            for client in reversed(clients):
                answer = client.receive()
                assert answer["error_code"] == 0
                served = {each["api_key"]: (each["min_version"], each["max_version"]) for each in answer["api_keys"]}
                assert all(served[key][0] <= version <= served[key][1] for key, version in asked.items())


def test_describe_topic_partitions_of_known_and_unknown_topics(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "stage-pair", 2)
    create(broker, "stage-one")
    asked = [{"name": name} for name in ("stage-pair", "stage-absent", "stage-one")]
    answer = raw.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, {"topics": asked, "response_partition_limit": 100}, PARTITIONS)
    assert answer["next_cursor"] is None
    absent, one, pair = answer["topics"]  # sorted by name, as in Kafka
    assert (absent["name"], absent["error_code"]) == ("stage-absent", Code.UNKNOWN_TOPIC_OR_PARTITION)
    assert (absent["topic_id"], absent["partitions"], absent["is_internal"]) == (bytes(16), [], False)
    for topic, name, count in ((one, "stage-one", 1), (pair, "stage-pair", 2)):
        assert (topic["name"], topic["error_code"], topic["topic_id"]) == (name, 0, raw.topic_id(name))
        assert [(each["partition_index"], each["error_code"]) for each in topic["partitions"]] == [
            (index, 0) for index in range(count)
        ]


def test_fetch_of_nothing_of_the_unknown_and_of_an_empty_topic(raw: Raw) -> None:
    answer = raw.ask(ApiKey.FETCH, fetch([]), FETCH)
    assert (answer["error_code"], answer["responses"]) == (0, [])

    unknown = b"\x12" * 16
    [topic] = raw.ask(ApiKey.FETCH, fetch([(unknown, 0, 0)]), FETCH)["responses"]
    [found] = topic["partitions"]
    assert (topic["topic_id"], found["partition_index"], found["error_code"]) == (unknown, 0, Code.UNKNOWN_TOPIC_ID)

    empty = raw.make("stage-empty")
    [topic] = raw.ask(ApiKey.FETCH, fetch([(empty, 0, 0)]), FETCH)["responses"]
    [found] = topic["partitions"]
    assert (topic["topic_id"], found["error_code"], bytes(found["records"] or b"")) == (empty, 0, b"")


def test_produce_and_fetch_of_one_and_of_many(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "stage-many", 2)
    create(broker, "stage-other")
    first, second, third = records(b"one"), records(b"two", b"three"), records(b"four")
    wanted = [
        {"name": "stage-many", "partition_data": [{"index": 0, "records": first}, {"index": 1, "records": second}]},
        {"name": "stage-other", "partition_data": [{"index": 0, "records": third}, {"index": 7, "records": third}]},
        {"name": "stage-none", "partition_data": [{"index": 0, "records": third}]},
    ]
    answer = raw.ask(ApiKey.PRODUCE, {"acks": -1, "timeout_ms": 1000, "topic_data": wanted}, PRODUCE)
    assert [
        (topic["name"], each["index"], each["error_code"], each["base_offset"])
        for topic in answer["responses"]
        for each in topic["partition_responses"]
    ] == [
        ("stage-many", 0, 0, 0),
        ("stage-many", 1, 0, 0),
        ("stage-other", 0, 0, 0),
        ("stage-other", 7, Code.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ("stage-none", 0, Code.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]
    raw.produce("stage-many", records(b"five"))
    many, other = raw.topic_id("stage-many"), raw.topic_id("stage-other")
    found = raw.ask(ApiKey.FETCH, fetch([(many, 0, 0), (many, 1, 0), (other, 0, 0)]), FETCH)["responses"]
    assert [values_of(each["records"]) for topic in found for each in topic["partitions"]] == [
        [b"one", b"five"],
        [b"two", b"three"],
        [b"four"],
    ]
