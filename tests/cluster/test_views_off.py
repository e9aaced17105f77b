"""Tables of a cluster's topics that had no view for a while."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from kazoo.client import KazooClient

from krappy import blocking
from krappy.core.cluster import paths
from krappy.errors import RequestTimeout, ViewDisabled
from krappy.partitioner import partition_for
from tests.cluster.brokers import ClusterProcesses
from tests.process import wait_until

PARTITIONS = 6
LONG_S = 60.0


@pytest.fixture(scope="module")
def cluster(lasting: ClusterProcesses) -> ClusterProcesses:
    return lasting


def test_a_table_that_was_off_for_a_while_is_whole_again(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """All keys are in their own partitions, so no broker has to ask others for them. Scans and conditions work as
    before."""
    client.create_topic("off", PARTITIONS)
    cluster.until_in_sync("off")
    table = client.table("off")
    receipts = {key: table.put(key, b"1") for key in (b"k%d" % number for number in range(20))}
    client.alter_topic("off", {"view.enable": "false"})
    with client.producer("off") as producer:
        receipts[b"k20"] = producer.send(b"1", key=b"k20").result(LONG_S)
    client.alter_topic("off", {"view.enable": "true"})

    def is_back() -> bool:
        with suppress(ViewDisabled, RequestTimeout):
            return len(list(table.scan())) == len(receipts)
        return False

    wait_until(is_back, "each leader has its view again")
    assert not client.describe("off").scattered
    for key, receipt in receipts.items():
        assert table.put(key, b"2", expect=receipt.offset).offset > receipt.offset


def test_a_stray_that_came_while_there_was_no_view_is_found(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("unseen", PARTITIONS, {"view.enable": "false"})
    cluster.until_in_sync("unseen")
    key = b"stray"
    elsewhere = (partition_for(key, PARTITIONS) + 1) % PARTITIONS
    with client.producer("unseen") as producer:
        producer.send(b"v", key=key, partition=elsewhere).result(LONG_S)
    client.alter_topic("unseen", {"view.enable": "true"})
    table = client.table("unseen")

    found: list[int | None] = []

    def is_answered() -> bool:
        with suppress(ViewDisabled):
            entry = table.get(key)
            found.append(None if entry is None else entry.partition)
        return bool(found)

    wait_until(is_answered, "each leader has its view")
    assert found == [elsewhere]
    assert client.describe("unseen").scattered


def test_a_topic_of_an_earlier_version_may_have_strays_once_its_view_was_off(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """The leaders of the earlier version did not look at keys while there was no view."""
    client.create_topic("earlier", PARTITIONS)
    cluster.until_in_sync("earlier")
    kazoo = KazooClient(hosts=cluster.brokers[1].settings["zookeeper_connect"])
    kazoo.start()
    try:
        fields = json.loads(kazoo.get(paths.topic("earlier"))[0])
        assert fields.pop("scattered") is False
        kazoo.set(paths.topic("earlier"), json.dumps(fields).encode())
    finally:
        kazoo.stop()
        kazoo.close()
    client.alter_topic("earlier", {"view.enable": "false"})
    client.alter_topic("earlier", {"view.enable": "true"})
    wait_until(lambda: client.describe("earlier").scattered, "it counts as one that may have strays")
