"""What a worker keeps of a table: it asks for it once, follows the log, and is always true."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from krappy.blocking import Client
from krappy.errors import SnapshotGone, ViewDisabled
from krappy.spark import by_key, kept
from krappy.spark.kept import Kept
from krappy.spark.moments import TooManyChanges
from tests.spark.test_by_key import fill, values


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
    for _ in range(2):  # there is no room to keep the other half
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
        producer.send(None, key="u7").result()
    monkeypatch.setattr(kept, "FREE", 100)
    expected = [None if n == 7 or n >= 2_000 else f"v{n}" for n in range(4_000)]
    for first in range(0, 4_000, 100):
        keys: list[str | None] = [f"u{n}" for n in range(first, first + 100)]
        assert values(client, topic, keys) == expected[first : first + 100]
    assert known(topic).whole
    assert sum(asked) < 2_000  # it also knows that the other 2,000 are absent, and does not ask for them
    everything: list[str | None] = [f"u{n}" for n in range(4_000)]
    assert values(client, topic, everything) == expected


@pytest.mark.parametrize("when", ["gone", "full"])
def test_a_table_that_cannot_be_read_to_its_end(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The keys are looked up all the same."""
    client.create_topic(topic, 2)
    fill(client, topic, 1_000)
    monkeypatch.setattr(kept, "FREE", 1)
    opened: list[str] = []
    snapshot = client.snapshot

    def taken(*given: Any, **named: Any) -> Any:
        found = snapshot(*given, **named)
        opened.append(found.id)
        if when == "gone":
            client.close_snapshot(found.id)
        return found

    monkeypatch.setattr(client, "snapshot", taken)
    options = {"keep": 20_000} if when == "full" else {}
    for first in range(0, 1_000, 50):
        keys: list[str | None] = [f"u{n}" for n in range(first, first + 50)]
        assert values(client, topic, keys, **options) == [f"v{n}" for n in range(first, first + 50)]
    assert values(client, topic, ["no"], **options) == [None]
    assert not known(topic).whole
    assert len(opened) <= 5  # each time when twice as many were asked for, and not with each of 20 requests
    with pytest.raises(SnapshotGone):  # the snapshot was given back
        client.keep_snapshot(opened[0])


def known(topic: str, keep: int | None = None) -> Kept:
    (found,) = (each for (of, most), each in kept._kept.items() if of.topic == topic and keep in (None, most))
    return found


def test_what_changed_is_read_from_the_log(client: Client, topic: str, asked: list[int]) -> None:
    client.create_topic(topic, 2)
    fill(client, topic, 50)
    keys: list[str | None] = [f"u{n}" for n in range(50)]
    expected: list[str | None] = [f"v{n}" for n in range(50)]
    assert values(client, topic, keys) == expected
    with client.producer(topic) as producer:
        producer.send("a", key="u1")
        producer.send("b", key="u1")
        producer.send(None, key="u2")
        producer.send("no key")
    expected[1:3] = ["b", None]
    assert values(client, topic, keys) == expected
    assert asked == [50]
    fill(client, topic, 60)  # more than is kept
    assert values(client, topic, keys) == [f"v{n}" for n in range(50)]
    assert asked == [50, 50]


def test_a_few_changes_that_are_large_are_not_read(client: Client, topic: str, asked: list[int]) -> None:
    """By their number they look little, beside what is kept."""
    client.create_topic(topic, 2)
    fill(client, topic, 50)
    keys: list[str | None] = [f"u{n}" for n in range(50)]
    assert values(client, topic, keys) == [f"v{n}" for n in range(50)]
    source = known(topic)._source
    before = source.moment()
    with client.producer(topic) as producer:
        for each in range(5):
            producer.send(b"x" * 900_000, key=f"u{each}")
    assert sum(len(found) for found, _ in source.changes(before, source.moment(), 5_000_000)) == 5
    with pytest.raises(TooManyChanges):
        list(source.changes(before, source.moment(), 4_400_000))
    known(topic)._most = 4_400_000
    assert [value and len(value) for value in values(client, topic, keys)][:6] == [900_000] * 5 + [2]
    assert asked == [50, 50]


def test_what_the_log_may_not_tell_is_asked_for_again(client: Client, topic: str, asked: list[int]) -> None:
    """Then a tombstone may have come and gone, the log's beginning was cut off, or the topic has no table any more."""
    client.create_topic(topic, 1, {"delete.retention.ms": 0})
    fill(client, topic, 9)
    keys: list[str | None] = [f"u{n}" for n in range(9)]
    assert values(client, topic, keys) == [f"v{n}" for n in range(9)]
    fill(client, topic, 1)
    assert values(client, topic, keys) == [f"v{n}" for n in range(9)]
    assert asked == [9, 9]
    client.alter_topic(topic, {"delete.retention.ms": 86_400_000})
    assert values(client, topic, keys) == [f"v{n}" for n in range(9)]
    client.delete_records(topic, {0: 5})
    assert values(client, topic, keys) == ["v0", None, None, None, None, *(f"v{n}" for n in range(5, 9))]
    assert asked == [9, 9, 9, 9]
    client.alter_topic(topic, {"view.enable": False})
    with pytest.raises(ViewDisabled):
        values(client, topic, keys)


@pytest.mark.parametrize("kept_whole", [False, True])
@pytest.mark.parametrize(("partitions", "count"), [(2, 40), (2, 100), (2, 160), (1, 100), (3, 300)])
def test_a_topic_that_was_made_anew_is_another_table(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, kept_whole: bool, partitions: int, count: int
) -> None:
    """The new topic has in each partition fewer events than the old one had, as many, or more."""
    monkeypatch.setattr(kept, "FREE", 0 if kept_whole else 10_000)
    client.create_topic(topic, 2)
    fill(client, topic, 100)
    keys: list[str | None] = [f"u{n}" for n in range(300)]
    assert values(client, topic, keys[:100], expected=1_000) == [f"v{n}" for n in range(100)]
    assert known(topic).whole == kept_whole
    client.delete_topic(topic)
    client.create_topic(topic, partitions)
    with client.producer(topic) as producer:
        producer.send_columns([f"u{n}" for n in range(count)], [f"new {n}" for n in range(count)])
    expected = [f"new {n}" if n < count else None for n in range(300)]
    assert values(client, topic, keys, expected=1_000) == expected


@pytest.mark.parametrize("when", ["describe", "read_log"])
def test_a_topic_that_is_made_anew_while_what_changed_is_asked_for(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Nothing of the new topic is taken for a change of the old one."""
    client.create_topic(topic)
    fill(client, topic, 10)
    keys: list[str | None] = [f"u{n}" for n in range(10)]
    assert values(client, topic, keys) == [f"v{n}" for n in range(10)]
    with client.producer(topic) as producer:
        producer.send("changed", key="u1").result()
    asked = getattr(client, when)

    def overtaken(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(client, when, asked)
        told = asked(*given, **named) if when == "describe" else None
        client.delete_topic(topic)
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send_columns([f"u{n % 5}" for n in range(20)], [f"new {n % 5}" for n in range(20)])
        return told or asked(*given, **named)

    monkeypatch.setattr(client, when, overtaken)
    new = [f"new {n}" if n < 5 else None for n in range(10)]
    found = values(client, topic, keys)
    assert found == new or (when == "describe" and found == ["v0", "changed", *(f"v{n}" for n in range(2, 10))])
    assert values(client, topic, keys) == new


@pytest.mark.parametrize("seed", range(4))
def test_always_what_the_table_has(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever is written between lookups, and while the table is being read."""
    chance = random.Random(seed)
    monkeypatch.setattr(kept, "FREE", chance.choice([0, 50, 10_000]))
    monkeypatch.setattr(kept, "ROWS", chance.choice([1, 10]))
    keep = chance.choice([4_000, 1 << 20])
    written_and_looked_up(client, topic, chance, lambda keys: values(client, topic, keys, keep=keep))


def written_and_looked_up(
    client: Client, topic: str, chance: random.Random, look: Callable[[list[str | None]], list[Any]]
) -> None:
    """Writes little or much, deletes keys and events, and compares lookups with what the table has."""
    client.create_topic(topic, chance.choice([1, 3]))
    fill(client, topic, 300)
    model: dict[str, str | None] = {f"u{n}": f"v{n}" for n in range(300)}
    with client.producer(topic) as producer:
        for step in range(120):
            for _ in range(chance.choice([0, 0, 1, 20, 400])):
                key, value = f"u{chance.randrange(400)}", chance.choice([None, f"{step}"])
                producer.send(value, key=key)
                model[key] = value
            producer.flush()
            if chance.random() < 0.02:
                client.delete_records(topic, "latest")
                model.clear()
            keys: list[str | None] = [f"u{chance.randrange(500)}" for _ in range(chance.choice([1, 30, 200]))]
            assert look(keys) == [model.get(key or "") for key in keys]
