"""Scans in the order of keys over all partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import pytest

from krappy import blocking
from krappy.clients.aio.table import LEAST_PAGE
from krappy.clients.merging import MergedScanning
from krappy.clients.tables import PAGE_BYTES
from krappy.errors import UnknownPartition, UnknownTopic
from krappy.testing.running import RunningBroker, run_broker
from krappy.types import Entry, Record

PARTITIONS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with run_broker(tmp_path_factory.mktemp("ordered") / "data", durability="os", listen_http="127.0.0.1:0") as made:
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
    """Each partition has its own range of keys, one after the other."""
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
    assert len(list(scan)) < 1_000  # what had come already; it asks for no more


def test_an_empty_table(client: blocking.Client, tmp_path: Path) -> None:
    client.create_topic("empty", PARTITIONS)
    assert list(client.table("empty").scan(ordered=True)) == []


def scans(broker: RunningBroker) -> int:
    """How many scans the broker keeps."""
    told = httpx.get(f"http://{broker.http_address}/api/v1/connections", timeout=30).json()["connections"]
    return sum(each["kind"] == "scan" for connection in told for each in connection["registrations"])


def test_a_failure_leaves_no_scan_at_the_broker(broker: RunningBroker, client: blocking.Client) -> None:
    for name in ("wrong", "deleted"):
        client.create_topic(name, PARTITIONS)
        with client.producer(name) as producer:
            producer.send_many(Record(b"v", b"%05d" % number) for number in range(20_000))
    wrong = client.table("wrong").scan(ordered=True, partitions=[0, 1, PARTITIONS], page_entries=1)
    with pytest.raises(UnknownPartition):
        next(wrong)
    deleted = client.table("deleted").scan(ordered=True, page_entries=1)
    assert next(deleted).key == b"00000"
    assert scans(broker) == PARTITIONS
    client.delete_topic("deleted")
    with pytest.raises(UnknownTopic):
        list(deleted)
    assert list(deleted) == []  # a scan does not go on without the partition that has failed
    client.ping()
    assert scans(broker) == 0


def test_large_entries_take_bounded_memory(client: blocking.Client) -> None:
    """The pages of all partitions together are as large as one page of a scan without order, and one entry each."""
    client.create_topic("large", 16)
    with client.producer("large") as producer:
        producer.send_many(Record(bytes(50_000), b"%05d" % number) for number in range(500))
    most, held = 0, 0
    scan = client.table("large").scan(ordered=True)
    core = scan._core
    assert isinstance(core, MergedScanning)
    for page in scan.pages():
        held = sum(len(each.value or b"") for part in core._parts or [] for each in part.page)
        most = max(most, held + sum(len(each.value or b"") for each in page))
    assert 0 < most < PAGE_BYTES + 16 * 2 * 50_000
