"""Partitions that move between the brokers of a cluster, under librdkafka's writes: reassignments and elections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import NewTopic

from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.test_cluster import PARTITIONS, Writer, leaders, read, until_acked
from tests.kafka.raw import Raw
from tests.process import wait_until


def make(cluster: ClusterProcesses, name: str, *replicas: int, **config: str) -> None:
    """Makes a topic. All its partitions have these replicas."""
    assigned = [list(replicas)] * PARTITIONS
    [made] = cluster.admin.create_topics(
        [NewTopic(name, PARTITIONS, replica_assignment=assigned, config=config)]
    ).values()
    made.result(30)
    for id in cluster.brokers:
        wait_until(
            lambda id=id: any(each["topic"] == name for each in cluster.events(id, "topic_created")),  # type: ignore[misc]
            f"broker {id} knows {name}",
        )
    cluster.until_led(name)


def reassign(
    cluster: ClusterProcesses, topic: str, wanted: Mapping[int, Sequence[int] | None], at: int = 1
) -> list[int]:
    """Asks a broker to reassign partitions; None as replicas cancels a reassignment. Returns the codes of the
    answer."""
    partitions = [{"partition_index": index, "replicas": to} for index, to in wanted.items()]
    with Raw(str(cluster.brokers[at].settings["listen_kafka"])) as raw:
        topics = [{"name": topic, "partitions": partitions}]
        [found] = raw.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": topics})["responses"]
    return [each["error_code"] for each in found["partitions"]]


def moving(cluster: ClusterProcesses, at: int = 1) -> list[dict[str, object]]:
    """The partitions that are being reassigned, as a broker lists them."""
    with Raw(str(cluster.brokers[at].settings["listen_kafka"])) as raw:
        topics = raw.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None})["topics"]
    return [each for topic in topics for each in topic["partitions"]]


def until_moved(cluster: ClusterProcesses, at: int = 1) -> None:
    wait_until(lambda: not moving(cluster, at), "nothing moves any more")


def holders(cluster: ClusterProcesses, topic: str) -> set[int]:
    """The brokers that have files of a topic."""
    return {id for id, each in cluster.brokers.items() if list((each.data / "topics").glob(f"{topic}-*"))}


def replicas(cluster: ClusterProcesses, topic: str) -> list[list[int]]:
    return [list(each.replicas) for each in cluster.partitions(topic).values()]


def test_replicas_move_under_writes(cluster: ClusterProcesses) -> None:
    make(cluster, "t", 1, 2)
    with Writer(cluster, "t") as writer:
        for to in ([2, 3], [3], [1, 2, 3], [3, 1]):
            until_acked(writer, 2_000)
            assert reassign(cluster, "t", dict.fromkeys(range(PARTITIONS), to), at=to[0]) == [Code.NONE] * PARTITIONS
            wait_until(lambda to=to: replicas(cluster, "t") == [to] * PARTITIONS, f"all are at {to}")  # type: ignore[misc]
            until_moved(cluster, at=to[0])
            wait_until(lambda to=to: holders(cluster, "t") == set(to), f"only {to} have files")  # type: ignore[misc]
            until_acked(writer, 2_000)
            assert set(leaders(cluster, "t")) <= set(to)
        cluster.until_in_sync("t")
    assert not writer.failed
    for each in cluster.brokers.values():
        each.stop()
        assert not each.events("events_lost"), "a replica that is back is taken for one that was there before"
    for partition, acked in writer.acked.items():
        for id in (1, 3):
            found = read(cluster.brokers[id].data, "t", partition)
            assert all(found.get(offset) == str(number).encode() for number, offset in acked)


def test_a_reassignment_is_cancelled(cluster: ClusterProcesses) -> None:
    make(cluster, "t", 1, 2)
    assert reassign(cluster, "t", {0: None, 9: [1], 1: [7], 2: []}) == [
        *(Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_REPLICA_ASSIGNMENT, Code.INVALID_REPLICA_ASSIGNMENT),
        Code.NO_REASSIGNMENT_IN_PROGRESS,
    ]
    cluster.brokers[3].kill()
    assert reassign(cluster, "t", {0: [2, 3]}) == [Code.NONE]
    wait_until(lambda: moving(cluster, at=2) != [], "broker 2 sees what was asked of broker 1")
    [found] = moving(cluster, at=2)
    assert found == {"partition_index": 0, "replicas": [2, 3, 1], "adding_replicas": [3], "removing_replicas": [1]}
    assert reassign(cluster, "t", {0: None}, at=2) == [Code.NONE]
    until_moved(cluster, at=2)
    assert sorted(cluster.partitions("t")[0].replicas) == [1, 2]
    cluster.brokers[3].start()
    assert holders(cluster, "t") == {1, 2}


def test_a_broker_that_was_away_removes_what_was_taken_from_it(cluster: ClusterProcesses) -> None:
    make(cluster, "t", 1, 2, 3)
    with Writer(cluster, "t") as writer:
        until_acked(writer, 1_000)
    cluster.brokers[3].kill()
    assert reassign(cluster, "t", {0: [1, 2], 1: [1, 2]}) == [Code.NONE] * 2
    until_moved(cluster)
    cluster.brokers[3].start()
    folder = cluster.brokers[3].data / "topics"
    wait_until(lambda: {each.name for each in folder.glob("t-*")} == {"t-2", "t-3", "t-4", "t-5"}, "t-0, t-1 are gone")
    cluster.until_in_sync("t")


def test_preferred_leaders_are_elected(cluster: ClusterProcesses) -> None:
    make(cluster, "t", 1, 2, 3)
    cluster.brokers[1].kill()
    wait_until(lambda: set(leaders(cluster, "t")) <= {2, 3}, "others lead")
    asked = [TopicPartition("t", index) for index in range(PARTITIONS)]
    found = cluster.admin.elect_leaders(ElectionType.PREFERRED, asked).result(30)
    assert {error.name() for error in found.values()} == {"PREFERRED_LEADER_NOT_AVAILABLE"}
    cluster.brokers[1].start()
    cluster.until_in_sync("t")
    with Writer(cluster, "t") as writer:
        until_acked(writer, 1_000)
        found = cluster.admin.elect_leaders(ElectionType.PREFERRED, asked).result(30)
        assert all(error is None for error in found.values())
        wait_until(lambda: leaders(cluster, "t") == [1] * PARTITIONS, "broker 1 leads all")
        until_acked(writer, 1_000)
    assert not writer.failed
    found = cluster.admin.elect_leaders(ElectionType.PREFERRED, asked[:1]).result(30)
    assert [error.name() for error in found.values()] == ["ELECTION_NOT_NEEDED"]


def test_a_setting_for_all_brokers_is_taken_by_all(cluster: ClusterProcesses) -> None:
    make(cluster, "t", 1, 2, 3)

    def at(id: int, kind: int, name: str, setting: str) -> str:
        with Raw(str(cluster.brokers[id].settings["listen_kafka"])) as raw:
            resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [setting]}
            [found] = raw.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]})["results"]
        return str(found["configs"][0]["value"])

    for id, value in ((2, "123456"), (3, "654321")):
        config = {"name": "log.retention.ms", "config_operation": 0, "value": value}
        with Raw(str(cluster.brokers[id].settings["listen_kafka"])) as raw:
            resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
            [done] = raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource]})["responses"]
        assert done["error_code"] == Code.NONE
        for each in cluster.brokers:
            wait_until(lambda each=each, value=value: at(each, 2, "t", "retention.ms") == value, f"{each} has {value}")  # type: ignore[misc]


def test_an_unclean_election_is_the_way_out_where_the_only_candidate_is_gone(cluster: ClusterProcesses) -> None:
    make(cluster, "t", 1, 2, **{"min.insync.replicas": "1"})
    asked = [TopicPartition("t", index) for index in range(PARTITIONS)]
    found = cluster.admin.elect_leaders(ElectionType.UNCLEAN, asked).result(30)
    assert {error.name() for error in found.values()} == {"ELECTION_NOT_NEEDED"}
    cluster.brokers[2].kill()
    wait_until(lambda: all(each.isrs == [1] for each in cluster.partitions("t").values()), "2 is not in sync")
    with Writer(cluster, "t") as writer:
        until_acked(writer, 1_000)
    cluster.brokers[1].kill()
    cluster.brokers[2].start()
    wait_until(lambda: leaders(cluster, "t") == [-1] * PARTITIONS, "nobody leads")

    def elected() -> bool:  # the controller may not know yet that broker 2 runs
        found = cluster.admin.elect_leaders(ElectionType.UNCLEAN, asked).result(30)
        return {error and error.name() for error in found.values()} <= {None, "ELECTION_NOT_NEEDED"}

    wait_until(elected, "2 leads")
    with Writer(cluster, "t") as second:
        until_acked(second, 1_000)
    cluster.brokers[1].start()
    cluster.until_in_sync("t")
    for each in cluster.brokers.values():
        each.stop()
    for partition in range(PARTITIONS):
        one, other = (read(cluster.brokers[id].data, "t", partition) for id in (1, 2))
        assert one == other
        assert all(one[offset] == str(number).encode() for number, offset in second.acked[partition])
