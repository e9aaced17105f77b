"""mode=table and mode=snapshot: one moment of each table, read by tasks; keys are looked up and ranges read as a filter
would."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from krappy.blocking import Client
from krappy.errors import ConfigError, InvalidRecord, SnapshotGone, UnknownTopic, ViewDisabled
from krappy.spark import blocks, table_read
from krappy.spark.held import from_text
from tests.served import BROKERS, alone
from tests.spark.rows import rows, source, tasks

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def users(client: Client, topic: str) -> str:
    """u0 … u99 in 3 partitions, each written twice; u7 and u8 are deleted."""
    client.create_topic(topic, partitions=3)
    with client.producer(topic) as producer:
        for version in ("old", "new"):
            for number in range(100):
                headers = {"n": str(number)} if number % 2 else None
                producer.send(f"{version}{number}", key=f"u{number}", headers=headers, timestamp=1000 + number)
        producer.send(None, key="u7")
        producer.send(None, key="u8")
    return topic


ALIVE = {f"u{number}": f"new{number}" for number in range(100) if number not in (7, 8)}


def as_dict(found: list[dict[str, Any]]) -> dict[str, str]:
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"].decode(): row["value"].decode() for row in found}


@pytest.fixture(params=["small", "large", "in many tasks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Options and settings: for one task with a snapshot of its own, or for many on a snapshot that the
    broker holds."""
    if request.param == "large":
        monkeypatch.setattr(table_read, "SMALL", 0)
    return {"minPartitions": 9} if request.param == "in many tasks" else {}


def test_the_latest_of_each_key(address: str, users: str, way: dict[str, int]) -> None:
    found = rows(address, mode="table", subscribe=users, **way)
    assert as_dict(found) == ALIVE
    one = next(row for row in found if row["key"] == b"u5")
    assert list(one) == ["key", "value", "topic", "partition", "offset", "timestamp"]
    assert (one["topic"], one["timestamp"]) == (users, EPOCH + timedelta(milliseconds=1005))


def test_what_it_says_of_an_entry_is_what_a_lookup_says(client: Client, address: str, users: str) -> None:
    found = rows(address, mode="table", subscribe=users, includeHeaders=True)
    for row in found:
        entry = client.table(users).get(row["key"])
        assert entry is not None
        assert (entry.partition, entry.offset, entry.value) == (row["partition"], row["offset"], row["value"])
        assert [(each["key"], each["value"]) for each in row["headers"] or []] == list(entry.headers)
    exact = rows(address, subscribe=users, keys=json.dumps(sorted(ALIVE)), includeHeaders=True)
    assert sorted(exact, key=lambda row: row["key"]) == sorted(found, key=lambda row: row["key"])


def test_tombstones(address: str, users: str, way: dict[str, int]) -> None:
    found = rows(address, mode="table", subscribe=users, tombstones=True, **way)
    assert {row["key"] for row in found if row["deleted"]} == {b"u7", b"u8"}
    assert all((row["value"] is None) == row["deleted"] for row in found)
    assert len(found) == 100
    assert len(rows(address, mode="table", subscribe=users, tombstones=True, columns="key", **way)) == 100
    assert len(rows(address, mode="table", subscribe=users, columns="topic", **way)) == 98
    [gone] = rows(address, subscribe=users, key="u7", tombstones=True, columns="deleted,key")
    assert gone == {"deleted": True, "key": b"u7"}


CHOSEN: list[tuple[dict[str, object], set[str]]] = [
    ({"key": "u5"}, {"u5"}),
    ({"key": "u7"}, set()),
    ({"key": "nobody"}, set()),
    ({"keys": '["u5","u6","u5","nobody","u7"]'}, {"u5", "u6"}),
    ({"keys": "[]"}, set()),
    ({"keyPrefix": "u1"}, {key for key in ALIVE if key.startswith("u1")}),
    ({"keyPrefix": ""}, set(ALIVE)),
    ({"keyFrom": "u95"}, {key for key in ALIVE if key >= "u95"}),
    ({"keyTo": "u11"}, {key for key in ALIVE if key < "u11"}),
    ({"keyFrom": "u2", "keyTo": "u21"}, {"u2", "u20"}),
    ({"keyFrom": "u3", "keyTo": "u2"}, set()),
    ({"key": "7535", "keyEncoding": "hex"}, {"u5"}),
]


@pytest.mark.parametrize(("chosen", "expected"), CHOSEN)
def test_some_keys(
    address: str, users: str, way: dict[str, int], chosen: dict[str, object], expected: set[str]
) -> None:
    found = as_dict(rows(address, subscribe=users, **chosen, **way))
    assert found == {key: ALIVE[key] for key in expected}
    [held, *_] = rows(address, mode="snapshot", subscribe=users)
    assert as_dict(rows(address, snapshot=held["snapshot"], **chosen)) == found


def test_what_is_small_is_judged_by_what_it_holds(client: Client, address: str, topic: str) -> None:
    """The table's size counts, and not that of its log, which is a thousandth."""
    client.create_topic(topic, partitions=2)
    with client.producer(topic, compression="zstd") as producer:
        for number in range(40_000):
            producer.send(b"x" * 500, key=f"{number:06}")
    assert sum(partition.size for partition in client.describe(topic).partitions) < table_read.SMALL // 4
    found = tasks(address, mode="table", subscribe=topic)
    assert len(found) == 2
    assert all(len(some) > 10_000 for some in found)
    assert len({row["key"] for some in found for row in some}) == 40_000
    [one] = tasks(address, subscribe=topic, keyPrefix="0000")
    assert len(one) == 100, "and of what is wanted of it"
    assert len(tasks(address, mode="table", subscribe=topic, minPartitions=1)) > 1


@pytest.mark.parametrize("limit", [None, 39_000])
def test_a_table_that_has_grown_is_read_piece_by_piece(
    client: Client, address: str, topic: str, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    """One task reads it, since it was small when the query was planned; and nothing holds all of it in memory."""
    client.create_topic(topic, partitions=1)
    options = {} if limit is None else {"limit": limit}
    made = source(address, mode="table", subscribe=topic, **options)
    reader = made.reader(made.schema())
    [planned] = reader.partitions()
    with client.producer(topic) as producer:
        for number in range(40_000):
            producer.send(b"x" * 500, key=f"{number:06}")
    made_blocks, most = 0, 0
    of_block = blocks.of_block

    def counted(*given: Any) -> Any:
        nonlocal made_blocks
        made_blocks += 1
        return of_block(*given)

    monkeypatch.setattr(blocks, "of_block", counted)
    rows_read = 0
    for read, batch in enumerate(reader.read(planned), 1):
        rows_read += len(batch)
        most = max(most, made_blocks - read)
    assert rows_read == (limit or 40_000)
    assert most <= 2 + table_read.SMALL // (900 << 10), "blocks that were read ahead"
    assert made_blocks > 2 * most


def test_limit(address: str, users: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One task reads it, whatever the table's size is."""
    monkeypatch.setattr(table_read, "SMALL", 0)
    assert [len(some) for some in tasks(address, mode="table", subscribe=users, limit=5)] == [5]
    assert [len(some) for some in tasks(address, mode="table", subscribe=users, limit=500)] == [98]
    assert len(rows(address, subscribe=users, keys=json.dumps(sorted(ALIVE)), limit=7)) == 7
    assert len(rows(address, subscribe=users, keyPrefix="u1", limit=3)) == 3


@alone  # in a cluster no broker has all rows of such a key
def test_a_key_in_another_partition_than_its_hash_names(client: Client, address: str, topic: str) -> None:
    """A lookup finds what a scan finds, the newest entry. In partitions that are named, each partition has its own."""
    client.create_topic(topic, partitions=4)
    with client.producer(topic) as producer:
        for partition in range(4):
            producer.send(str(partition), key="k", partition=partition, timestamp=1_000 - partition)
    whole = rows(address, mode="table", subscribe=topic)
    assert [row["value"] for row in whole] == [b"0"]
    assert rows(address, subscribe=topic, key="k") == whole
    assert len(rows(address, assign=json.dumps({topic: [1, 3]}), key="k")) == 2


def test_a_snapshot_stays_as_it_was(client: Client, address: str, users: str) -> None:
    told = rows(address, mode="snapshot", subscribe=users, minPartitions=9)
    assert [(row["topic"], row["partition"]) for row in told] == [(users, 0), (users, 1), (users, 2)]
    assert {row["partition"]: row["offset"] for row in told} == client.offsets(users)
    [text] = {row["snapshot"] for row in told}
    with client.producer(users) as producer:
        for number in range(200):
            producer.send("newest", key=f"u{number}")
    assert as_dict(rows(address, snapshot=text)) == ALIVE
    since = json.dumps({users: {row["partition"]: row["offset"] for row in told}})
    assert len(rows(address, subscribe=users, startingOffsets=since)) == 200  # no gap and no duplicate
    client.close_snapshot(from_text(text).id)
    with pytest.raises(SnapshotGone, match="snapshot that this DataFrame reads has ended: take another one"):
        rows(address, snapshot=text)


@pytest.mark.parametrize("how", ["added", "anew"])
@pytest.mark.parametrize("options", [{}, {"limit": 1000}])
def test_a_table_that_is_read_later_has_all_partitions_of_then(
    client: Client, address: str, topic: str, how: str, options: dict[str, Any]
) -> None:
    """Spark keeps what was planned for one load(), and uses it for all that is made of that."""
    if how == "added" and BROKERS > 1:
        pytest.skip("of several brokers none has all rows of a key once there are more partitions")
    client.create_topic(topic, 1)
    with client.producer(topic) as producer:
        producer.send("old", key="a")
    made = source(address, mode="table", subscribe=topic, **options)
    reader = made.reader(made.schema())
    [task] = reader.partitions()
    assert len(list(reader.read(task))) == 1
    if how == "added":
        client.alter_topic(topic, partitions=3)
    else:
        client.delete_topic(topic)
        client.create_topic(topic, 3)
    with client.producer(topic) as producer:
        keys = [b"%02d" % number for number in range(12)]
        assert {producer.send("new", key=key).result().partition for key in keys} == {0, 1, 2}
    batches: list[Any] = list(reader.read(task))
    found = sorted(row["key"] for batch in batches for row in batch.to_pylist())
    assert found == [*keys, *([b"a"] if how == "added" else [])]


def test_a_table_that_is_gone_when_it_is_read(client: Client, address: str, topic: str) -> None:
    client.create_topic(topic)
    made = source(address, mode="table", subscribePattern=f"^{topic}$")
    reader = made.reader(made.schema())
    [task] = reader.partitions()
    client.delete_topic(topic)
    with pytest.raises(UnknownTopic, match="was deleted since this read was planned"):
        list(reader.read(task))


def test_several_topics(client: Client, address: str, topic: str, way: dict[str, int]) -> None:
    for name in ("a", "b"):
        client.create_topic(f"{topic}-{name}", partitions=2)
        with client.producer(f"{topic}-{name}") as producer:
            producer.send(name, key="k")
    for given in ({"subscribe": f"{topic}-a,{topic}-b"}, {"subscribePattern": f"{topic}-."}):
        found = rows(address, mode="table", **given, **way)
        assert {(row["topic"], row["value"]) for row in found} == {(f"{topic}-a", b"a"), (f"{topic}-b", b"b")}
        assert len(rows(address, key="k", **given)) == 2
        assert len(rows(address, mode="table", limit=1, **given)) == 1
    assert rows(address, mode="table", subscribePattern=f"{topic}-nothing", **way) == []
    assert rows(address, mode="snapshot", subscribePattern=f"{topic}-nothing") == []


def test_an_empty_table_and_one_of_64_partitions(client: Client, address: str, topic: str, way: dict[str, int]) -> None:
    client.create_topic(topic, partitions=64)
    assert rows(address, mode="table", subscribe=topic, **way) == []
    assert rows(address, subscribe=topic, key="k", **way) == []
    with client.producer(topic) as producer:
        producer.send("v", key="k")
    assert as_dict(rows(address, mode="table", subscribe=topic, **way)) == {"k": "v"}
    assert as_dict(rows(address, subscribe=topic, key="k", **way)) == {"k": "v"}
    with client.producer(topic) as producer:
        for number in range(500):
            producer.send(f"v{number}", key=str(number))
    expected = {"k": "v", **{str(number): f"v{number}" for number in range(500)}}
    assert as_dict(rows(address, mode="table", subscribe=topic, **way)) == expected
    some = {key: value for key, value in expected.items() if key.startswith("4")}
    assert as_dict(rows(address, subscribe=topic, keyPrefix="4", **way)) == some


def test_many_keys(client: Client, address: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_read, "LOOKUPS", 100)
    client.create_topic(topic, partitions=2)
    with client.producer(topic) as producer:
        for number in range(300):
            producer.send(f"v{number}", key=f"ä{number}")
    found = tasks(address, subscribe=topic, keyType="string", keys=json.dumps([f"ä{number}" for number in range(450)]))
    assert len(found) == 5
    assert {row["key"] for some in found for row in some} == {f"ä{number}" for number in range(300)}
    assert len(tasks(address, subscribe=topic, keys=json.dumps(["ä1", "ä2", "ä3"]), minPartitions=2)) == 2


def test_what_it_refuses(client: Client, address: str, topic: str, way: dict[str, int]) -> None:
    with pytest.raises(UnknownTopic):
        rows(address, mode="table", subscribe=topic, **way)
    with pytest.raises(UnknownTopic):
        rows(address, subscribe=topic, key="k")
    client.create_topic(topic, config={"view.enable": False})
    with pytest.raises(ViewDisabled):
        rows(address, mode="table", subscribe=topic, **way)
    with pytest.raises(ViewDisabled):
        rows(address, subscribe=topic, key="k")
    with pytest.raises(ConfigError, match="give the column `snapshot` of a read with mode=snapshot"):
        rows(address, snapshot="xyz")


def test_keys_that_are_no_text(client: Client, address: str, topic: str, way: dict[str, int]) -> None:
    client.create_topic(topic)
    with client.producer(topic) as producer:
        producer.send("v", key=b"\xff")
    with pytest.raises(InvalidRecord, match="keyType=binary"):
        rows(address, mode="table", subscribe=topic, keyType="string", **way)
    with pytest.raises(InvalidRecord, match="keyType=binary"):
        rows(address, subscribe=topic, keyType="string", key="ff", keyEncoding="hex")
    [row] = rows(address, subscribe=topic, key="/w==", keyEncoding="base64")
    assert row["key"] == b"\xff"


def test_a_task_holds_no_snapshot_while_its_rows_are_taken(address: str, users: str) -> None:
    """However slowly they are taken, or if never to the end. The broker holds 100 snapshots at most."""
    made = source(address, mode="table", subscribe=users)
    reader = made.reader(made.schema())
    [partition] = reader.partitions()
    begun = [reader.read(partition) for _ in range(110)]
    for each in begun:
        assert len(next(each)) > 0
