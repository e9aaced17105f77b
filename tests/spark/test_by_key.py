"""Entries by a column of keys: in the order of the keys, true when they are given, however often they are asked for."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from krappy.blocking import Client
from krappy.errors import SnapshotGone, UnknownTopic
from krappy.partitioner import partition_for
from krappy.spark import by_key, kept


def values(client: Client, topic: str, keys: list[str | None], **options: Any) -> list[Any]:
    found = by_key.entries(client, topic, pa.array(keys, pa.string()), ["value"], **options)
    return [entry and (entry["value"] and entry["value"].decode()) for entry in found.to_pylist()]


def fill(client: Client, topic: str, count: int) -> None:
    with client.producer(topic) as producer:
        producer.send_columns([f"u{n}" for n in range(count)], [f"v{n}" for n in range(count)])


@pytest.mark.parametrize("partitions", [1, 5])
def test_each_key_has_its_entry(client: Client, topic: str, partitions: int) -> None:
    client.create_topic(topic, partitions)
    fill(client, topic, 500)
    chance = random.Random(1)
    for _ in range(3):  # asked for, and then partly known
        numbers = [chance.randrange(700) for _ in range(900)]
        keys = [None if n % 50 == 0 else f"u{n}" for n in numbers]
        expected = [f"v{n}" if n < 500 and n % 50 else None for n in numbers]
        assert values(client, topic, keys) == expected
    assert values(client, topic, []) == []
    assert values(client, topic, [None, None]) == [None, None]


def test_what_changed_is_asked_for_again(client: Client, topic: str) -> None:
    client.create_topic(topic, 2)
    fill(client, topic, 3)
    keys: list[str | None] = ["u0", "u1", "u2", "new"]
    for _ in range(2):
        assert values(client, topic, keys) == ["v0", "v1", "v2", None]
    with client.producer(topic) as producer:
        producer.send("other", key="u1")
        producer.send(None, key="u2")
        producer.send("v", key="new")
        producer.flush()
        assert values(client, topic, keys) == ["v0", "other", None, "v"]
        assert values(client, topic, keys, tombstones=True) == ["v0", "other", None, "v"]
        deleted = by_key.entries(client, topic, pa.array(["u2", "no"]), ["deleted"], tombstones=True)
        assert deleted.to_pylist() == [{"deleted": True}, None]
    client.delete_records(topic, "latest")
    assert values(client, topic, keys) == [None] * 4
    client.delete_topic(topic)
    with pytest.raises(UnknownTopic):
        values(client, topic, keys)
    client.create_topic(topic, 2)  # which ends where the one before did
    fill(client, topic, 3)
    assert values(client, topic, keys) == ["v0", "v1", "v2", None]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each request had."""
    sizes: list[int] = []
    looked_up = by_key._looked_up

    def counted(table: Any, keys: pa.Array, *rest: Any) -> Any:
        sizes.append(len(keys))
        return looked_up(table, keys, *rest)

    monkeypatch.setattr(by_key, "_looked_up", counted)
    return sizes


def test_what_is_known_is_not_asked_for(client: Client, topic: str, asked: list[int]) -> None:
    client.create_topic(topic, 2)
    fill(client, topic, 100)
    some: list[str | None] = [f"u{n}" for n in range(50)]
    for _ in range(2):
        assert values(client, topic, some, keep=2_000) == [f"v{n}" for n in range(50)]
    assert asked == [50]
    every: list[str | None] = [f"u{n}" for n in range(100)]
    for _ in range(2):  # there is no room for the other half
        assert values(client, topic, every, keep=2_000) == [f"v{n}" for n in range(100)]
    assert asked == [50, 50, 50]
    for _ in range(2):
        assert values(client, topic, some, keep=0) == [f"v{n}" for n in range(50)]
    assert asked[3:] == [50, 50]


def test_who_asks_for_many_keys_has_the_whole_table_soon(
    client: Client, topic: str, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(topic, 3)
    fill(client, topic, 2_000)
    with client.producer(topic) as producer:
        misplaced = next(n for n in range(2_000, 3_000) if partition_for(b"u%d" % n, 3) != 1)
        producer.send("elsewhere", key=f"u{misplaced}", partition=1).result()
        producer.send(None, key="u7").result()
    monkeypatch.setattr(kept, "FREE", 100)
    expected = [None if n == 7 or n >= 2_000 else f"v{n}" for n in range(4_000)]
    for first in range(0, 4_000, 100):
        keys: list[str | None] = [f"u{n}" for n in range(first, first + 100)]
        assert values(client, topic, keys) == expected[first : first + 100]
    (known,) = (each for place, each in kept._kept.items() if place[1] == topic)  # type: ignore[index]
    assert known.whole
    assert sum(asked) < 2_000  # and not the 2,000 that are absent, which it knows, too
    everything: list[str | None] = [f"u{n}" for n in range(4_000)]
    assert values(client, topic, everything) == expected
    fill(client, topic, 1)
    assert values(client, topic, ["u0", "u7", "no"]) == ["v0", None, None]
    assert asked[-1] == 3  # all is asked for again


@pytest.mark.parametrize("when", ["gone", "moved on", "full"])
def test_a_table_that_cannot_be_read_to_its_end(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its keys are asked for all the same."""
    client.create_topic(topic, 2)
    fill(client, topic, 1_000)
    monkeypatch.setattr(kept, "FREE", 0)
    monkeypatch.setattr(kept, "READ", 1)
    opened: list[str] = []
    snapshot = client.snapshot

    def taken(*given: Any, **named: Any) -> Any:
        if when == "moved on":
            fill(client, topic, 1)
        found = snapshot(*given, **named)
        opened.append(found.id)
        return found

    monkeypatch.setattr(client, "snapshot", taken)
    options = {"keep": 20_000} if when == "full" else {}
    for first in range(0, 1_000, 50):
        keys: list[str | None] = [f"u{n}" for n in range(first, first + 50)]
        assert values(client, topic, keys, **options) == [f"v{n}" for n in range(first, first + 50)]
        if when == "gone":
            client.close_snapshot(opened[0])
    assert values(client, topic, ["no"], **options) == [None]
    if when != "gone":
        for each in opened:  # given back
            with pytest.raises(SnapshotGone):
                client.keep_snapshot(each)
