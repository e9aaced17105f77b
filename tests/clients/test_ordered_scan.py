"""Scans in the order of keys over all partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from krappy import blocking
from krappy.clients.aio.table import LEAST_PAGE
from krappy.testing.running import RunningBroker, run_broker
from krappy.types import Entry, Record

PARTITIONS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with run_broker(tmp_path_factory.mktemp("ordered") / "data", durability="os") as made:
        yield made


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[blocking.Client]:
    with broker.connect() as found:
        yield found


def folded(entries: list[Entry]) -> list[tuple[bytes, bytes | None]]:
    return [(each.key, each.value) for each in entries]


def test_all_keys_come_in_their_order(client: blocking.Client) -> None:
    client.create_topic("many", PARTITIONS)
    keys = [b"%05d" % number for number in range(5_000)]
    with client.producer("many") as producer:
        producer.send_many(Record(b"v", key) for key in Random(1).sample(keys, len(keys)))
    table = client.table("many")
    with table.scan(ordered=True, page_entries=4 * LEAST_PAGE) as scan:
        pages = list(scan.pages())
    assert [each.key for page in pages for each in page] == keys
    assert len(pages) > 10
    assert scan.offsets == client.offsets("many", "latest")
    assert [each.key for each in table.scan(ordered=True, prefix="012")] == [b"012%02d" % n for n in range(100)]
    assert [each.key for each in table.scan(ordered=True, start="04990")] == keys[4990:]
    some = list(table.scan(ordered=True, partitions=[1, 3]))
    assert [each.key for each in some] == sorted(each.key for each in table.scan(partitions=[3, 1]))
    assert {each.partition for each in some} == {1, 3}
    assert list(table.scan(ordered=True, partitions=[])) == []


def test_a_partition_whose_keys_come_last(client: blocking.Client) -> None:
    """Ranges of keys by partition: one after the other."""
    client.create_topic("ranges", PARTITIONS)
    with client.producer("ranges") as producer:
        for partition in range(PARTITIONS):
            for n in range(1_000):
                producer.post(b"v", b"%d-%04d" % (partition, n), partition=partition)
    found = [each.key for each in client.table("ranges").scan(ordered=True, page_entries=10)]
    assert found == [b"%d-%04d" % (partition, n) for partition in range(PARTITIONS) for n in range(1_000)]


@pytest.mark.parametrize("tombstones", [False, True])
def test_each_key_comes_once_although_there_are_strays(client: blocking.Client, *, tombstones: bool) -> None:
    """The newest entry of a key counts; a key whose newest entry is a tombstone is gone."""
    random, name = Random(2), f"strays-{tombstones}"
    client.create_topic(name, PARTITIONS)
    newest: dict[bytes, bytes | None] = {}
    with client.producer(name) as producer:
        for number in range(3_000):
            key, value = b"%03d" % random.randrange(700), None if random.random() < 0.3 else b"%d" % number
            producer.post(value, key, timestamp=1_000 + number, partition=random.randrange(PARTITIONS))
            newest[key] = value
    table = client.table(name)
    wanted = sorted((key, value) for key, value in newest.items() if tombstones or value is not None)
    assert folded(list(table.scan(ordered=True, tombstones=tombstones, page_entries=300))) == wanted


def test_it_may_be_left_early(broker: RunningBroker, client: blocking.Client) -> None:
    client.create_topic("left", PARTITIONS)
    with client.producer("left") as producer:
        producer.send_many(Record(b"v", b"%05d" % number) for number in range(20_000))
    with client.table("left").scan(ordered=True, page_entries=100) as scan:
        assert next(iter(scan)).key == b"00000"
    assert len(list(scan)) < 1_000  # what had come; it asks for no more


def test_an_empty_table(client: blocking.Client, tmp_path: Path) -> None:
    client.create_topic("empty", PARTITIONS)
    assert list(client.table("empty").scan(ordered=True)) == []
