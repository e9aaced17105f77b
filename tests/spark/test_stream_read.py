"""Where a stream goes on, asked as Spark asks: with a broker, but without a Spark session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from krappy.blocking import Client
from krappy.clients.acls import AclInfo
from krappy.errors import OffsetOutOfRange, SnapshotGone, TopicAuthorizationFailed, UnknownTopic
from krappy.spark.log_read import LogPartition
from krappy.spark.options import parse
from krappy.spark.schema import spark_schema
from krappy.spark.stream_offsets import decoded
from krappy.spark.stream_read import StreamReader
from krappy.spark.stream_table import FirstPartition
from krappy.spark.versions import features
from tests.served import BROKERS
from tests.spark.test_shared import with_users

if not features().admission_control:
    pytest.skip(
        "PySpark before 4.2 has no limits of a read; test_streams.py has whole queries", allow_module_level=True
    )

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

Offset = dict[str, Any]


@pytest.fixture
def reader(address: str, topic: str) -> Any:
    """Makes readers of the test's topic."""

    def made(clock: Callable[[], float] = monotonic, **options: object) -> StreamReader:
        given = {"address": address, **{name: str(value) for name, value in options.items()}}
        if not {"subscribe", "subscribePattern", "assign"} & set(given):
            given["subscribe"] = topic
        parsed = parse(given, "stream")
        return StreamReader(spark_schema(parsed.columns, parsed.key_type), parsed, clock)

    return made


def fill(client: Client, topic: str, *counts: int) -> None:
    """Sends so many events to each partition of a new topic."""
    client.create_topic(topic, len(counts))
    more(client, topic, *counts)


def more(client: Client, topic: str, *counts: int) -> None:
    with client.producer(topic) as producer:
        for partition, count in enumerate(counts):
            if count:
                producer.send_columns(None, ["x"] * count, partition=partition)


def spans(reader: StreamReader, start: Offset, end: Offset) -> list[tuple[int, int, int]]:
    found = []
    for each in reader.partitions(start, end):
        assert isinstance(each, LogPartition)
        found += [(part.partition, part.start, part.end) for part in each.parts]
    return found


def rows(reader: StreamReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


def batches(reader: StreamReader, limit: Any, start: Offset | None = None) -> Iterator[tuple[Offset, Offset]]:
    """The micro-batches until there is nothing more to read."""
    at = reader.initialOffset() if start is None else start
    while (end := reader.latestOffset(at, limit)) != at:
        yield at, end
        at = end


def test_a_stream_in_bites(reader: Any, client: Client, topic: str) -> None:
    fill(client, topic, 60, 30, 1)
    made = reader(startingOffsets="earliest", maxOffsetsPerTrigger=31, includeHeaders="true")
    limit = made.getDefaultReadLimit()
    assert limit == ReadMaxRows(31)
    sizes, seen = [], []
    for start, end in batches(made, limit):
        found = rows(made, start, end)
        sizes.append(len(found))
        seen += [(row["partition"], row["offset"]) for row in found]
    assert sizes == [31, 31, 29]
    assert sorted(seen) == [(0, n) for n in range(60)] + [(1, n) for n in range(30)] + [(2, 0)]
    whole = reader(startingOffsets="earliest", maxOffsetsPerTrigger=31)
    everything = whole.latestOffset(whole.initialOffset(), ReadAllAvailable())
    assert list(decoded(everything).at.values()) == [60, 30, 1], "Spark may ask for all there is"


def test_the_first_batch_is_the_same_whenever_it_is_replayed(reader: Any, client: Client, topic: str) -> None:
    """Spark asks a new process for the initial offset, and knows the end of the batch that the old one had planned."""
    fill(client, topic, 5, 0)
    first = reader()
    begun = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    assert decoded(begun).first == decoded(begun).offsets, "latest: nothing yet, but from here on"
    more(client, topic, 3, 2)
    again = reader(startingOffsets="earliest")
    assert spans(again, again.initialOffset(), begun) == [], "the checkpoint wins"
    end = again.latestOffset(begun, ReadAllAvailable())
    assert spans(again, begun, end) == [(0, 5, 8), (1, 0, 2)]
    assert again.latestOffset(end, ReadAllAvailable()) is end, "nothing new: the very same offset"


def test_available_now_ends(reader: Any, client: Client, topic: str) -> None:
    fill(client, topic, 10)
    made = reader(startingOffsets="earliest", maxOffsetsPerTrigger=4, minOffsetsPerTrigger=100)
    made.prepareForTriggerAvailableNow()
    found = []
    for start, end in batches(made, ReadMaxRows(4)):
        more(client, topic, 5)
        found += spans(made, start, end)
    assert found == [(0, 0, 4), (0, 4, 8), (0, 8, 10)]
    assert made.reportLatestOffset() == {topic: {"0": 25}}


def test_a_batch_waits_for_enough(reader: Any, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    fill(client, topic, 3)
    made = reader(lambda: now, startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="1m")
    limit = made.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    first = made.latestOffset(made.initialOffset(), limit)
    assert decoded(first).at == {(topic, 0): 3}, "the first batch does not wait"
    more(client, topic, 9)
    assert made.latestOffset(first, limit) is first
    now += 60.0
    late = made.latestOffset(first, limit)
    assert decoded(late).at == {(topic, 0): 12}
    more(client, topic, 10)
    assert decoded(made.latestOffset(late, limit)).at == {(topic, 0): 22}


def test_before_admission_control_the_place_is_known_from_what_was_planned(
    reader: Any, client: Client, topic: str
) -> None:
    """PySpark 4.0 and 4.1: latestOffset() without arguments; after a restart an empty batch is planned first."""
    fill(client, topic, 10)
    made = reader(startingOffsets="earliest", maxOffsetsPerTrigger=4)
    start, ends = made.initialOffset(), []
    for _ in range(2):
        end = made.latestOffset()
        ends.append(spans(made, start, end))
        start = end
    again = reader(startingOffsets="earliest", maxOffsetsPerTrigger=4)
    assert again.partitions(start, start) == []
    end = again.latestOffset()
    assert [*ends, spans(again, start, end)] == [[(0, 0, 4)], [(0, 4, 8)], [(0, 8, 10)]]
    assert again.latestOffset() == end


def test_partitions_and_topics_that_are_added_are_read_from_the_start(reader: Any, client: Client, topic: str) -> None:
    fill(client, f"{topic}.a", 2)
    made = reader(subscribePattern=rf"{topic}\..", maxRecordsPerPartition=3)
    begun = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    client.alter_topic(f"{topic}.a", partitions=2)
    more(client, f"{topic}.a", 1, 4)
    fill(client, f"{topic}.b", 2)
    end = made.latestOffset(begun, ReadAllAvailable())
    assert spans(made, begun, end) == [(0, 2, 3), (1, 0, 2), (1, 2, 4), (0, 0, 2)]


def test_what_was_deleted_is_an_error_or_skipped(reader: Any, client: Client, topic: str) -> None:
    fill(client, topic, 10, 10)
    strict, lax = reader(startingOffsets="earliest"), reader(startingOffsets="earliest", failOnDataLoss="false")
    bite = reader(startingOffsets="earliest", maxOffsetsPerTrigger=4)
    first = bite.latestOffset(bite.initialOffset(), ReadMaxRows(4))
    client.delete_records(topic, 5, partitions=[0])
    end = lax.latestOffset(first, ReadAllAvailable())
    with pytest.raises(OffsetOutOfRange, match=r"begins at offset 5 by now; offsets from 2 to 10 .*=false"):
        strict.partitions(first, end)
    assert spans(lax, first, end) == [(0, 5, 10), (1, 2, 10)]


def test_starting_offsets_that_are_not_there(reader: Any, client: Client, topic: str) -> None:
    fill(client, topic, 10, 10)
    client.delete_records(topic, 5, partitions=[0])
    given = {"startingOffsets": f'{{"{topic}":{{"0":2,"1":11}}}}'}
    strict = reader(**given)
    with pytest.raises(OffsetOutOfRange, match=r"from offset 2 on, .* offsets 5 to 10\. .*failOnDataLoss=false"):
        strict.latestOffset(strict.initialOffset(), ReadAllAvailable())
    lax = reader(failOnDataLoss="false", **given)
    begun = lax.latestOffset(lax.initialOffset(), ReadAllAvailable())
    assert spans(lax, lax.initialOffset(), begun) == [(0, 5, 10)]


@pytest.mark.parametrize("count", [3, 10, 25])
def test_a_topic_that_was_made_anew(reader: Any, client: Client, topic: str, count: int) -> None:
    """The new topic has fewer events than the old one had, as many, or more. It is noticed, and read from its first
    event on."""
    fill(client, topic, 10)
    strict, lax = reader(startingOffsets="earliest"), reader(startingOffsets="earliest", failOnDataLoss="false")
    at = strict.latestOffset(strict.initialOffset(), ReadAllAvailable())
    client.delete_topic(topic)
    with pytest.raises(UnknownTopic):
        strict.latestOffset(at, ReadAllAvailable())
    with pytest.raises(UnknownTopic):
        lax.latestOffset(lax.initialOffset(), ReadAllAvailable())
    gone = lax.latestOffset(at, ReadAllAvailable())
    assert spans(lax, at, gone) == []
    fill(client, topic, count)
    assert spans(lax, gone, lax.latestOffset(gone, ReadAllAvailable())) == [(0, 0, count)]
    expected = r"was read up to offset 10, and its topic was deleted and made anew since.*failOnDataLoss=false"
    with pytest.raises(OffsetOutOfRange, match=expected):
        strict.latestOffset(at, ReadAllAvailable())
    end = lax.latestOffset(at, ReadAllAvailable())
    assert spans(lax, at, end) == [(0, 0, count)]
    assert lax.latestOffset(end, ReadAllAvailable()) is end, "and from then on it is this query's topic"
    for made in (strict, lax):
        made.prepareForTriggerAvailableNow()
    with pytest.raises(OffsetOutOfRange, match=expected):
        strict.latestOffset(at, ReadAllAvailable())
    assert [spans(lax, start, end) for start, end in batches(lax, ReadAllAvailable(), at)] == [[(0, 0, count)]]
    bites = reader(maxOffsetsPerTrigger=2, failOnDataLoss="false")
    assert [part for start, end in batches(bites, ReadMaxRows(2), at) for part in spans(bites, start, end)] == [
        (0, first, min(first + 2, count)) for first in range(0, count, 2)
    ]


def test_a_topic_that_was_made_anew_with_other_partitions(reader: Any, client: Client, topic: str) -> None:
    fill(client, topic, 4, 4)
    lax = reader(startingOffsets="earliest", failOnDataLoss="false")
    at = lax.latestOffset(lax.initialOffset(), ReadAllAvailable())
    for counts in ((9,), (5, 6, 7)):
        client.delete_topic(topic)
        fill(client, topic, *counts)
        end = lax.latestOffset(at, ReadAllAvailable())
        assert spans(lax, at, end) == [(partition, 0, count) for partition, count in enumerate(counts)]
        at = end


def test_a_checkpoint_from_before_ids_were_kept(reader: Any, client: Client, topic: str) -> None:
    """The stream goes on. A topic that was made anew is noticed only if it has fewer events, as in Spark's Kafka
    source; from then on its id is known."""
    fill(client, topic, 10)
    old = {topic: {"0": 4}}
    strict = reader()
    end = strict.latestOffset(old, ReadAllAvailable())
    assert spans(strict, old, end) == [(0, 4, 10)]
    assert decoded(end).ids == {topic: client.describe(topic).id}
    at = {topic: {"0": 10}}
    end = strict.latestOffset(at, ReadAllAvailable())
    assert spans(strict, at, end) == [], "nothing new but its id"
    client.delete_topic(topic)
    fill(client, topic, 12)
    with pytest.raises(OffsetOutOfRange, match="made anew since"):
        reader().latestOffset(end, ReadAllAvailable())
    with pytest.raises(OffsetOutOfRange, match="ends at 12 now: its topic was deleted and made anew since"):
        reader().latestOffset({topic: {"0": 13}}, ReadAllAvailable())
    first = {topic: {"0": 5}, "$first": {"offsets": {topic: {"0": 2}}}}
    assert spans(strict, strict.initialOffset(), first) == [(0, 2, 5)]


def test_a_batch_that_was_planned_of_a_topic_that_is_made_anew_then(reader: Any, client: Client, topic: str) -> None:
    """The batch is planned again after a failure, or read by tasks that were planned before: nothing of the new topic
    comes as the old one's, and the next batch has all of it."""
    fill(client, topic, 10)
    strict, lax = reader(startingOffsets="earliest"), reader(startingOffsets="earliest", failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    tasks = {made: made.partitions(start, end) for made in (strict, lax)}
    client.delete_topic(topic)
    fill(client, topic, 20)
    with pytest.raises(OffsetOutOfRange, match="was deleted and made anew; offsets from 0 to 10 of it were to be read"):
        strict.partitions(start, end)
    assert lax.partitions(start, end) == []
    with pytest.raises(UnknownTopic, match="another one of that name was made since"):
        list(strict.read(tasks[strict][0]))
    assert list(lax.read(tasks[lax][0])) == []
    assert spans(lax, end, lax.latestOffset(end, ReadAllAvailable())) == [(0, 0, 20)]


def test_a_table_that_is_replayed_of_a_topic_made_anew(reader: Any, client: Client, topic: str) -> None:
    client.create_topic(topic, 2, {"cleanup.policy": "compact"})
    upsert(client, topic, {f"k{n}": "old" for n in range(10)})
    first = reader(startingOffsets="snapshot")
    start = first.initialOffset()
    begun = first.latestOffset(start, ReadAllAvailable())
    [planned, *_] = first.partitions(start, begun)
    client.delete_topic(topic)
    client.create_topic(topic, 2, {"cleanup.policy": "compact"})
    upsert(client, topic, {f"k{n}": "new" for n in range(20)})
    with pytest.raises(UnknownTopic, match="another one of that name was made since"):
        list(first.read(planned))
    with pytest.raises(OffsetOutOfRange, match=f"the table of '{topic}' was to be read, and .* made anew since"):
        reader(startingOffsets="snapshot").partitions(start, begun)
    lax = reader(startingOffsets="snapshot", failOnDataLoss="false")
    assert list(lax.read(planned)) == []
    assert rows(lax, start, begun) == []
    changes = by_key(rows(lax, begun, lax.latestOffset(begun, ReadAllAvailable())))
    assert changes == {f"k{n}": "new" for n in range(20)}


def test_a_position_serves_as_starting_offsets(reader: Any, client: Client, topic: str) -> None:
    """The position in a query's progress, with the other things that it says beside the offsets."""
    fill(client, topic, 10)
    made = reader(startingOffsets="earliest", maxOffsetsPerTrigger=4)
    end = made.latestOffset(made.initialOffset(), ReadMaxRows(4))
    on = reader(startingOffsets=json.dumps(end))
    assert spans(on, on.initialOffset(), on.latestOffset(on.initialOffset(), ReadAllAvailable())) == [(0, 4, 10)]


def test_a_checkpoint_of_another_topic(reader: Any, client: Client, topic: str) -> None:
    fill(client, topic, 1)
    elsewhere = {"elsewhere": {"0": 5}}
    with pytest.raises(OffsetOutOfRange, match=r"elsewhere-0 was read up to offset 5, and .* no topic of this query's"):
        reader().latestOffset(elsewhere, ReadAllAvailable())
    lax = reader(failOnDataLoss="false")
    assert spans(lax, elsewhere, lax.latestOffset(elsewhere, ReadAllAvailable())) == [(0, 0, 1)]


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern", "assign"])
def test_a_topic_that_is_left_out_and_named_again_goes_on_where_it_was(
    reader: Any, client: Client, topic: str, how: str
) -> None:
    fill(client, topic, 2)
    fill(client, topic + "-b", 3)
    both, one = {
        "subscribe": (f"{topic},{topic}-b", topic),
        "subscribePattern": (f"^{topic}", f"^{topic}$"),
        "assign": (json.dumps({topic: [0], f"{topic}-b": [0]}), json.dumps({topic: [0]})),
    }[how]
    at = reader(**{how: both}, startingOffsets="earliest").latestOffset(None, ReadAllAvailable())
    lax = reader(**{how: one}, failOnDataLoss="false")
    assert lax.latestOffset(at, ReadAllAvailable()) == at
    more(client, topic, 1)
    more(client, topic + "-b", 4)
    for limit in (ReadAllAvailable(), ReadMaxRows(1)):
        end = lax.latestOffset(at, limit)
        assert spans(lax, at, end) == [(0, 2, 3)]
    again = reader(**{how: both})
    assert spans(again, end, again.latestOffset(end, ReadAllAvailable())) == [(0, 3, 7)]


def upsert(client: Client, topic: str, values: dict[str, str | None]) -> None:
    with client.producer(topic) as producer:
        for key, value in values.items():
            producer.send(value, key=key)


def by_key(found: list[dict[str, Any]]) -> dict[str, str]:
    assert len({row["key"] for row in found}) == len(found), "a key comes once"
    return {row["key"].decode(): row["value"].decode() for row in found}


def test_the_table_comes_first_then_its_changes(reader: Any, client: Client, topic: str) -> None:
    client.create_topic(topic, 3, {"cleanup.policy": "compact"})
    upsert(client, topic, {f"k{n}": "old" for n in range(100)})
    upsert(client, topic, {"k1": "new", "k2": None})
    made = reader(startingOffsets="snapshot")
    begun = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    upsert(client, topic, {"k3": "changed", "k100": "added"})
    parts = made.partitions(made.initialOffset(), begun)
    assert all(isinstance(each, FirstPartition) for each in parts)
    table = by_key(rows(made, made.initialOffset(), begun))
    assert table == {f"k{n}": "new" if n == 1 else "old" for n in range(100) if n != 2}
    end = made.latestOffset(begun, ReadAllAvailable())
    assert by_key(rows(made, begun, end)) == {"k3": "changed", "k100": "added"}
    [id] = decoded(begun).snapshots.values()  # type: ignore[union-attr]
    with pytest.raises(SnapshotGone):
        client.keep_snapshot(id)


def test_a_table_that_is_replayed(reader: Any, client: Client, topic: str) -> None:
    """As long as its snapshot is held, the replay gives the same. Without it, it gives what has not changed since, and
    the rest comes later."""
    client.create_topic(topic, 3, {"cleanup.policy": "compact"})
    upsert(client, topic, {f"k{n}": "old" for n in range(100)})
    first = reader(startingOffsets="snapshot")
    start = first.initialOffset()
    begun = first.latestOffset(start, ReadAllAvailable())
    upsert(client, topic, {"k3": "changed", "k4": None, "k100": "added"})
    elsewhere = {}
    if BROKERS == 1:  # in a cluster no broker has all rows of a key once partitions were added
        client.alter_topic(topic, partitions=4)
        with client.producer(topic) as producer:
            producer.send("elsewhere", key="k101", partition=3)
        elsewhere[b"k101"] = b"elsewhere"
    again = reader(startingOffsets="snapshot")
    assert by_key(rows(again, start, begun)) == {f"k{n}": "old" for n in range(100)}
    [id] = decoded(begun).snapshots.values()  # type: ignore[union-attr]
    client.close_snapshot(id)
    late = reader(startingOffsets="snapshot")
    table = by_key(rows(late, start, begun))
    assert table == {f"k{n}": "old" for n in range(100) if n not in (3, 4)}
    changes = rows(late, begun, late.latestOffset(begun, ReadAllAvailable()))
    told = {row["key"]: row["value"] for row in changes}
    assert told == {b"k3": b"changed", b"k4": None, b"k100": b"added", **elsewhere}
    final = {**{key.encode(): value.encode() for key, value in table.items()}, **told}
    there = {entry.key: entry.value for entry in client.table(topic).scan()}
    assert {key: value for key, value in final.items() if value is not None} == there


def test_a_snapshot_that_ends_while_a_task_reads_it(reader: Any, client: Client, topic: str) -> None:
    client.create_topic(topic, 1)
    with client.producer(topic) as producer:
        producer.send_columns([f"{n:03}" for n in range(60)], [b"v" * 100_000] * 60)
    made = reader(startingOffsets="snapshot", keyType="string", columns="value,key")
    begun = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    [id] = decoded(begun).snapshots.values()  # type: ignore[union-attr]
    keys: list[str] = []
    for part in made.partitions(made.initialOffset(), begun):
        for batch in made.read(part):
            keys += batch.column("key").to_pylist()
            if len(keys) < 20:
                client.close_snapshot(id)
                upsert(client, topic, {"000": "read already", "059": "to come"})
    assert sorted(keys) == [f"{n:03}" for n in range(59)]


def test_an_empty_table_and_its_first_changes(reader: Any, client: Client, topic: str) -> None:
    client.create_topic(topic, 2)
    made = reader(startingOffsets="snapshot")
    made.prepareForTriggerAvailableNow()
    [(start, end)] = list(batches(made, ReadAllAvailable()))
    assert rows(made, start, end) == []
    upsert(client, topic, {"k": "v"})
    assert by_key(rows(made, end, reader().latestOffset(end, ReadAllAvailable()))) == {"k": "v"}


def test_a_checkpoint_of_something_else(reader: Any, client: Client, topic: str) -> None:
    fill(client, topic, 1)
    with pytest.raises(ValueError, match="the checkpointLocation of another query"):
        reader().latestOffset({"logOffset": 4}, ReadAllAvailable())


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("target", [False, True], ids=["for-ever", "available-now"])
def test_a_topic_of_a_pattern_that_may_not_be_described_any_more_is_not_lost(
    tmp_path: Path, reader: Any, fails: str, target: bool
) -> None:
    """Whatever failOnDataLoss says: nothing of it is lost, and once the right is back, the stream goes on where it
    was."""
    with with_users(tmp_path) as (ada, eve):
        ada.add_acls([AclInfo("topic", "hers", "User:eve", "read")])
        login = {"sasl.username": "eve", "sasl.password": "a-secret", "security.protocol": "SASL_PLAINTEXT"}
        given = {"subscribePattern": ".*", "startingOffsets": "earliest", "failOnDataLoss": fails, **login}

        def begun() -> Any:
            made = reader(address=eve.address, **given)
            if target:
                made.prepareForTriggerAvailableNow()
            return made

        made = begun()
        start = made.latestOffset(made.initialOffset(), ReadAllAvailable())
        more(ada, "hers", 3)
        end = reader(address=eve.address, **given).latestOffset(start, ReadAllAvailable())
        ada.delete_acls(name="hers")
        refused = partial(pytest.raises, TopicAuthorizationFailed, match="needs DESCRIBE on the topic 'hers'")
        with refused():
            begun().latestOffset(start, ReadAllAvailable())
        with refused():
            begun().partitions(start, end)
        ada.add_acls([AclInfo("topic", "hers", "User:eve", "read")])
        again = begun()
        assert again.latestOffset(start, ReadAllAvailable()) == end
        assert len(rows(again, start, end)) == 3
        ada.delete_topic("hers")
        if fails == "true":
            with pytest.raises(OffsetOutOfRange, match=r"hers-0 was read up to offset \d+, and is gone"):
                begun().latestOffset(end, ReadAllAvailable())
        else:
            assert decoded(begun().latestOffset(end, ReadAllAvailable())).at == {}
