"""Share groups (KIP-932) in a cluster. Three brokers have a part in each group: its coordinator, the broker that keeps
its states, and the leader of the partition. Whichever of them dies, no acknowledged record is delivered again, and
acquired records are delivered again with their delivery count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from krappy import blocking
from krappy.broker.topics.internal_topics import OFFSETS, SHARES
from krappy.core.cluster.coordinators import partition_of
from krappy.errors import WrongGroupKind
from krappy.records import batch
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.kafka.raw import Raw
from tests.kafka.shares import ACCEPT, RELEASE, Member, beat
from tests.process import wait_until

LATER = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR)
LONG_S = 60.0
MOVED = {Code.NOT_LEADER_OR_FOLLOWER, Code.INVALID_RECORD_STATE}
_numbers = count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    """A cluster for all tests of this module. A test that kills a broker must start it again."""
    with brokers(tmp_path_factory.mktemp("share-groups"), shared=shared_processes) as made:
        make_ready(made)
        yield made
        made.check_errors()


def make_ready(made: ClusterProcesses) -> None:
    """Waits until there are coordinators of groups, and brokers that keep states of share groups."""
    for kind, key in ((0, "any"), (2, "any:x:0")):
        with made.asked(1) as raw:
            ask = partial(raw.ask, ApiKey.FIND_COORDINATOR, {"key_type": kind, "coordinator_keys": [key]})
            wait_until(lambda ask=ask: ask()["coordinators"][0]["error_code"] == 0, "there is one")  # type: ignore[misc]
    for topic in (OFFSETS, SHARES):
        made.until_in_sync(topic)


def group_leader(cluster: ClusterProcesses, internal: str, group: str) -> int:
    """The broker that coordinates a group (OFFSETS), or that keeps its states (SHARES). -1: there is none."""
    found = cluster.partitions(internal)
    return found[partition_of(group, len(found))].leader


def _is_led(cluster: ClusterProcesses, internal: str, group: str) -> bool:
    return group_leader(cluster, internal, group) in cluster.running


def set_everywhere(cluster: ClusterProcesses, raw: Raw, group: str, settings: dict[str, str]) -> None:
    """Sets a group's settings at one broker, and waits until all brokers know them. For example, the leader of a
    partition decides where a group begins to read, and it may be another broker."""
    configs = [{"name": name, "value": value, "config_operation": 0} for name, value in settings.items()]
    body = {"resources": [{"resource_type": 32, "resource_name": group, "configs": configs}]}
    assert raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, body)["responses"][0]["error_code"] == 0
    resource = {"resource_type": 32, "resource_name": group, "configuration_keys": list(settings)}

    def knows(asked: Raw) -> bool:
        [told] = asked.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]})["results"]
        return {each["name"]: each["value"] for each in told["configs"]} == settings

    for id in cluster.running:
        with cluster.asked(id) as asked:
            wait_until(partial(knows, asked), f"broker {id} knows the group's settings")


class Scene:
    """A group and a topic of one partition. The leader, the coordinator and the keeper of the group's states are three
    different brokers. `keeper_leads`: the keeper is the leader, too."""

    def __init__(
        self, cluster: ClusterProcesses, records: int = 10, *, keeper_leads: bool = False, **config: str
    ) -> None:
        """`config`: settings of the topic, by Kafka's names with _ in place of dots."""
        config = {name.replace("_", "."): value for name, value in config.items()}
        self.cluster = cluster
        number = next(_numbers)
        self.topic = f"t{number}"
        states = cluster.partitions(SHARES)
        self.group = next(
            name
            for each in count()
            for name in (f"g{number}-{each}",)
            if states[partition_of(name, len(states))].leader != group_leader(cluster, OFFSETS, name)
        )
        self.keeper, self.coordinator = (
            group_leader(cluster, SHARES, self.group),
            group_leader(cluster, OFFSETS, self.group),
        )
        third = next(id for id in cluster.brokers if id not in (self.keeper, self.coordinator))
        self.leader = self.keeper if keeper_leads else third
        replicas = [self.leader, *(id for id in cluster.brokers if id != self.leader)]
        made = NewTopic(self.topic, 1, replica_assignment=[replicas], config=config)
        cluster.admin.create_topics([made])[self.topic].result(30)
        wait_until(lambda: self.led_by() == self.leader, "the topic is led")
        if records:
            self.fill(records)
        with cluster.asked(self.coordinator) as raw:
            self.set(raw, share_auto_offset_reset="earliest")

    def led_by(self) -> int:
        found = self.cluster.topic(self.topic)
        return -1 if found is None else found.partitions[0].leader

    def fill(self, records: int) -> None:
        data = batch.encode([None] * records, [b"%d" % n for n in range(records)], timestamps=1_700_000_000_000)
        with self.cluster.asked(self.led_by()) as raw:
            wait_until(lambda: raw.produce(self.topic, data)["error_code"] == 0, "it is written")

    def set(self, raw: Raw, **settings: str) -> None:
        """Sets the group's settings, and waits until all brokers know them."""
        wanted = {name.replace("_", "."): value for name, value in settings.items()}
        set_everywhere(self.cluster, raw, self.group, wanted)

    def joined(self, stack: ExitStack, name: str = "one") -> Member:
        """A member with a connection to the present leader. Waits until a coordinator accepts the member."""
        raw = stack.enter_context(self.cluster.asked(self.led_by()))

        def taken() -> bool:  # another broker may become the coordinator meanwhile
            with self.cluster.asked(group_leader(self.cluster, OFFSETS, self.group)) as asked:
                return bool(beat(asked, self.group, name, 0, [self.topic])["error_code"] == Code.NONE)

        wait_until(taken, "it is a member", LONG_S)
        with self.cluster.asked(group_leader(self.cluster, OFFSETS, self.group)) as coordinator:
            # A leader leases nothing while its own lease has run out. This may happen on a busy machine.
            return Member(raw, self.group, name, self.topic, coordinator=coordinator, wait_ms=30_000)

    def acquire(self, member: Member, records: int, **more: Any) -> list[tuple[int, int, int]]:
        """Fetches until the member gets records; returns them as (first offset, last offset, deliveries). It gets
        nothing while the broker that keeps the state is away."""
        found: list[tuple[int, int, int]] = []

        def look() -> bool:
            found.extend(member.acquired(**{"max_records": records, "max_wait_ms": 500, **more}))
            return bool(found)

        wait_until(look, "records", LONG_S)
        return found

    def until_written(self, deliveries: int) -> None:
        """Waits until the broker that keeps the state has a record with this delivery count."""

        def look() -> bool:
            with self.cluster.asked(group_leader(self.cluster, SHARES, self.group)) as raw:
                row = self.read(raw, -1)
            return any(each["delivery_count"] == deliveries for each in row["state_batches"])

        wait_until(look, "the state is kept")

    def read(self, raw: Raw, leader_epoch: int) -> dict[str, Any]:
        """The state that is kept, read as the leader of the partition reads it."""
        epoch = self.cluster.partitions(self.topic)[0].epoch if leader_epoch < 0 else leader_epoch
        topic = {"topic_id": raw.topic_id(self.topic), "partitions": [{"partition": 0, "leader_epoch": epoch}]}
        answer = raw.ask(ApiKey.READ_SHARE_GROUP_STATE, {"group_id": self.group, "topics": [topic]})
        assert answer["error_code"] == 0, answer
        (row,) = answer["results"][0]["partitions"]
        assert row["error_code"] == 0, row
        return dict(row)

    def position(self) -> tuple[int, int]:
        """(start offset, lag). Waits until the brokers that know them answer, because one may just have been killed."""
        found: list[tuple[int, int]] = []
        asked = {"group_id": self.group, "topics": [{"topic_name": self.topic, "partitions": [0]}]}

        def look() -> bool:
            with self.cluster.asked(group_leader(self.cluster, OFFSETS, self.group)) as raw:
                (told,) = raw.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, {"groups": [asked]})["groups"]
            assert told["error_code"] in (Code.NONE, *LATER), told
            for part in told["topics"][0]["partitions"] if told["topics"] else ():
                assert part["error_code"] in (Code.NONE, *LATER), part
                if part["error_code"] == Code.NONE and part["lag"] >= 0:
                    found.append((part["start_offset"], part["lag"]))
            return bool(found)

        wait_until(look, "the position is told", LONG_S)
        return found[0]

    def restart(self, id: int) -> None:
        self.cluster.brokers[id].start()
        self.cluster.until_known()
        for topic in (OFFSETS, SHARES, self.topic):
            self.cluster.until_in_sync(topic)


def test_a_member_reads_where_the_leader_is(cluster: ClusterProcesses) -> None:
    scene = Scene(cluster)
    with ExitStack() as stack:
        one = scene.joined(stack)
        assert one.acquired(max_records=4) == [(0, 3, 1)]
        assert one.acquired((0, 1, [ACCEPT]), (2, 3, [RELEASE, ACCEPT]), max_records=4) == [(2, 2, 2), (4, 6, 1)]
        assert one.acknowledge((2, 2, [ACCEPT]), (4, 6, [ACCEPT])) == 0
        assert scene.position() == (7, 3)
        with cluster.asked(scene.coordinator) as raw:
            (group,) = raw.ask(ApiKey.SHARE_GROUP_DESCRIBE, {"group_ids": [scene.group]})["groups"]
            assert (group["group_state"], len(group["members"])) == ("Stable", 1)
            features = raw.ask(ApiKey.API_VERSIONS, {"client_software_name": "x", "client_software_version": "1"})
            assert "share.version" in {each["name"] for each in features["finalized_features"]}
        with cluster.asked(scene.keeper) as raw:
            one.raw, right = raw, one.raw
            answer = one.ask_fetch(epoch=0)
            (part,) = answer["responses"][0]["partitions"]
            assert part["error_code"] == Code.NOT_LEADER_OR_FOLLOWER
            assert part["current_leader"]["leader_id"] == scene.leader
            assert [each["node_id"] for each in answer["node_endpoints"]] == [scene.leader]
            one.raw = right


@pytest.mark.parametrize("who", ["leader", "keeper", "leader and keeper", "coordinator"])
def test_whoever_dies_nothing_acknowledged_comes_again(cluster: ClusterProcesses, who: str) -> None:
    scene = Scene(cluster, keeper_leads=who == "leader and keeper")
    killed = scene.coordinator if who == "coordinator" else scene.keeper if "keeper" in who else scene.leader
    with ExitStack() as stack:
        one = scene.joined(stack)
        assert one.acquired(max_records=6) == [(0, 5, 1)]
        assert one.acquired((0, 2, [ACCEPT, RELEASE, ACCEPT]), max_records=1) == [(1, 1, 2)]
        scene.until_written(2)
        cluster.brokers[killed].kill()
        if "leader" not in who:  # the leader answers once another broker keeps the state
            one.raw.send(ApiKey.SHARE_ACKNOWLEDGE, one.body([(3, 3, [ACCEPT])]))
            one.epoch += 1
        for internal in (OFFSETS, SHARES):
            alive = partial(_is_led, cluster, internal, scene.group)
            wait_until(alive, f"another broker leads {internal}", LONG_S)
        wait_until(lambda: scene.led_by() in cluster.running, "another leads", LONG_S)
        if "leader" not in who:
            told = one.raw.receive()  # the leader goes on, and so does its session
            assert told["responses"][0]["partitions"][0]["error_code"] == 0, told
            assert one.acquired((1, 1, [RELEASE]), max_records=1) == [(1, 1, 3)]
            assert scene.position() == (1, 7)
        else:
            two = scene.joined(stack, "two")
            assert scene.acquire(two, 100) == [(1, 1, 3), (3, 5, 2), (6, 9, 1)]
            assert two.acknowledge((1, 1, [ACCEPT])) == 0
            assert scene.position() == (3, 7)
        with cluster.asked(group_leader(cluster, OFFSETS, scene.group)) as raw:
            assert beat(raw, scene.group, "one", 1)["error_code"] == 0
    scene.restart(killed)


def test_a_leader_that_wakes_up_delivers_nothing(cluster: ClusterProcesses) -> None:
    """A request came while the leader was stopped. The records that it would deliver were acknowledged at the next
    leader meanwhile."""
    scene = Scene(cluster)
    limits = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100, "batch_size": 100}
    with ExitStack() as stack:
        one = scene.joined(stack)
        assert one.acquired(max_records=2) == [(0, 1, 1)]
        with cluster.paused(scene.leader):
            wait_until(lambda: scene.led_by() in cluster.running, "another leads", LONG_S)
            two = scene.joined(stack, "two")
            taken = 0
            while taken < 10:
                taken += sum(last + 1 - first for first, last, _ in scene.acquire(two, 100))
            assert two.acknowledge((0, 9, [ACCEPT])) == 0
            one.raw.send(ApiKey.SHARE_FETCH, one.body([], **limits))
        told = one.raw.receive()
        parts = [part for topic in told["responses"] for part in topic["partitions"]]
        assert not any(part["acquired_records"] for part in parts), told
        assert {part["error_code"] for part in parts} <= {0, *MOVED}, told
    cluster.until_in_sync(scene.topic)


def test_a_leader_that_wakes_up_acknowledges_nothing(cluster: ClusterProcesses) -> None:
    """The old leader still has its member's connection and leases, and a request that came while it was stopped."""
    scene = Scene(cluster)
    with ExitStack() as stack:
        one = scene.joined(stack)
        assert one.acquired(max_records=6) == [(0, 5, 1)]
        assert one.acknowledge((5, 5, [ACCEPT])) == 0
        with cluster.paused(scene.leader):
            wait_until(lambda: scene.led_by() in cluster.running, "another leads", LONG_S)
            two = scene.joined(stack, "two")
            assert scene.acquire(two, 2) == [(0, 1, 2)]
            assert two.acknowledge((0, 1, [ACCEPT, RELEASE])) == 0
            one.raw.send(ApiKey.SHARE_ACKNOWLEDGE, one.body([(0, 4, [ACCEPT])]))
            one.epoch += 1
        told = one.raw.receive()
        codes = {part["error_code"] for topic in told["responses"] for part in topic["partitions"]}
        assert codes, told
        assert codes <= MOVED, told
        assert two.acquired() == [(1, 1, 3), (2, 4, 2), (6, 9, 1)]
    cluster.until_in_sync(scene.topic)


def test_a_fetch_that_waits_is_told_when_the_leader_is_another(cluster: ClusterProcesses) -> None:
    scene = Scene(cluster, 1)
    first = [scene.coordinator, *(id for id in cluster.brokers if id != scene.coordinator)]
    with ExitStack() as stack:
        one = scene.joined(stack)
        assert one.acquired() == [(0, 0, 1)]
        limits = {"max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100}
        one.raw.send(ApiKey.SHARE_FETCH, one.body([], **limits))
        with cluster.asked(scene.keeper) as raw:
            partitions = [{"partition_index": 0, "replicas": first}]
            body = {"topics": [{"name": scene.topic, "partitions": partitions}]}
            raw.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body)
            topics = [{"topic": scene.topic, "partitions": [0]}]
            elect = {"election_type": 0, "topic_partitions": topics, "timeout_ms": 30_000}
            wait_until(lambda: raw.ask(ApiKey.ELECT_LEADERS, elect) is not None and scene.led_by() == first[0], "it is")
        answer = one.raw.receive()
        (part,) = answer["responses"][0]["partitions"]
        assert part["error_code"] == Code.NOT_LEADER_OR_FOLLOWER
        assert part["current_leader"]["leader_id"] == first[0]
        two = scene.joined(stack, "two")
        assert scene.acquire(two, 100) == [(0, 0, 2)]


def test_a_name_belongs_to_one_kind_of_group_whichever_brokers_coordinate(cluster: ClusterProcesses) -> None:
    scene = Scene(cluster)
    assert scene.coordinator != scene.keeper
    with ExitStack() as stack, blocking.connect(cluster.native, timeout=LONG_S) as client:
        scene.joined(stack)
        with pytest.raises(WrongGroupKind), client.consumer(scene.topic, group=scene.group) as consumer:
            consumer.poll(LONG_S)
        other = Scene(cluster)
        with client.consumer(other.topic, group=other.group) as consumer, cluster.asked(other.coordinator) as raw:
            assert consumer.poll(LONG_S)
            assert beat(raw, other.group, "one", 0, [other.topic])["error_code"] == Code.GROUP_ID_NOT_FOUND
        client.delete_group(other.group)
        other.joined(stack)


def test_settings_of_groups_reach_all_brokers_at_once(cluster: ClusterProcesses) -> None:
    scene = Scene(cluster)
    with ExitStack() as stack, cluster.asked(scene.keeper) as other, cluster.asked(scene.coordinator) as coordinator:
        one = scene.joined(stack)
        scene.set(other, share_record_lock_duration_ms="1234", share_heartbeat_interval_ms="777")

        def lock() -> int:
            one.epoch += 1
            answer = one.ask_fetch(epoch=one.epoch - 1, max_wait_ms=0)
            return int(answer["acquisition_lock_timeout_ms"])

        wait_until(lambda: lock() == 1234, "the leader knows")
        wait_until(
            lambda: beat(coordinator, scene.group, "one", 1)["heartbeat_interval_ms"] == 777, "the coordinator knows"
        )


def test_a_group_is_moved_deleted_and_made_anew_while_a_session_stays(cluster: ClusterProcesses) -> None:
    """The member has left the group, but its connection to the leader stays, and so does its session."""
    scene = Scene(cluster)
    with ExitStack() as stack, cluster.asked(scene.coordinator) as coordinator:
        one = scene.joined(stack)
        assert one.acquired(max_records=6) == [(0, 5, 1)]
        assert one.acknowledge((0, 2, [ACCEPT])) == 0
        assert beat(coordinator, scene.group, "one", -1)["error_code"] == 0
        move: list[Any] = [{"topic_name": scene.topic, "partitions": [{"partition_index": 0, "start_offset": 8}]}]
        moved = coordinator.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": scene.group, "topics": move})
        assert moved["error_code"] == moved["responses"][0]["partitions"][0]["error_code"] == 0, moved
        two = scene.joined(stack, "two")
        assert two.acquired(max_records=1) == [(8, 8, 1)]  # a new session begins where the group stands now
        assert one.acknowledge((3, 3, [ACCEPT])) == Code.INVALID_RECORD_STATE
        assert scene.position() == (8, 2)
        assert beat(coordinator, scene.group, "two", -1)["error_code"] == 0
        move[0]["partitions"] = [{"partition_index": 0, "start_offset": 7}]
        moved = coordinator.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": scene.group, "topics": move})
        assert moved["error_code"] == 0, moved
        # The group has moved since this was read.
        assert two.acknowledge((8, 8, [ACCEPT])) == Code.NOT_LEADER_OR_FOLLOWER
        assert one.acquired(max_records=1) == [(7, 7, 1)]  # the old session goes on where the group stands now
        assert coordinator.ask(ApiKey.DELETE_GROUPS, {"groups_names": [scene.group]})["results"][0]["error_code"] == 0
        assert one.acknowledge((7, 7, [ACCEPT])) in (Code.GROUP_ID_NOT_FOUND, Code.NOT_LEADER_OR_FOLLOWER)
        gone = one.ask_fetch()
        assert gone["error_code"] in (Code.GROUP_ID_NOT_FOUND, Code.SHARE_SESSION_NOT_FOUND)
        three = scene.joined(stack, "three")
        assert three.acquired() == [(0, 9, 1)]  # nothing is left of the deleted group


def test_a_topic_that_is_made_anew_is_read_from_its_start(cluster: ClusterProcesses) -> None:
    scene = Scene(cluster)
    with ExitStack() as stack:
        one = scene.joined(stack)
        assert one.acquired() == [(0, 9, 1)]
        assert one.acknowledge((0, 9, [ACCEPT])) == 0
        with cluster.asked(scene.coordinator) as raw:
            raw.ask(ApiKey.DELETE_TOPICS, {"topics": [{"name": scene.topic}], "timeout_ms": 10_000})
        wait_until(lambda: cluster.topic(scene.topic) is None, "it is gone")
        assert one.fetch()["error_code"] == Code.UNKNOWN_TOPIC_ID
        replicas = [scene.keeper, *(id for id in cluster.brokers if id != scene.keeper)]
        [made] = cluster.admin.create_topics([NewTopic(scene.topic, 1, replica_assignment=[replicas])]).values()
        made.result(30)
        wait_until(lambda: scene.led_by() == scene.keeper, "it is led")
        scene.fill(3)
        two = scene.joined(stack, "two")
        assert scene.acquire(two, 100) == [(0, 2, 1)]
        assert scene.position() == (0, 3)


def test_partitions_that_a_topic_gains_are_read_from_their_first_record(cluster: ClusterProcesses) -> None:
    """The leader of the new partition is neither the broker that keeps the states nor the leader of the first
    partition."""
    scene = Scene(cluster)
    with cluster.asked(scene.coordinator) as raw:
        scene.set(raw, share_auto_offset_reset="latest")
    with ExitStack() as stack:
        one = scene.joined(stack)
        one.wait_ms = 0

        def begins() -> bool:  # the group begins at the present end, and not at a later one
            assert one.acquired() == []
            with cluster.asked(group_leader(cluster, SHARES, scene.group)) as asked:
                return bool(scene.read(asked, -1)["start_offset"] == 10)

        wait_until(begins, "it is kept where the group begins")
        body = {"topics": [{"name": scene.topic, "count": 2, "assignments": [{"broker_ids": [scene.coordinator]}]}]}
        with cluster.asked(1) as raw:
            made = raw.ask(ApiKey.CREATE_PARTITIONS, {**body, "timeout_ms": 10_000, "validate_only": False})
        assert made["results"][0]["error_code"] == 0, made

        def leads() -> bool:
            found = cluster.partitions(scene.topic)
            return len(found) == 2 and found[1].leader == scene.coordinator

        wait_until(leads, "the new partition is led")
        with cluster.asked(scene.coordinator) as raw:
            data = batch.encode([None] * 3, [b"x"] * 3, timestamps=1)
            wait_until(lambda: raw.produce(scene.topic, data, 1)["error_code"] == 0, "it is written")
            two = Member(raw, scene.group, "two", scene.topic, 1, wait_ms=1_000)
            assert scene.acquire(two, 100) == [(0, 2, 1)]
            assert two.acknowledge((0, 2, [ACCEPT])) == 0
        one.wait_ms = 30_000
        scene.fill(2)
        assert one.acquired() == [(10, 11, 1)]
