"""Entries by a column of keys: in the order of the keys, true at the time of the answer, however often keys are asked
for."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from krappy.blocking import Client
from krappy.errors import UnknownTopic
from krappy.spark import by_key


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
    for _ in range(3):  # all are asked for, and then some are known already
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
    client.create_topic(topic, 2)  # it ends where the old one did
    fill(client, topic, 3)
    assert values(client, topic, keys) == ["v0", "v1", "v2", None]
