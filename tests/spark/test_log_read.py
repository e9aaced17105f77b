"""mode=log: every way to say where it begins and ends, what a row has, how tasks share the offsets."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.blocking import Client
from krappy.errors import ConfigError, OffsetOutOfRange, SnapshotGone, UnknownPartition, UnknownTopic
from krappy.spark.ranges import OffsetRange, split
from tests.spark.rows import rows, source, tasks

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def offsets(found: list[dict[str, Any]]) -> dict[int, list[int]]:
    by_partition: dict[int, list[int]] = {}
    for row in found:
        by_partition.setdefault(row["partition"], []).append(row["offset"])
    return by_partition


@pytest.fixture
def filled(client: Client, topic: str) -> str:
    """Two partitions: 0 has offsets 0-9 at 1000, 1100, … ms; 1 has 0-4 at 2000, 2100, …"""
    client.create_topic(topic, partitions=2)
    with client.producer(topic) as producer:
        for number in range(10):
            producer.send(f"a{number}", partition=0, timestamp=1000 + 100 * number)
        for number in range(5):
            producer.send(f"b{number}", partition=1, timestamp=2000 + 100 * number)
    return topic


def test_what_a_row_holds(client: Client, address: str, topic: str) -> None:
    client.create_topic(topic)
    with client.producer(topic) as producer:
        producer.send(
            b"v\xff", key=b"\xffk", timestamp=1_700_000_000_123, headers=[("h", b"1"), ("h", None), ("ä", b"")]
        )
        producer.send(None, key=b"", timestamp=0)
        producer.send("", key=None, timestamp=5)
    found = rows(address, subscribe=topic, includeHeaders=True)
    first = {
        "key": b"\xffk",
        "value": b"v\xff",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": EPOCH + timedelta(milliseconds=1_700_000_000_123),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}, {"key": "ä", "value": b""}],
    }
    assert found[0] == first
    assert [(row["key"], row["value"], row["headers"]) for row in found[1:]] == [(b"", None, None), (None, b"", None)]
    assert [row["timestamp"] for row in found[1:]] == [EPOCH, EPOCH + timedelta(milliseconds=5)]
    assert rows(address, subscribe=topic) == [{k: v for k, v in row.items() if k != "headers"} for row in found]
    some = rows(address, subscribe=topic, columns="headers, offset,key")
    assert [list(row) for row in some] == [["headers", "offset", "key"]] * 3
    assert some[0] == {name: first[name] for name in ("headers", "offset", "key")}
    assert rows(address, subscribe=topic, columns="topic") == [{"topic": topic}] * 3


def test_text_keys(client: Client, address: str, topic: str) -> None:
    client.create_topic(topic)
    with client.producer(topic) as producer:
        producer.send("v", key="ä")
        producer.send("v")
    assert [row["key"] for row in rows(address, subscribe=topic, keyType="string")] == ["ä", None]
    with client.producer(topic) as producer:
        producer.send("v", key=b"\xff")
    with pytest.raises(Exception, match="keys that are not UTF-8: read them with keyType=binary"):
        rows(address, subscribe=topic, keyType="string")


def test_append_time(client: Client, address: str, topic: str) -> None:
    client.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    with client.producer(topic) as producer:
        producer.send("v", timestamp=7)
    client.alter_topic(topic, config={"message.timestamp.type": "CreateTime"})
    with client.producer(topic) as producer:
        producer.send("v", timestamp=8)
    by_broker, by_producer = rows(address, subscribe=topic)
    assert by_broker["timestampType"] == 1
    assert by_broker["timestamp"] > EPOCH + timedelta(days=365)
    assert (by_producer["timestampType"], by_producer["timestamp"]) == (0, EPOCH + timedelta(milliseconds=8))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (range(10), range(5))),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, (range(10), range(5))),
        ({"startingOffsets": {0: 3, 1: -2}, "endingOffsets": {0: 7, 1: -1}}, (range(3, 7), range(5))),
        ({"startingOffsets": {0: 10, 1: 5}}, (range(0), range(0))),
        ({"startingTimestamp": 1450}, (range(5, 10), range(5))),
        ({"startingTimestamp": 0, "endingTimestamp": 2100}, (range(10), range(1))),
        ({"endingTimestamp": 1}, (range(0), range(0))),
        ({"startingTimestamp": 1800, "endingTimestamp": 1200}, (range(0), range(0))),
        ({"startingOffsetsByTimestamp": {0: 1900, 1: 2400}}, (range(9, 10), range(4, 5))),
        ({"endingOffsetsByTimestamp": {0: 1900, 1: 99_999}}, (range(9), range(5))),
        ({"startingTimestamp": 2100, "startingOffsetsByTimestampStrategy": "latest"}, (range(0), range(1, 5))),
        ({"startingTimestamp": 2100, "assign": {1: None}}, (range(0), range(1, 5))),
        ({"startingOffsets": {0: -2, 1: 99}, "failOnDataLoss": "false"}, (range(10), range(0))),
        ({"endingOffsets": {0: 99, 1: 2}, "failOnDataLoss": "false"}, (range(10), range(2))),
    ],
)
def test_where_it_begins_and_ends(
    address: str, filled: str, given: dict[str, Any], expected: tuple[range, range]
) -> None:
    options = {
        name: json.dumps({filled: list(value) if name == "assign" else value}) if isinstance(value, dict) else value
        for name, value in given.items()
    }
    if "assign" not in options:
        options["subscribe"] = filled
    found = offsets(rows(address, **options))
    assert found == {partition: list(some) for partition, some in enumerate(expected) if some}


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"startingOffsets": {0: 3}}, ConfigError, "and .*-1 is missing"),
        ({"startingOffsets": {}}, ConfigError, "and .*-0, .*-1 are missing"),
        ({"endingOffsets": {}}, ConfigError, "and .*-0, .*-1 are missing"),
        ({"startingOffsetsByTimestamp": {}}, ConfigError, "and .*-0, .*-1 are missing"),
        ({"startingOffsets": '{"other": {}}'}, ConfigError, "offsets or times for 'other', and only .*-0, "),
        ({"startingOffsets": {0: 3, 1: 0, 2: 0}}, ConfigError, "offsets or times for .*-2, and only"),
        ({"startingOffsets": {0: 11, 1: 0}}, OffsetOutOfRange, "offsets 11 to 10 .* there are 0 to 10; failOnDataLoss"),
        ({"endingOffsets": {0: 11, 1: 0}}, OffsetOutOfRange, "there are 0 to 10; failOnDataLoss=false reads what is"),
        (
            {"startingOffsets": {0: 5, 1: 0}, "endingOffsets": {0: 4, 1: 0}},
            ConfigError,
            "at offset 5 and to end",
        ),
        ({"startingTimestamp": 2000}, ConfigError, "-0 has no event at or after 2000 ms .*Strategy=latest"),
        ({"startingTimestamp": 10**18}, ConfigError, "after the year 9999"),
        ({"subscribe": "nobody"}, UnknownTopic, "there is no topic 'nobody'"),
    ],
)
def test_where_it_can_not_begin_or_end(
    address: str, filled: str, given: dict[str, Any], error: type[Exception], said: str
) -> None:
    options = {name: json.dumps({filled: at}) if isinstance(at, dict) else at for name, at in given.items()}
    with pytest.raises(error, match=said):
        rows(address, **{"subscribe": filled, **options})


def test_topics_by_name_pattern_and_partition(client: Client, address: str, topic: str) -> None:
    for name in ("a1", "a2", "b"):
        client.create_topic(f"{topic}-{name}", partitions=2)
        with client.producer(f"{topic}-{name}") as producer:
            for partition in (0, 1):
                producer.send(name, partition=partition)
    got = [
        (row["topic"].removeprefix(topic), row["partition"]) for row in rows(address, subscribePattern=f"{topic}-a.*")
    ]
    assert sorted(got) == [("-a1", 0), ("-a1", 1), ("-a2", 0), ("-a2", 1)]
    got = [(row["topic"], row["partition"]) for row in rows(address, subscribe=f"{topic}-a1,{topic}-b")]
    assert {name for name, _ in got} == {f"{topic}-a1", f"{topic}-b"}
    some = {f"{topic}-a1": [1], f"{topic}-b": [0]}
    got = [(row["topic"], row["partition"]) for row in rows(address, assign=json.dumps(some))]
    assert sorted(got) == [(f"{topic}-a1", 1), (f"{topic}-b", 0)]
    assert rows(address, subscribePattern=f"{topic}-nothing") == []
    part = rows(address, subscribePattern=topic.removeprefix("test-"))
    assert part == rows(address, subscribePattern=f"^{topic}-[ab][12]?$"), (
        "a part of the name, as in Spark's Kafka source"
    )
    with pytest.raises(UnknownPartition, match="has 2 partitions, there is no 2"):
        rows(address, assign=json.dumps({f"{topic}-b": [2]}))


def test_what_was_deleted(client: Client, address: str, filled: str) -> None:
    client.delete_records(filled, {0: 4})
    given = {"subscribe": filled, "startingOffsets": json.dumps({filled: {0: 2, 1: 0}})}
    with pytest.raises(OffsetOutOfRange, match="offsets 2 to 10 were asked for, and there are 4 to 10"):
        rows(address, **given)
    assert offsets(rows(address, **given, failOnDataLoss=False))[0] == list(range(4, 10))
    assert offsets(rows(address, subscribe=filled))[0] == list(range(4, 10))


def test_what_is_deleted_while_it_is_read(client: Client, address: str, filled: str) -> None:
    from krappy.spark.log_read import LogPartition, read
    from krappy.spark.options import parse
    from krappy.spark.schema import spark_schema

    part = OffsetRange(filled, 0, 0, 10, client.describe(filled).id, 1)
    client.delete_records(filled, {0: 6})
    schema = spark_schema(("offset",))
    options = {"address": address, "subscribe": filled}
    with pytest.raises(OffsetOutOfRange):
        list(read(LogPartition([part]).parts, schema, parse(options, "log")))
    found = list(read([part], schema, parse({**options, "failOnDataLoss": "false"}, "log")))
    assert [row for batch in found for row in batch.column("offset").to_pylist()] == [6, 7, 8, 9]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "table"},
        {"mode": "table", "minPartitions": 4},
        {"keys": '["a","b"]'},
        {"mode": "table", "limit": 9},
    ],
)
@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_that_is_deleted_while_it_is_read(
    client: Client, address: str, filled: str, options: dict[str, Any], anew: bool
) -> None:
    """The error does not advise to create a topic that others have just deleted. (A table by its name may be that of a
    new topic.)"""
    made = source(address, subscribe=filled, **options)
    reader = made.reader(made.schema())
    planned = reader.partitions()
    client.delete_topic(filled)
    if anew:
        client.create_topic(filled, partitions=2)
    if anew and options in ({"mode": "table"}, {"keys": '["a","b"]'}, {"mode": "table", "limit": 9}):
        assert [list(reader.read(partition)) for partition in planned] == [[]]
        return
    told = f"was deleted|is gone|there is no topic '{filled}'$"
    with pytest.raises((UnknownTopic, SnapshotGone), match=told) as caught:
        [list(reader.read(partition)) for partition in planned]
    assert "create" not in str(caught.value)


def test_tasks_share_the_offsets(address: str, filled: str) -> None:
    assert [len(some) for some in tasks(address, subscribe=filled)] == [10, 5]
    assert [len(some) for some in tasks(address, subscribe=filled, minPartitions=6)] == [2, 3, 2, 3, 2, 3]
    assert [len(some) for some in tasks(address, subscribe=filled, maxRecordsPerPartition=4)] == [3, 3, 4, 2, 3]
    assert sum(len(some) for some in tasks(address, subscribe=filled, minPartitions=99)) == 15
    assert [len(some) for some in tasks(address, subscribe=filled, limit=12)] == [12]
    assert [len(some) for some in tasks(address, subscribe=filled, limit=99)] == [15]


def test_an_empty_topic_and_one_of_64_partitions(client: Client, address: str, topic: str) -> None:
    client.create_topic(topic, partitions=64)
    assert tasks(address, subscribe=topic) == [[]]
    with client.producer(topic) as producer:
        for number in range(500):
            producer.send(str(number), key=str(number))
    found = tasks(address, subscribe=topic)
    assert len(found) <= 64
    assert sorted(int(row["value"]) for some in found for row in some) == list(range(500))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60)), max_size=6),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 30)),
)
def test_a_split_keeps_every_offset_once(
    some: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    whole = [OffsetRange("t", partition, start, start + size, "id", 1) for partition, (start, size) in enumerate(some)]
    parts = split(whole, min_partitions, max_records)
    covered = [(part.partition, offset) for part in parts for offset in range(part.start, part.end)]
    assert covered == [(each.partition, offset) for each in whole for offset in range(each.start, each.end)]
    assert all(part.size >= 1 for part in parts)
    if max_records is not None:
        assert all(part.size <= max_records for part in parts)
    if min_partitions is not None:
        assert len(parts) >= min(min_partitions, len(covered))
