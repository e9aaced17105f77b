"""Each option in each use: it changes the result, or it is refused. No option is taken and then ignored.

Two options are Spark's own, checkpointLocation and queryName: test_streams.py tests these, and the others of
writeStream.
"""

from __future__ import annotations

import json
import time
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from krappy.blocking import Client, KeyRange
from krappy.errors import ConfigError, KrappyError, SnapshotGone
from krappy.spark.broker_at import SECURITY
from krappy.spark.held import from_text
from krappy.spark.option_table import OPTIONS, USES
from krappy.spark.options import parse
from krappy.spark.schema import arrow_schema, spark_schema
from krappy.spark.stream_read import StreamReader
from krappy.spark.table_read import Part
from krappy.spark.versions import features
from krappy.spark.write import BatchWriter
from tests.process import wait_until
from tests.served import BROKERS
from tests.spark.rows import source, tasks

Given = dict[str, str]
NOWHERE = "127.0.0.1:1"
LATE = str(10**12)  # ms: after all events
T = {"subscribe": "$t"}
FROM_START = {**T, "startingOffsets": "earliest"}
BITES = {**FROM_START, "maxOffsetsPerTrigger": "2"}
WAITING = {**BITES, "minOffsetsPerTrigger": "1000"}
OFFSETS, TIMES, GONE = '{"$t":{"0":1,"1":0}}', '{"$t":{"0":1001,"1":0}}', '{"$t":{"0":9999,"1":0}}'
ASSIGN = '{"$t":[0]}'

# By use and option: the other options that are given, and the option's value, with which the result differs from that
# without it.
CELLS: dict[str, dict[str, tuple[Given, str]]] = {
    "log": {
        "address": (T, NOWHERE),
        "mode": (T, "table"),
        "subscribe": ({}, "$t"),
        "subscribePattern": ({}, "$t"),
        "assign": ({}, ASSIGN),
        "columns": (T, "key"),
        "includeHeaders": (T, "true"),
        "keyType": (T, "string"),
        "startingOffsets": (T, OFFSETS),
        "endingOffsets": (T, OFFSETS),
        "startingTimestamp": (T, "1001"),
        "endingTimestamp": (T, "1001"),
        "startingOffsetsByTimestamp": (T, TIMES),
        "endingOffsetsByTimestamp": (T, TIMES),
        "startingOffsetsByTimestampStrategy": ({**T, "startingTimestamp": LATE}, "latest"),
        "failOnDataLoss": ({**T, "startingOffsets": GONE}, "false"),
        "minPartitions": (T, "5"),
        "maxRecordsPerPartition": (T, "1"),
        "limit": (T, "1"),
    },
    "table": {
        "address": ({**T, "mode": "table"}, NOWHERE),
        "mode": (T, "table"),
        "subscribe": ({"mode": "table"}, "$t"),
        "subscribePattern": ({"mode": "table"}, "$t"),
        "assign": ({"mode": "table"}, ASSIGN),
        "columns": ({**T, "mode": "table"}, "key"),
        "includeHeaders": ({**T, "mode": "table"}, "true"),
        "keyType": ({**T, "mode": "table"}, "string"),
        "minPartitions": ({**T, "keys": '["a","b"]'}, "2"),
        "tombstones": ({**T, "mode": "table"}, "true"),
        "key": (T, "a"),
        "keys": (T, '["a","b"]'),
        "keyPrefix": (T, "a"),
        "keyFrom": (T, "b"),
        "keyTo": (T, "b"),
        "keyEncoding": ({**T, "key": "61"}, "hex"),
        "limit": ({**T, "mode": "table"}, "1"),
        "pushdown": ({**T, "mode": "table"}, "true"),
        "snapshot": ({"mode": "table"}, "$snapshot"),
    },
    "snapshot": {
        "address": ({**T, "mode": "snapshot"}, NOWHERE),
        "mode": (T, "snapshot"),
        "subscribe": ({"mode": "snapshot"}, "$t"),
        "subscribePattern": ({"mode": "snapshot"}, "$t"),
        "assign": ({"mode": "snapshot"}, ASSIGN),
        "minPartitions": ({**T, "mode": "snapshot"}, "64"),
        "keyPrefix": ({**T, "mode": "snapshot"}, "a"),
        "keyFrom": ({**T, "mode": "snapshot"}, "b"),
        "keyTo": ({**T, "mode": "snapshot"}, "b"),
        "keyEncoding": ({**T, "mode": "snapshot", "keyFrom": "61"}, "hex"),
    },
    "stream": {
        "address": (T, NOWHERE),
        "subscribe": ({}, "$t"),
        "subscribePattern": ({}, "$t"),
        "assign": ({}, ASSIGN),
        "columns": (T, "key"),
        "includeHeaders": (T, "true"),
        "keyType": (T, "string"),
        "startingOffsets": (T, "earliest"),
        "startingTimestamp": (T, "1001"),
        "startingOffsetsByTimestamp": (T, TIMES),
        "startingOffsetsByTimestampStrategy": ({**T, "startingTimestamp": LATE}, "latest"),
        "failOnDataLoss": ({**T, "startingOffsets": GONE}, "false"),
        "minPartitions": (FROM_START, "5"),
        "maxRecordsPerPartition": (FROM_START, "1"),
        "maxOffsetsPerTrigger": (FROM_START, "2"),
        "minOffsetsPerTrigger": (BITES, "1000"),
        "maxTriggerDelay": (WAITING, "1s"),
    },
    "write": {
        "address": ({"topic": "$t"}, NOWHERE),
        "topic": ({}, "$t"),
        "jobId": ({"topic": "$t"}, "$t-job"),
        "compression": ({"topic": "$t"}, "zstd"),
    },
}
ELSEWHERE = {  # tested below, or in another module
    *((use, name) for name in SECURITY for use in USES),  # test_secured.py
    *((use, "snapshotTtl") for use in ("table", "snapshot", "stream")),
    ("write", "stagingTtl"),
    ("write", "awaitTable"),  # test_bulk.py
    *(("writeStream", option.name) for option in OPTIONS if "writeStream" in option.uses),
}


def options(given: Given, topic: str, snapshot: str = "") -> Given:
    return {name: text.replace("$t", topic).replace("$snapshot", snapshot) for name, text in given.items()}


def at(partition: int) -> int | None:
    """In a cluster, keys stand where their hashes say: else no broker could tell which rows are the latest."""
    return partition if BROKERS == 1 else None


@pytest.fixture
def filled(client: Client, topic: str) -> str:
    """Two partitions with the keys a to d, of which b has a header and c is deleted; and many more keys."""
    client.create_topic(topic, 2)
    with client.producer(topic) as producer:
        for number, key in enumerate("abcd"):
            value, headers = (None if key == "c" else key * 3000), ({"h": "1"} if key == "b" else None)
            producer.send(value, key=key, headers=headers, timestamp=1000 + number, partition=at(number % 2))
        more = [f"e{number:03}" for number in range(200)]
        producer.send_columns(more, more, timestamps=[1100] * len(more), partition=at(0))
    return topic


def read(client: Client, address: str, given: Given) -> Any:
    made = source(**{"address": address, **given})
    schema = made.schema()
    if given.get("mode") == "snapshot":  # without the id, which differs each time
        [text] = {row["snapshot"] for some in tasks(**{"address": address, **given}) for row in some}
        held, read_by = from_text(text), tasks(address, snapshot=text)
        client.close_snapshot(held.id)
        return schema.names, held.offsets, held.ranges, read_by
    return schema.simpleString(), type(made.reader(schema)).__name__, tasks(**{"address": address, **given})


def stream(address: str, given: Given) -> Any:
    """Three batches, a minute apart."""
    parsed = parse({"address": address, **given}, "stream")
    schema = spark_schema(parsed.columns, parsed.key_type)
    clock = count(0, 60)
    reader = StreamReader(schema, parsed, lambda: next(clock))
    at, found = reader.initialOffset(), []
    for _ in range(3):
        end = reader.latestOffset(at)
        found.append([[b.to_pylist() for b in reader.read(part)] for part in reader.partitions(at, end)])
        at = end
    return schema.simpleString(), at, found


def write(client: Client, address: str, given: Given) -> Any:
    """Writes the same rows twice; returns how many have come, and how large they are."""
    columns = ("key", "value")
    [batch] = [pa.RecordBatch.from_pylist([{"key": b"k", "value": bytes(5000)}], arrow_schema(spark_schema(columns)))]
    for _ in range(2):
        writer = BatchWriter(spark_schema(columns), parse({"address": address, **given}, "write"), False)
        writer.commit([writer.write(iter([batch]))])
    info = client.describe(given["topic"])
    return sum(each.end for each in info.partitions), sum(each.size for each in info.partitions)


def outcome(use: str, client: Client, address: str, given: Given) -> Any:
    """The result, errors included."""
    try:
        if use == "stream":
            return stream(address, given)
        return write(client, address, given) if use == "write" else read(client, address, given)
    except KrappyError as error:
        return type(error), str(error)


@pytest.mark.parametrize(("use", "name"), [(use, name) for use, cells in CELLS.items() for name in cells])
def test_it_does_something(client: Client, address: str, filled: str, use: str, name: str) -> None:
    if name == "pushdown" and not features().push_filters:
        pytest.skip("PySpark before 4.1 passes no filters on: it is refused, as test_reads.py shows")
    beside, value = CELLS[use][name]
    snapshot = ""
    if (use, name) == ("snapshot", "minPartitions"):  # a few hundred keys are not worth a task of their own
        with client.producer(filled) as producer:
            keys = [f"f{number}" for number in range(8000)]
            producer.send_columns(keys, keys, partition=at(0))
    if name == "snapshot":
        [snapshot] = {row["snapshot"] for some in tasks(address, mode="snapshot", subscribe=filled) for row in some}
    without, given = options(beside, filled, snapshot), options({**beside, name: value}, filled, snapshot)
    if use == "write":  # what was written stays, so each has a topic of its own
        client.create_topic(f"{filled}-2")
        client.create_topic(f"{filled}-3")
        without = {each: text.replace(filled, f"{filled}-2") for each, text in without.items()}
        given = {each: text.replace(filled, f"{filled}-3") for each, text in given.items()}
    with_it = outcome(use, client, address, given)
    assert with_it != outcome(use, client, address, without)
    if name not in ("address", "mode", "failOnDataLoss"):
        assert with_it[0] is not ConfigError, with_it


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
@pytest.mark.parametrize("use", USES)
def test_it_is_taken_or_refused(option: Any, use: str) -> None:
    taken = use in option.uses
    assert taken == (option.name in CELLS.get(use, {}) or (use, option.name) in ELSEWHERE), "each cell has its test"
    if not taken:
        as_mode = {"mode": use} if use in ("log", "table", "snapshot") else {}
        value = "table" if option.name == "mode" else "1"
        for read_as in ("any", "log") if use in ("table", "snapshot") else (use,):
            with pytest.raises(ConfigError, match=f"option '{option.name}' is for .* and this is "):
                parse({**as_mode, option.name: value}, read_as)


@pytest.mark.parametrize("use", ["table", "snapshot", "stream"])
def test_a_snapshot_lives_as_long_as_is_said(client: Client, address: str, filled: str, use: str) -> None:
    """The default is minutes, since the other tests need time to read theirs."""
    given = {"address": address, "subscribe": filled, "snapshotTtl": "50ms"}
    if use == "snapshot":
        [text] = {row["snapshot"] for some in tasks(mode="snapshot", **given) for row in some}
        id = json.loads(text)["id"]
    elif use == "table":
        made = source(mode="table", minPartitions=3, **given)
        part, *_ = made.reader(made.schema()).partitions()
        [piece] = part.pieces  # type: ignore[attr-defined]
        assert isinstance(piece, Part)
        id = piece.snapshot
    else:
        parsed = parse({**given, "startingOffsets": "snapshot"}, "stream")
        reader = StreamReader(spark_schema(parsed.columns), parsed)
        id = reader.latestOffset(reader.initialOffset())["$first"]["snapshots"][filled]

    def gone() -> bool:
        time.sleep(0.2)  # each look at the snapshot prolongs its life
        try:
            list(client.read_snapshot(id, KeyRange(0)))
        except SnapshotGone:
            return True
        return False

    wait_until(gone, "the snapshot has ended")


def test_what_is_staged_is_kept_as_long_as_is_said(client: Client, address: str, topic: str) -> None:
    client.create_topic(topic)
    schema = spark_schema(("value",))
    batch = pa.RecordBatch.from_pylist([{"value": b"v"}], arrow_schema(schema))
    expires = []
    for ttl in ("1m", None, "1d"):
        given = {"address": address, "topic": topic, "jobId": f"{topic}-{ttl}", **({"stagingTtl": ttl} if ttl else {})}
        writer = BatchWriter(schema, parse(given, "write"), False)
        message = writer.write(iter([batch]))
        expires += [job.expires_ms for job in client.staged_jobs() if job.job.startswith(f"{topic}-{ttl}")]
        writer.abort([message])
    hour = 3_600_000
    assert expires[0] + 5 * hour < expires[1] < expires[2] - 17 * hour
