"""What brokers say about the ends of logs. Groups use the ends that leaders know, and not that of their coordinator's
replica, which may lag. A new leader tells no end before it knows the end of the last leader."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

from krappy import blocking
from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.test_distant_groups import throttle
from tests.cluster.test_moves import holders, moving, reassign
from tests.cluster.test_native_groups import LONG_S, coordinator, make_at
from tests.cluster.test_share_groups import Scene, make_ready
from tests.peer import Peer
from tests.process import wait_until

ROUNDS = 60  # in about a third of the rounds the follower lags
TEN = batch.encode([None] * 10, [b"v"] * 10, timestamps=1_700_000_000_000)


def test_a_native_group_is_moved_to_what_was_acknowledged_just_now(cluster: ClusterProcesses) -> None:
    make_ready(cluster)
    mine = coordinator(cluster, "g")
    leader = mine % 3 + 1
    make_at(cluster, "t", [leader, *(id for id in cluster.brokers if id != leader)])
    cluster.until_in_sync("t")
    with cluster.asked(leader) as raw, Peer(cluster.brokers[mine].address) as peer:
        for _ in range(ROUNDS):
            end = raw.produce("t", TEN)["base_offset"] + 10
            peer.ask(m.Commit("g", [("t", 0, end)]), m.Committed)
            end = raw.produce("t", TEN)["base_offset"] + 10
            [moved] = peer.ask(m.ResetGroup("g", "t", None, "latest"), m.GroupReset).positions
            assert moved[3] == end
            end = raw.produce("t", TEN)["base_offset"] + 10
            [moved] = peer.ask(m.ResetGroup("g", "t", None, "offset", end), m.GroupReset).positions
            assert moved[3] == end


def test_a_share_group_is_moved_to_what_was_acknowledged_just_now(cluster: ClusterProcesses) -> None:
    make_ready(cluster)
    scene = Scene(cluster)
    with cluster.asked(scene.leader) as raw, cluster.asked(scene.coordinator) as asked:
        for _ in range(ROUNDS):
            end = raw.produce(scene.topic, TEN)["base_offset"] + 10
            row = {"partition_index": 0, "start_offset": end + 5}  # beyond the end, so the end itself counts
            body = {"group_id": scene.group, "topics": [{"topic_name": scene.topic, "partitions": [row]}]}
            assert asked.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, body)["error_code"] == Code.NONE
            assert scene.position() == (end, 0)


def test_a_replica_that_is_still_copied_moves_no_share_group_back(cluster: ClusterProcesses) -> None:
    make_ready(cluster)
    scene = Scene(cluster)
    make_at(cluster, "far", [scene.leader])
    throttle(cluster, "far")
    large = batch.encode([None] * 10, [bytes(50_000)] * 10, timestamps=1_700_000_000_000)
    with cluster.asked(scene.leader) as raw, cluster.asked(scene.coordinator) as asked:
        for _ in range(5):
            assert raw.produce("far", large)["error_code"] == Code.NONE
        assert reassign(cluster, "far", {0: [scene.coordinator]}) == [Code.NONE]
        wait_until(lambda: scene.coordinator in holders(cluster, "far"), "its replica is begun", LONG_S)
        row = {"partition_index": 0, "start_offset": 50}
        body = {"group_id": scene.group, "topics": [{"topic_name": "far", "partitions": [row]}]}
        assert asked.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, body)["error_code"] == Code.NONE
        told = {"group_id": scene.group, "topics": [{"topic_name": "far", "partitions": [0]}]}
        [found] = asked.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, {"groups": [told]})["groups"]
        [part] = found["topics"][0]["partitions"]
        assert (part["start_offset"], part["lag"]) == (50, 0)
        assert moving(cluster), "the replica was copied faster than it should be"


def test_a_new_leader_tells_no_end_before_that_of_the_last_one(
    tmp_path: Path, shared_processes: SharedProcesses
) -> None:
    """The new leader does not know the high watermark of the last one (KIP-207), because the third replica stands
    still."""
    with brokers(tmp_path, shared=shared_processes, replica_lag_time_max_ms=600_000) as cluster:
        make_at(cluster, "t", [1, 2, 3])
        cluster.until_in_sync("t")
        told: list[int] = []

        def ask() -> None:
            with blocking.connect(cluster.native, timeout=LONG_S) as client:
                told.extend(client.offsets("t", "latest").values())
                with client.consumer("t", start="earliest", end="now") as consumer:
                    told.append(len(list(consumer)))

        with cluster.paused(3):
            with cluster.asked(1) as raw:
                assert raw.produce("t", TEN, acks=1)["error_code"] == Code.NONE
            wait_until(lambda: _size(cluster, 2) == _size(cluster, 1) > 0, "the second replica has them")
            cluster.brokers[1].kill()
            wait_until(lambda: cluster.partitions_at(2, "t")[0].leader == 2, "it leads")
            asking = Thread(target=ask)
            asking.start()
            asking.join(0.5)  # a wrong answer would come in this time
        asking.join(LONG_S)
        assert told == [10, 10]


def _size(cluster: ClusterProcesses, id: int) -> int:
    """The size of a broker's log in bytes."""
    return sum(each.stat().st_size for each in (cluster.brokers[id].data / "topics" / "t-0").glob("*.log"))
