"""Groups of a cluster while something goes wrong. Deleted groups stay deleted, and brokers tell nothing that is
wrong."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from kazoo.client import KazooClient

from krappy import blocking, types
from krappy.broker.topics.internal_topics import OFFSETS, SHARES, TRANSACTIONS, settings_in_cluster
from krappy.cli import main
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.state import NOBODY
from krappy.core.kafka.faults import Fault
from krappy.errors import CoordinatorNotAvailable, NotCoordinator, RequestTimeout, UnknownGroup
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses, KnownTopic, SharedProcesses, brokers, make_alone
from tests.cluster.consumers import commit as commit_as_member
from tests.cluster.test_cluster import make_topic
from tests.cluster.zookeeper import ZooKeeperServer
from tests.kafka.raw import Raw
from tests.kafka.test_groups_protocol import join
from tests.long import some
from tests.peer import Peer
from tests.process import PATIENCE, BrokerProcess, free_address, looks, wait_until

Start = Callable[..., AbstractContextManager[ClusterProcesses]]  # it takes settings of the brokers

AWAY = (Fault.COORDINATOR_NOT_AVAILABLE, Fault.NOT_COORDINATOR)


@pytest.fixture
def start(tmp_path: Path, shared_processes: SharedProcesses) -> Start:
    """Starts a cluster that has these settings and a topic."""

    @contextmanager
    def started(**settings: Any) -> Iterator[ClusterProcesses]:
        with brokers(tmp_path, shared=shared_processes, **settings) as made:
            make_topic(made, "t")
            yield made

    return started


def kafka_of(cluster: ClusterProcesses, id: int) -> str:
    return str(cluster.brokers[id].settings["listen_kafka"])


def commit(raw: Raw, group: str, index: int, offset: int, topic: str = "t") -> int:
    partition = {"partition_index": index, "committed_offset": offset, "committed_metadata": ""}
    body = {"group_id": group, "member_id": "", "topics": [{"name": topic, "partitions": [partition]}]}
    return int(raw.ask(ApiKey.OFFSET_COMMIT, body, 8)["topics"][0]["partitions"][0]["error_code"])


def offsets(raw: Raw, group: str) -> dict[int, int] | None:
    """The committed offsets of a group, by partition. None: this broker can't tell."""
    [told] = raw.ask(ApiKey.OFFSET_FETCH, {"groups": [{"group_id": group, "topics": None}]}, 8)["groups"]
    if told["error_code"]:
        return None
    found = [each for topic in told["topics"] for each in topic["partitions"]]
    return {each["partition_index"]: each["committed_offset"] for each in found}


def delete(raw: Raw, group: str) -> int:
    return int(raw.ask(ApiKey.DELETE_GROUPS, {"groups_names": [group]})["results"][0]["error_code"])


def until_answered(cluster: ClusterProcesses, ids: list[int], ask: Callable[[Raw], Any]) -> Any:
    """Asks these brokers until `ask` returns something other than None; returns that."""
    for _ in looks("a broker answers"):
        for id in ids:
            with Raw(kafka_of(cluster, id)) as raw:
                if (told := ask(raw)) is not None:
                    return told
    raise AssertionError


def test_a_refused_commit_does_not_bring_a_deleted_group_back(start: Start) -> None:
    """The refused commit is in the log when the coordinator loads its groups again, and is committed later."""
    with start(min_insync_replicas=2) as cluster:
        at = cluster.coordinator("g")
        cluster.until_in_sync(OFFSETS)
        others = [id for id in cluster.brokers if id != at]
        with Raw(kafka_of(cluster, at)) as raw:
            wait_until(lambda: commit(raw, "g", 0, 7) == Code.NONE, "the group is loaded")
            for id in others:
                cluster.brokers[id].kill()
            assert commit(raw, "g", 1, 9) == Fault.COORDINATOR_NOT_AVAILABLE
            listed = raw.ask(ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []}, 5)
            assert listed["error_code"] == Fault.COORDINATOR_LOAD_IN_PROGRESS
            time.sleep(2)  # a coordinator that does not wait for the commit would load its groups in this time
            for id in others:
                cluster.brokers[id].begin()
            for id in others:
                cluster.brokers[id].ready()
            cluster.until_in_sync(OFFSETS)
            wait_until(lambda: offsets(raw, "g") is not None, "the group is loaded anew")
            assert delete(raw, "g") == Code.NONE
            assert offsets(raw, "g") == {}
        cluster.brokers[at].kill()
        assert until_answered(cluster, others, lambda raw: offsets(raw, "g")) == {}


def test_no_list_leaves_out_native_groups_that_are_loaded_anew(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """This is so for the list of the native protocol, at this broker or by a client, and for that of Kafka's tools."""
    with (
        start(min_insync_replicas=2) as cluster,
        blocking.connect(cluster.native, timeout=PATIENCE) as client,
    ):
        at = cluster.partitions("t")[0].leader
        client.commit("any", {types.TopicPartition("t", 0): 0})  # makes the topic for groups
        led = [index for index, each in cluster.partitions(SHARES).items() if each.leader == at]
        names = (f"n{number}" for number in range(10_000))
        name = next(each for each in names if partition_of(each, len(cluster.partitions(SHARES))) in led)
        client.commit(name, {types.TopicPartition("t", 0): 0})
        cluster.until_in_sync(SHARES)
        others = [id for id in cluster.brokers if id != at]
        with Raw(kafka_of(cluster, at)) as raw, Peer(str(cluster.brokers[at].settings["listen_native"])) as peer:
            wait_until(lambda: native_groups(peer) - {"any"} == {name}, "all that this broker coordinates is loaded")
            for id in others:
                cluster.brokers[id].kill()
            with pytest.raises(NotCoordinator):  # the commit fails, so the broker loads its groups again
                peer.ask(m.Commit(name, [("t", 0, 0)]), m.Committed)
            listed = raw.ask(ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []}, 5)
            assert listed["error_code"] == Fault.COORDINATOR_LOAD_IN_PROGRESS
            with pytest.raises(CoordinatorNotAvailable):
                peer.ask(m.Groups(), m.GroupsFound)
            with blocking.connect(str(cluster.brokers[at].settings["listen_native"]), timeout=5) as hasty:

                def is_told_why() -> bool:
                    with suppress(RequestTimeout):  # the broker may have been too slow for the client
                        with pytest.raises(CoordinatorNotAvailable):
                            hasty.groups()
                        return True
                    return False

                wait_until(is_told_why, "a client is told that they are loaded")
            page = httpx.get(f"http://{cluster.brokers[at].http}/api/v1/groups", timeout=PATIENCE)
            assert (page.status_code, page.json()["retriable"]) == (503, True), page.text
            assert main.run(["group", "list", "--address", str(cluster.brokers[at].settings["listen_native"])]) != 0
            assert f"broker {at} has not loaded" in capfd.readouterr().err
            assert f"broker {at} has not loaded" in page.json()["detail"]
        told: list[list[str]] = []
        waiting = threading.Thread(target=lambda: told.append([each.group for each in client.groups()]))
        waiting.start()
        for id in others:
            cluster.brokers[id].begin()
        for id in others:
            cluster.brokers[id].ready()
        waiting.join(PATIENCE)
        assert told == [sorted(["any", name])]


def native_groups(peer: Peer) -> set[str]:
    """The native groups of this broker. Empty while it loads groups."""
    with suppress(CoordinatorNotAvailable):
        return {each["group"] for each in peer.ask(m.Groups(), m.GroupsFound).groups}
    return set()


def listed_at(raw: Raw) -> tuple[int, set[str]]:
    told = raw.ask(ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []}, 5)
    return told["error_code"], {each["group_id"] for each in told["groups"]}


def test_groups_that_nobody_coordinates_keep_no_broker_from_listing_its_own(start: Start) -> None:
    """This is as in Kafka. A broker says that it loads groups from the moment when it knows that it will coordinate
    them."""
    with start(default_replication_factor=1) as cluster:
        names = [f"g{number}" for number in range(12)]
        at = {name: cluster.coordinator(name) for name in names}
        assert set(at.values()) == set(cluster.brokers)
        for name, id in at.items():
            with Raw(kafka_of(cluster, id)) as raw:
                wait_until(lambda: commit(raw, name, 0, 7) == Code.NONE, "the group is loaded")  # noqa: B023
        cluster.brokers[1].kill()
        partitions = [index for index, each in cluster.partitions(OFFSETS).items() if each.replicas == [1]]
        wait_until(
            lambda: all(cluster.partitions(OFFSETS)[index].leader == NOBODY for index in partitions),
            "nobody leads them",
        )
        for id in (2, 3):
            with Raw(kafka_of(cluster, id)) as raw:
                assert listed_at(raw) == (0, {name for name in names if at[name] == id})
        cluster.until_known()  # otherwise librdkafka waits for the dead broker, too
        found, errors = consumer_groups(cluster)
        assert (found, errors) == ({name for name in names if at[name] != 1}, [])
        cluster.brokers[1].start()
        mine = {name for name in names if at[name] == 1}
        answers: list[tuple[int, set[str]]] = []
        with Raw(kafka_of(cluster, 1)) as raw:
            while not answers or answers[-1] != (0, mine):
                if all(
                    each.leader == 1 for index, each in cluster.partitions_at(1, OFFSETS).items() if index in partitions
                ):
                    answers.append(listed_at(raw))
        assert all(each in ((0, mine), (Fault.COORDINATOR_LOAD_IN_PROGRESS, set())) for each in answers), answers


def consumer_groups(cluster: ClusterProcesses) -> tuple[set[str], list[Any]]:
    """Lists groups by librdkafka; returns (their names, the errors)."""
    told = cluster.admin.list_consumer_groups(request_timeout=30).result(60)
    return {each.group_id for each in told.valid}, list(told.errors)


def test_a_group_whose_coordinator_has_died_is_not_said_to_be_unknown(start: Start) -> None:
    """It is a Kafka group. The coordinator of native groups of this name knows that there is no native one. The
    coordinator of Kafka's is dead, or still loads its groups."""
    with (
        start() as cluster,
        blocking.connect(cluster.native, timeout=PATIENCE) as client,
    ):
        client.commit("any", {types.TopicPartition("t", 0): 0})  # makes the topic for groups
        at = cluster.coordinator("g")
        for topic in (OFFSETS, SHARES):
            cluster.until_in_sync(topic)
        with Raw(kafka_of(cluster, at)) as raw:
            wait_until(lambda: commit(raw, "g", 0, 7) == Code.NONE, "the group is loaded")
        native = cluster.partitions(SHARES)
        keeper = native[partition_of("g", len(native))].leader
        assert keeper != at
        with blocking.connect(str(cluster.brokers[keeper].settings["listen_native"]), timeout=PATIENCE) as other:
            assert other.group("g").kind == "classic"
            with pytest.raises(UnknownGroup):
                other.group("nobody")
            cluster.brokers[at].kill()
            assert other.group("g").kind == "classic"
            assert other.positions("g") == {types.TopicPartition("t", 0): 7}
            with pytest.raises(UnknownGroup):
                other.group("nobody")


def test_a_coordinator_starts_again_at_once(start: Start) -> None:
    """The coordinator is dead for such a short time that it is still the leader of its internal partitions."""
    with start() as cluster, blocking.connect(cluster.native, timeout=PATIENCE) as client:
        producer = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": "x"})
        producer.init_transactions(PATIENCE)
        client.commit("n", {types.TopicPartition("t", 0): 0})
        for topic in (SHARES, TRANSACTIONS):
            cluster.until_in_sync(topic)
        parts = cluster.partitions(TRANSACTIONS)
        at = parts[partition_of("x", len(parts))].leader
        cluster.brokers[at].kill()
        cluster.brokers[at].start()
        wait_until(lambda: {each.group for each in client.groups()} == {"n"}, "its groups are listed again")
        producer.begin_transaction()
        producer.abort_transaction(PATIENCE)


def test_a_coordinator_that_was_stopped_describes_no_group_that_is_deleted(start: Start) -> None:
    with start() as cluster:
        at = cluster.coordinator("g")
        cluster.until_in_sync(OFFSETS)
        with Raw(kafka_of(cluster, at)) as raw:
            wait_until(lambda: commit(raw, "g", 0, 7) == Code.NONE, "the group is loaded")
            pid = cluster.brokers[at].pid
            os.kill(pid, signal.SIGSTOP)
            try:
                others = [id for id in cluster.brokers if id != at]
                until_answered(cluster, others, lambda raw: True if delete(raw, "g") == Code.NONE else None)
                raw.send(ApiKey.DESCRIBE_GROUPS, {"groups": ["g"]}, 5)
            finally:
                os.kill(pid, signal.SIGCONT)
            [told] = raw.receive()["groups"]
            assert told["error_code"] in AWAY, told


def test_an_assignment_is_told_to_nobody_before_it_is_committed(start: Start) -> None:
    """It is not even told to a member that asks again, because another coordinator may know nothing of it."""
    with start(group_initial_rebalance_delay_ms=0) as cluster:
        at = cluster.coordinator("g")
        cluster.until_in_sync(OFFSETS)
        others = [each.pid for id, each in cluster.brokers.items() if id != at]
        with Raw(kafka_of(cluster, at)) as raw, Raw(kafka_of(cluster, at)) as again:
            wait_until(lambda: offsets(raw, "g") is not None, "the group is loaded")
            joined = raw.ask(ApiKey.JOIN_GROUP, join("g"), 3)
            sync = {"group_id": "g", "member_id": joined["member_id"], "generation_id": joined["generation_id"]}
            given = [{"member_id": joined["member_id"], "assignment": b"all"}]
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
            try:
                for each in (raw, again):
                    each.send(ApiKey.SYNC_GROUP, sync | {"assignments": given}, 3)
                told, _, _ = select.select([raw.socket, again.socket], [], [], 1.5)
                assert not told
            finally:
                for pid in others:
                    os.kill(pid, signal.SIGCONT)
            for each in (raw, again):
                assert each.receive()["assignment"] == b"all"


def test_groups_work_where_topics_have_no_views_by_default(start: Start) -> None:
    with start(view_enable=False) as cluster:
        one = Consumer({"bootstrap.servers": cluster.kafka, "group.id": "g"})
        commit_as_member(one, [TopicPartition("t", 0, 7)])
        assert one.committed([TopicPartition("t", 0)], 60)[0].offset == 7
        one.close()


def test_a_big_group_of_a_folder_that_was_alone_moves_into_the_topic(
    tmp_path: Path, shared_zookeeper: ZooKeeperServer
) -> None:
    """The group needs more than one batch. The topic gets the settings of a cluster."""
    count = 1100
    kafka = free_address()
    admin = AdminClient({"bootstrap.servers": kafka})
    one = Consumer({"bootstrap.servers": kafka, "group.id": "g"})
    with BrokerProcess(tmp_path / "broker", listen_kafka=kafka) as alone:
        [made] = admin.create_topics([NewTopic("t", count)]).values()
        made.result(60)
        for first in range(0, count, 275):
            some = range(first, first + 275)
            at = [TopicPartition("t", index, index + 1, "😀" * 4000) for index in some]
            commit_as_member(one, at)
        alone.stop()
    chroot = f"127.0.0.1:{shared_zookeeper.port}/{tmp_path.name}"
    with BrokerProcess(tmp_path / "broker", listen_kafka=kafka, broker_id=1, zookeeper_connect=chroot) as broker:
        wait_until(lambda: len(broker.events("role_taken")) >= count, "the broker leads its topics")
        with Raw(kafka) as raw:
            wait_until(lambda: offsets(raw, "g") is not None, "the group is loaded")
            assert offsets(raw, "g") == {index: index + 1 for index in range(count)}
        resource = ConfigResource(ConfigResource.Type.TOPIC, OFFSETS)
        again = AdminClient({"bootstrap.servers": kafka})
        [described] = again.describe_configs([resource]).values()
        found = described.result(60)
        wanted = settings_in_cluster(OFFSETS)
        assert {name: found[name].value for name in wanted} == wanted
        assert not broker.events("coordinator_not_loaded")
    one.close()


def alone_is_made(raw: Raw, broker: int) -> bool | None:
    """None: the broker that is asked can't make it yet."""
    return True if make_alone(raw, broker) in (Code.NONE, Code.TOPIC_ALREADY_EXISTS) else None


def alone_elsewhere(cluster: ClusterProcesses) -> tuple[int, list[int]]:
    """Makes the topic "alone" at another broker than the coordinator of the group "g", and commits a position of the
    group in it. Gives the coordinator, and the other brokers; the first of them has the topic."""
    at = cluster.coordinator("g")
    cluster.until_in_sync(OFFSETS)
    others = [id for id in cluster.brokers if id != at]
    until_answered(cluster, others, lambda raw: alone_is_made(raw, others[0]))
    with Raw(kafka_of(cluster, at)) as raw:
        wait_until(lambda: commit(raw, "g", 0, 7, "alone") == Code.NONE, "it is committed")
    return at, others


def delete_alone(raw: Raw) -> bool | None:
    body = {"topics": [{"name": "alone", "topic_id": bytes(16)}], "timeout_ms": 20_000}
    [deleted] = raw.ask(ApiKey.DELETE_TOPICS, body, 6)["responses"]
    return True if deleted["error_code"] in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION) else None


def until_known_anew(cluster: ClusterProcesses, before: KnownTopic | None, anew: bool) -> None:
    """Waits until all brokers know that the topic "alone" is gone, or that there is another one (`anew`)."""
    assert before is not None

    def is_known() -> bool:
        now = cluster.topic("alone")
        return now is not None and now.id != before.id if anew else now is None

    wait_until(is_known, "all know the new topic" if anew else "all know that the topic is gone")


@pytest.mark.parametrize("anew", some([True, False], 2))
def test_positions_in_a_topic_that_is_deleted_while_nobody_coordinates_their_group(start: Start, anew: bool) -> None:
    """The next coordinator tells no position in the topic, although the topic's files are removed by then. `anew`:
    there is another topic of this name."""
    with start() as cluster:
        at, others = alone_elsewhere(cluster)
        with Raw(kafka_of(cluster, at)) as raw:
            wait_until(lambda: commit(raw, "g", 1, 8) == Code.NONE, "it is committed")
        before = cluster.topic("alone")
        cluster.brokers[at].kill()
        until_answered(cluster, others, delete_alone)
        until_known_anew(cluster, before, anew=False)  # a broker that still knows it would refuse to make it
        if anew:
            until_answered(cluster, others, lambda raw: alone_is_made(raw, others[0]))
            until_known_anew(cluster, before, anew=True)
        assert until_answered(cluster, others, lambda raw: offsets(raw, "g")) == {1: 8}


def test_a_topic_is_made_anew_while_the_coordinator_may_not_write(start: Start) -> None:
    """Too few replicas of the groups' topic are in sync, so the positions in the deleted topic can't be removed there
    for a while. The coordinator has no replica of that topic, so it does not have to remove files of it."""
    with start() as cluster:
        at, others = alone_elsewhere(cluster)
        with Raw(kafka_of(cluster, at)) as raw:
            for id in others:
                cluster.brokers[id].kill()
            wait_until(lambda: all(each.isrs == [at] for each in cluster.partitions(OFFSETS).values()), "it is alone")
            before = cluster.topic("alone")
            until_answered(cluster, [at], delete_alone)
            until_answered(cluster, [at], lambda raw: alone_is_made(raw, at))
            until_known_anew(cluster, before, anew=True)
            assert offsets(raw, "g") == {}
        for id in others:
            cluster.brokers[id].start()
        cluster.until_in_sync(OFFSETS)
        assert until_answered(cluster, [at], lambda raw: offsets(raw, "g")) == {}
        with Raw(kafka_of(cluster, at)) as raw:
            wait_until(lambda: commit(raw, "g", 0, 3, "alone") == Code.NONE, "it is committed")
        cluster.brokers[at].kill()
        assert until_answered(cluster, others, lambda raw: offsets(raw, "g")) == {0: 3}


def test_a_coordinator_that_sees_no_record_of_a_deletion(start: Start) -> None:
    """It has no replica of the topic, and is stopped while the topic is deleted. The record of the deletion is gone,
    with the last replica, when it goes on. Then another topic has the name."""
    with start() as cluster:
        at, [other, *_] = alone_elsewhere(cluster)
        before = cluster.topic("alone")
        with cluster.paused(at):
            until_answered(cluster, [other], delete_alone)
            wait_until(lambda: not deletions(cluster), "its files are removed")
        until_answered(cluster, [other], lambda raw: alone_is_made(raw, other))
        until_known_anew(cluster, before, anew=True)
        assert until_answered(cluster, [*cluster.brokers], lambda raw: offsets(raw, "g")) == {}
        assert not cluster.events(at, "topic_strayed")


def deletions(cluster: ClusterProcesses) -> list[str]:
    """The records of deletions in ZooKeeper."""
    kazoo = KazooClient(hosts=cluster.brokers[1].settings["zookeeper_connect"])
    kazoo.start(PATIENCE)
    try:
        return [*kazoo.get_children("/admin/deleted")]
    finally:
        kazoo.stop()
        kazoo.close()
