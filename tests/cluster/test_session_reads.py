"""Tables with consistency="session": any replica answers, but never with less than the client has written and read."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from itertools import count as count_from

import httpx
import pytest

from krappy import blocking
from krappy.errors import InvalidRequest, NotLeader, UnknownTopic
from krappy.partitioner import partition_for
from krappy.wire import messages as m
from tests.cluster.brokers import ClusterProcesses
from tests.peer import Peer
from tests.process import wait_until

PARTITIONS = 3
KEYS = [f"k{number}" for number in range(30)]
LONG_S = 60.0


@pytest.fixture(scope="module")
def cluster(lasting: ClusterProcesses) -> ClusterProcesses:
    return lasting


def asked(cluster: ClusterProcesses, request: str) -> dict[int, int]:
    """How many requests of a kind each broker has answered."""
    found = {}
    for id, broker in cluster.brokers.items():
        told = httpx.get(f"http://{broker.http}/api/v1/overview", timeout=30).json()["requests"]
        found[id] = sum(each["latency"]["count"] for each in told if each["request"] == request)
    return found


def until_back(cluster: ClusterProcesses, id: int, topic: str) -> None:
    """Waits until a broker that was stopped has its replicas in sync again, and knows it."""

    def answers() -> bool:
        with Peer(cluster.brokers[id].address) as peer, contextlib.suppress(NotLeader):
            peer.ask(m.Get(topic, b"k", 0, -1), m.Got)
            return True
        return False

    wait_until(answers, f"broker {id} answers about {topic}")
    cluster.until_in_sync(topic)


def test_it_reads_its_own_writes(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("own", PARTITIONS)
    cluster.until_in_sync("own")
    table = client.table("own", consistency="session")
    before = {kind: asked(cluster, kind) for kind in ("Get", "MultiGet", "Scan")}
    for number in range(60):
        with client.producer("own") as producer:
            producer.send_many((key, str(number)) for key in KEYS)
        entry = table.get("k1")
        assert entry is not None
        assert entry.value == b"%d" % number
        assert {each.value for each in table.get_many(KEYS) if each is not None} == {b"%d" % number}
        assert table.get_many(["absent"]) == [None]
        with table.scan(ordered=number % 2 == 0) as scan:
            assert [each.value for each in scan] == [b"%d" % number] * len(KEYS)
            assert set(scan.offsets) == set(range(PARTITIONS))
    for kind, counts in before.items():
        after = asked(cluster, kind)
        assert all(after[id] > count for id, count in counts.items()), (kind, counts, after)


def test_what_was_read_is_not_taken_back(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """Another client counts up. Each replica may lag, but no replica answers with less than another one has shown."""
    client.create_topic("counted", 1)
    cluster.until_in_sync("counted")
    stop = threading.Event()

    def count() -> None:
        with blocking.connect(cluster.native, timeout=LONG_S) as other:
            table, number = other.table("counted"), 0
            while not stop.is_set():
                table.put("k", str(number))
                number += 1

    writer = threading.Thread(target=count)
    writer.start()
    try:
        table, last, changes = client.table("counted", consistency="session"), -1, 0
        end = time.monotonic() + LONG_S
        for turn in count_from(0):
            if turn >= 600 and (changes > 5 or time.monotonic() > end):  # a slow machine gets more time
                break
            if turn % 3 == 2:
                found = [int(each.value or b"") for each in table.scan()]
            else:
                [entry] = table.get_many(["k"]) if turn % 3 else [table.get("k")]
                found = [] if entry is None else [int(entry.value or b"")]
            assert found or last == -1
            for number in found:
                assert number >= last
                changes += number > last
                last = number
        assert changes > 5
    finally:
        stop.set()
        writer.join()


def test_a_replica_that_does_not_answer_is_left_out(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("paused", 1)
    cluster.until_in_sync("paused")
    table = client.table("paused", consistency="session")
    leader = cluster.partitions("paused")[0].leader
    for _ in range(20):  # opens all links
        table.put("k", "before")
        assert table.get("k") is not None
    follower = next(id for id in cluster.brokers if id != leader)
    with cluster.paused(follower):
        table.put("k", "after")
        for _ in range(4):
            for entry in (table.get("k"), *table.get_many(["k"]), *table.scan()):
                assert entry is not None
                assert entry.value == b"after"
    until_back(cluster, follower, "paused")


def test_a_topic_that_is_made_anew_has_no_past(cluster: ClusterProcesses, client: blocking.Client) -> None:
    for number in range(2):
        client.create_topic("anew", 1)
        cluster.until_in_sync("anew")
        table = client.table("anew", consistency="session")
        assert table.get("k") is None
        with client.producer("anew") as producer:
            for _ in range(20 - 19 * number):
                producer.send(str(number), "k")
        entry = table.get("k")
        assert entry is not None
        assert entry.value == b"%d" % number
        client.delete_topic("anew")


def test_strays_are_found(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("scattered", PARTITIONS)
    cluster.until_in_sync("scattered")
    table = client.table("scattered", consistency="session")
    for number, key in enumerate(KEYS):
        table.put(key, key, partition=number % PARTITIONS)
    assert [each and each.value for each in map(table.get, KEYS)] == [key.encode() for key in KEYS]
    assert [each and each.value for each in table.get_many(KEYS)] == [key.encode() for key in KEYS]


def test_a_follower_is_asked_for_offsets_it_has_not(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """As the protocol says, any replica answers a request with `min_offsets`, and waits until it has these offsets.
    Only leaders answer a request without them."""
    client.create_topic("wire", PARTITIONS)
    cluster.until_in_sync("wire")
    with client.producer("wire") as producer:
        producer.send_many((key, "v") for key in KEYS)
    keys = [key.encode() for key in KEYS]
    last = [(index, end - 1) for index, end in client.offsets("wire", "latest").items()]
    for broker in cluster.brokers.values():
        with Peer(broker.address) as peer:
            assert None not in peer.ask(m.MultiGet("wire", keys, None, last), m.MultiGot).entries
            assert len(peer.ask(m.Scan("wire", min_offsets=[]), m.Scanned).offsets) == PARTITIONS
            assert len(peer.ask(m.Get("wire", keys[0], None, -1), m.Got).entry) == 1
            for request in (m.MultiGet("wire", keys), m.Scan("wire")):
                with pytest.raises(NotLeader):
                    peer.ask(request, m.MultiGot)


def test_another_consistency_is_refused(client: blocking.Client) -> None:
    with pytest.raises(InvalidRequest, match="strong, session"):
        client.table("own", consistency="eventual")  # type: ignore[arg-type]


def test_a_broker_that_was_away_answers_nothing(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """The broker gets requests while it is stopped. It goes on before it knows that the topic has strays."""
    client.create_topic("away", PARTITIONS)
    cluster.until_in_sync("away")
    key, home = b"k", partition_for(b"k", PARTITIONS)
    follower = next(id for id in cluster.brokers if id != cluster.partitions("away")[home].leader)
    requests = [
        m.Get("away", key, None, -1),
        m.MultiGet("away", [key], None, []),
        m.Scan("away", partitions=[home], min_offsets=[]),
    ]
    client.table("away").put(key, "v")
    with Peer(cluster.brokers[follower].address) as peer:
        peer.ask(requests[0], m.Got)
        with cluster.paused(follower):
            client.table("away").put(key, "v", partition=(home + 1) % PARTITIONS)
            ids = peer.send(*requests)
        for id in ids:
            with pytest.raises(NotLeader):
                peer.answer(id, m.Got)
    until_back(cluster, follower, "away")


def test_a_short_timeout_is_enough_beside_a_broker_that_hangs(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    client.create_topic("short", 1)
    cluster.until_in_sync("short")
    follower = next(id for id in cluster.brokers if id != cluster.partitions("short")[0].leader)
    with blocking.connect(cluster.native, timeout=2.5) as short:
        table = short.table("short", consistency="session")
        table.put("k", "0")  # a write of this client, because a replica may lack those of other clients
        for number in range(1, 4):
            for _ in range(20):  # opens all links
                assert len(list(table.scan())) == 1
            with cluster.paused(follower):
                client.table("short").put("k", str(number))
                for _ in range(12):
                    scan = table.scan(ordered=number % 2 == 0)
                    [entry] = scan
                    at = short._router.session.seen("short")[0]
                    assert at >= scan.offsets[0] - 1 >= entry.offset  # whichever replica has answered
            until_back(cluster, follower, "short")


def test_a_replica_that_does_not_know_the_topic_yet_is_left_out(cluster: ClusterProcesses) -> None:
    with blocking.connect(cluster.brokers[1].address, timeout=LONG_S) as client:
        client.create_topic("links", PARTITIONS)
        cluster.until_in_sync("links")
        for _ in range(20):
            client.table("links", consistency="session").get_many(KEYS)
        with cluster.paused(2):
            client.create_topic("fresh", 1)
            resume = threading.Timer(0.5, os.kill, (cluster.brokers[2].pid, signal.SIGCONT))
            resume.start()
            table = client.table("fresh", consistency="session")
            for _ in range(10):
                assert table.get("k") is None
                assert table.get_many(["k"]) == [None]
                assert list(table.scan()) == []
            resume.join()
    until_back(cluster, 2, "links")


def test_what_was_written_to_a_topic_that_others_made_anew(cluster: ClusterProcesses, client: blocking.Client) -> None:
    with blocking.connect(cluster.native, timeout=LONG_S) as other:
        client.create_topic("others", 1)
        cluster.until_in_sync("others")
        table = client.table("others", consistency="session")
        for number in range(20):
            table.put("k", str(number))
        assert client._router.session.seen("others") == {0: 19}
        other.delete_topic("others")
        other.create_topic("others", 1)
        cluster.until_in_sync("others")
        with contextlib.suppress(UnknownTopic):  # the producer learns that the topic is another one
            table.put("k", "new")
        receipt = table.put("k", "newer")
        assert client._router.session.seen("others") == {0: receipt.offset}
        assert table.get("k") is not None


def test_a_staged_job_is_what_this_client_has_written(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("staged", PARTITIONS)
    cluster.until_in_sync("staged")
    with client.stage("staged", job="session", task="0", attempt="0") as staged:
        for key in KEYS:
            staged.send("v", key)
        token = staged.seal()
    published = client.commit_staged("session", [token], timeout=LONG_S)
    table = client.table("staged", consistency="session")
    assert client._router.session.seen("staged") == {each.partition: each.last_offset for each in published.partitions}
    assert None not in table.get_many(KEYS)
