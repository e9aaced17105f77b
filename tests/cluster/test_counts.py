"""The number of a topic's partitions changes. No lookup uses the old number, even if a client or a broker still knows
it, and no key is missed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from krappy import blocking
from krappy.broker.topics.scattered import HOLD_S
from krappy.errors import NotLeader, PolicyViolation
from krappy.wire import messages as m
from tests.cluster.brokers import ClusterProcesses
from tests.long import some
from tests.peer import Peer
from tests.process import PATIENCE

KEYS = [f"k{number}" for number in range(60)]
LONG_S = 20.0


@pytest.fixture(scope="module")
def cluster(lasting: ClusterProcesses) -> ClusterProcesses:
    return lasting


@pytest.fixture
def other(cluster: ClusterProcesses) -> Iterator[blocking.Client]:
    with blocking.connect(cluster.native, timeout=LONG_S) as found:
        yield found


def fill(cluster: ClusterProcesses, topic: str, value: str) -> None:
    """Gives all keys this value, by a new client that knows nothing of the topic."""
    with blocking.connect(cluster.native, timeout=LONG_S) as fresh, fresh.producer(topic) as producer:
        producer.send_many((key, value) for key in KEYS)


def values(entries: list[blocking.Entry | None]) -> set[bytes | None]:
    return {None if each is None else each.value for each in entries}


def of_http(cluster: ClusterProcesses, topic: str) -> set[str]:
    """The values that each broker returns by HTTP: for some keys one by one, and for all keys together."""
    found: set[str] = set()
    for each in cluster.brokers.values():
        with httpx.Client(
            base_url=f"http://{each.http}/api/v1", timeout=LONG_S, headers={"Krappy-Request": "1"}
        ) as web:
            for key in KEYS[::4]:
                told = web.get(f"/topics/{topic}/table/entry", params={"key": key})
                found.add(told.json()["value"]["data"] if told.status_code == 200 else told.text)
            told = web.post(f"/topics/{topic}/table/lookup", json={"keys": KEYS})
            assert told.status_code == 200, told.text
            found |= {str((entry["value"] or {}).get("data")) for entry in told.json()["entries"]}
    return found


def test_lookups_of_clients_that_knew_fewer_partitions(
    cluster: ClusterProcesses, client: blocking.Client, other: blocking.Client
) -> None:
    other.create_topic("grows", 3)
    cluster.until_in_sync("grows")
    table, session = client.table("grows"), client.table("grows", consistency="session")
    ways: list[Callable[[], list[blocking.Entry | None]]] = [
        lambda: [table.get(key) for key in KEYS],
        lambda: table.get_many(KEYS),
        lambda: [session.get(key) for key in KEYS],
        lambda: session.get_many(KEYS),
    ]
    fill(cluster, "grows", "3")
    for way in ways:
        assert values(way()) == {b"3"}
    assert of_http(cluster, "grows") == {"3"}
    for count in (6, 10):  # the first change makes strays; the second one only changes the number
        other.alter_topic("grows", partitions=count)
        fill(cluster, "grows", str(count))
        for way in ways:
            assert values(way()) == {b"%d" % count}
        told = of_http(cluster, "grows")
        assert told == {str(count)}
        for ordered in (False, True):
            with pytest.raises(PolicyViolation):  # a key stands in several partitions
                list(table.scan(ordered=ordered))


WAYS = ("get", "scan", "get_many", "get_columns", "ordered", "snapshot", "history", "offsets")


@pytest.mark.parametrize("way", some(WAYS, 4))
def test_a_topic_that_was_made_anew(
    cluster: ClusterProcesses, client: blocking.Client, other: blocking.Client, way: str
) -> None:
    """Each kind of read is done by a client that knows only the old topic."""
    topic = f"anew-{way}"
    other.create_topic(topic, 3)
    cluster.until_in_sync(topic)
    fill(cluster, topic, "old")
    table = client.table(topic)
    assert values(table.get_many(KEYS)) == {b"old"}
    other.delete_topic(topic)
    other.create_topic(topic, 4)
    fill(cluster, topic, "new")
    assert of_http(cluster, topic) == {"new"}
    if way == "get":
        assert values([table.get(key) for key in KEYS]) == {b"new"}
    elif way == "get_many":
        assert values(table.get_many(KEYS)) == {b"new"}
    elif way == "get_columns":
        assert set(table.get_columns(KEYS).lists()["value"]) == {b"new"}
    elif way in ("scan", "ordered"):
        found = list(table.scan(ordered=way == "ordered"))
        assert len(found) == len(KEYS)
        assert values(list(found)) == {b"new"}
    elif way == "snapshot":
        snapshot = client.snapshot(topic)
        blocks = [block for each in snapshot.ranges for block in client.read_snapshot(snapshot.id, each)]
        assert sorted(key for block in blocks for key in block.lists()["key"]) == sorted(map(str.encode, KEYS))
    elif way == "history":
        assert all([each.value for each in table.history(key)] == [b"new"] for key in KEYS)
    else:
        assert sum(client.offsets(topic, "latest").values()) == len(KEYS)


def answering(cluster: ClusterProcesses, topic: str) -> Peer:
    """A connection to the leader of the first partition. Waits until that broker serves as the leader, because the lead
    may just have moved."""
    end = time.monotonic() + PATIENCE
    while True:
        peer = Peer(cluster.brokers[cluster.partitions(topic)[0].leader].address)
        try:
            peer.ask(m.Get(topic, b"k", 0), m.Got)
        except NotLeader:
            peer.close()
            assert time.monotonic() < end, "nobody leads for long enough"
        else:
            return peer


def test_a_leader_refuses_a_client_that_knows_another_number(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    client.create_topic("told", 2)
    cluster.until_in_sync("told")
    requests: list[Callable[[int], m.Request]] = [
        lambda among: m.Get("told", b"k", 0, among=among),
        lambda among: m.MultiGet("told", [b"k"], 0, among=among),
        lambda among: m.Scan("told", partitions=[0], among=among),
        lambda among: m.OpenSnapshot("told", [0], among=among),
    ]
    with answering(cluster, "told") as peer:
        for request, answer in zip(requests, (m.Got, m.MultiGot, m.Scanned, m.SnapshotOpened), strict=True):
            peer.ask(request(2), answer)
            for wrong in (1, 3):
                with pytest.raises(NotLeader) as refused:
                    peer.ask(request(wrong), answer)
                assert refused.value.details == {"topic": "told", "partition": -1, "partitions": 2}


def test_a_topic_is_made_anew_once_nobody_answers_for_the_one_before(client: blocking.Client) -> None:
    """A leader that does not know of the deletion answers for the old topic until its lease ends."""
    client.create_topic("soon", 1)
    began = time.monotonic()
    client.delete_topic("soon")
    client.create_topic("soon", 2)
    assert time.monotonic() - began >= HOLD_S
