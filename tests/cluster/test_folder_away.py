"""The data folder of one broker of a cluster is moved away, as unmounting does. Until the folder is back, the cluster
treats the broker as dead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy import blocking
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.zookeeper import ZooKeeperServer
from tests.process import forked, wait_until

LONG_S = 60.0
PARTITIONS = 6


@pytest.fixture
def cluster(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> Iterator[ClusterProcesses]:
    """A cluster in which no follower leaves the ISR because it lags, and a session lasts longer than a test waits."""
    settings = {"replica_lag_time_max_ms": 600_000, "zookeeper_session_timeout_ms": 40_000}
    with brokers(tmp_path, shared=SharedProcesses(shared_zookeeper, forked), **settings) as made:
        yield made
        made.check_errors()


def controller(cluster: ClusterProcesses, asked: int) -> int:
    with cluster.asked(asked) as raw:
        found: int = raw.ask(ApiKey.METADATA, {"topics": []})["controller_id"]
    return found


def brokers_known(cluster: ClusterProcesses, asked: int) -> set[int]:
    with cluster.asked(asked) as raw:
        return {each["node_id"] for each in raw.ask(ApiKey.METADATA, {"topics": []})["brokers"]}


@pytest.mark.parametrize("another", [False, True])
def test_it_is_as_if_the_broker_were_dead(cluster: ClusterProcesses, tmp_path: Path, another: bool) -> None:
    """`another`: a similar folder stands in its place; then the broker ends."""
    wait_until(lambda: controller(cluster, 1) in cluster.brokers, "broker 1 knows who controls")
    victim = controller(cluster, 1)
    other = victim % 3 + 1
    broker = cluster.brokers[victim]
    away = tmp_path / "away"
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        client.create_topic("t", PARTITIONS)
        cluster.until_in_sync("t")
        cluster.spread("t")
        group = next(name for name in map(str, range(1000)) if cluster.coordinator(name) == victim)
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            with client.producer("t") as producer:
                for _ in range(count):
                    producer.send(b"%d" % sent, key=b"k%d" % (sent % 30)).result(LONG_S)
                    sent += 1

        send(60)
        broker.data.rename(away)
        if another:
            (broker.data / "topics").mkdir(parents=True)
            assert broker.ended() == 1
        wait_until(lambda: bool(broker.events("data_folder_away")), "it is told")
        send(60)
        for asked in {other, victim} & set(cluster.running):  # the victim, too, tells its clients who leads
            wait_until(lambda asked=asked: brokers_known(cluster, asked) == {1, 2, 3} - {victim}, "it has left")  # type: ignore[misc]
            wait_until(lambda asked=asked: controller(cluster, asked) not in (victim, -1), "another one controls")  # type: ignore[misc]
        wait_until(
            lambda: all(victim not in (each.leader, *each.isrs) for each in cluster.partitions("t").values()),
            "nobody counts on it",
        )
        wait_until(lambda: cluster.coordinator(group) != victim, "another one coordinates")
        client.create_topic("made-meanwhile", PARTITIONS)
        send(60)
        found = client.table("t").get_many([f"k{key}" for key in range(30)])
        assert [each and each.value for each in found] == [b"%d" % number for number in range(sent - 30, sent)]
        if another:
            assert [each.name for each in broker.data.rglob("*")] == ["topics"]
            broker.data.rename(tmp_path / "other")
        away.rename(broker.data)
        if another:
            broker.start()
        else:
            wait_until(lambda: bool(broker.events("events_taken_again")), "it is back")
        cluster.until_known()
        cluster.until_in_sync("t")
        cluster.spread("t")
        send(60)
        for id in cluster.brokers.keys() - {victim}:  # without the others, the victim serves all events
            cluster.brokers[id].stop()
        with client.consumer("t", end="now") as consumer:
            assert sorted(int(event.value or b"") for event in consumer) == list(range(sent))
    assert len(broker.events("data_folder_away")) == 1
