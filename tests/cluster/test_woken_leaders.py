"""A broker that stood still, and may not know what was decided meanwhile."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from krappy import blocking
from krappy.errors import ConnectionLost, KrappyError
from krappy.records import batch
from krappy.spark.logs import logs
from krappy.spark.topics import TopicChoice
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.cut_off import cut_off
from tests.kafka.raw import Raw, fetch
from tests.peer import Peer
from tests.process import wait_until

OLD = 7  # the number of events in the topic that is deleted
# The errors of a broker that does not have the new topic's partition. The second: it does not know the new topic yet.
ELSEWHERE = (Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_OR_PARTITION)


def create(cluster: ClusterProcesses, at: int, name: str, broker: int, *others: int) -> None:
    """Makes a topic with one partition that this broker leads. `others`: brokers that have replicas, too."""
    assignments = [{"partition_index": 0, "broker_ids": [broker, *others]}]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assignments, "configs": []}
    with cluster.asked(at) as raw:
        [told] = raw.ask(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout_ms": 20_000})["topics"]
        assert told["error_code"] == 0
    for id in {at, broker}:
        wait_until(partial(leads, cluster, id, name, broker), f"broker {id} knows that {broker} leads")


def leads(cluster: ClusterProcesses, at: int, name: str, broker: int) -> bool:
    found = cluster.partitions_at(at, name)
    return bool(found) and found[0].leader == broker


def delete(cluster: ClusterProcesses, at: int, name: str) -> None:
    with cluster.asked(at) as raw:
        wanted = {"topics": [{"name": name, "topic_id": bytes(16)}], "timeout_ms": 20_000}
        [told] = raw.ask(ApiKey.DELETE_TOPICS, wanted)["responses"]
        assert told["error_code"] == 0


def produced(raw: Raw) -> int:
    """The code of the answer to what `send` has sent."""
    [told] = raw.receive()["responses"]
    return int(told["partition_responses"][0]["error_code"])


def send(raw: Raw, topic: str, value: bytes) -> None:
    data = batch.encode([b"k"], [value], timestamps=1_700_000_000_000)
    row = {"name": topic, "partition_data": [{"index": 0, "records": data}]}
    raw.send(ApiKey.PRODUCE, {"acks": -1, "timeout_ms": 20_000, "topic_data": [row]}, 9)


def publish(raw: Raw, topic: str, value: bytes) -> None:
    """Writes an event. Tries again, because a broker may begin to lead a moment after it knows that it is the
    leader."""

    def is_taken() -> bool:
        send(raw, topic, value)
        return produced(raw) == 0

    wait_until(is_taken, "it is written")


def test_what_comes_to_a_topic_that_was_made_anew_is_not_acknowledged_by_the_one_before(
    cluster: ClusterProcesses,
) -> None:
    """The only replica of the old topic is on a broker that stood still. When it wakes up, it still has the deleted
    topic."""
    create(cluster, 1, "t", 3)
    with Raw(str(cluster.brokers[3].settings["listen_kafka"])) as raw:
        publish(raw, "t", b"old")
        with cluster.paused(3):
            delete(cluster, 1, "t")
            create(cluster, 1, "t", 1)
            for _ in range(5):
                send(raw, "t", b"new")
        answers = {produced(raw) for _ in range(5)}
    assert Code.NONE not in answers
    cluster.until_known()
    create(cluster, 1, "alone", 3)
    with Raw(str(cluster.brokers[3].settings["listen_kafka"])) as raw:
        publish(raw, "alone", b"x")


def asked_by_name(name: str) -> list[tuple[ApiKey, dict[str, Any], int]]:
    """Kafka's requests for the content of a topic that name the topic, in the newest versions that do so."""
    place = {"partition": 0, "partition_index": 0, "timestamp": -1, "leader_epoch": 0, "offset": OLD}
    named = {"name": name, "topic": name, "partitions": [place]}
    by_time = {**named, "partitions": [{**place, "timestamp": 0}]}
    return [
        (ApiKey.FETCH, fetch([(name, 0, 0)]), 12),
        (ApiKey.LIST_OFFSETS, {"topics": [named]}, 7),
        (ApiKey.LIST_OFFSETS, {"topics": [by_time]}, 7),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, {"topics": [named]}, 4),
        (ApiKey.DELETE_RECORDS, {"topics": [named], "timeout_ms": 20_000}, 2),
    ]


def told_of_partition(answer: dict[str, Any]) -> dict[str, Any]:
    [topic] = answer.get("responses") or answer["topics"]
    [found] = topic["partitions"]
    return dict(found)


def test_requests_that_name_a_topic_are_told_nothing_of_the_old_one(cluster: ClusterProcesses) -> None:
    """The only replica of the deleted topic is on a broker that stood still. Requests that came to it meanwhile name
    the topic that exists now, and its partition is on another broker."""
    create(cluster, 1, "t", 3)
    settings = cluster.brokers[3].settings
    with ExitStack() as opened, Raw(str(settings["listen_kafka"])) as raw:
        for _ in range(OLD):
            publish(raw, "t", b"old")
        asked = [(opened.enter_context(Raw(str(settings["listen_kafka"]))), *each) for each in asked_by_name("t") * 2]
        peers = [opened.enter_context(Peer(str(settings["listen_native"]))) for _ in range(4)]
        paths = "/api/v1/topics/t/events", "/api/v1/topics/t/table/entry?key=k"
        webs = {opened.enter_context(closing(HTTPConnection(cluster.brokers[3].http))): path for path in paths}
        for web, path in webs.items():
            web.request("GET", path)
            assert b"old" in web.getresponse().read()
        reader = peers[3].ask(m.ConsumerRegistration(["t"]), m.ConsumerRegistered)
        with cluster.paused(3):
            delete(cluster, 1, "t")
            create(cluster, 1, "t", 1)
            with cluster.asked(1) as other:
                publish(other, "t", b"new")
            for each, key, body, version in asked:
                each.send(key, body, version)
            wanted = (m.Get("t", b"k"), m.Offsets("t", "latest"), m.ConsumerRegistration(["t"]), m.Poll(reader.handle))
            for peer, request in zip(peers, wanted, strict=True):
                peer.send(request)
            for web, path in webs.items():
                web.request("GET", path)
        for each, key, _, _ in asked:
            told = told_of_partition(each.receive())
            assert told["error_code"] in ELSEWHERE, (key, told)
        for peer in peers:
            _, answer = peer.receive()
            assert isinstance(answer, KrappyError), answer
        for web in webs:
            text = web.getresponse().read()
            assert b"new" in text
            assert b"old" not in text


def test_a_topic_is_made_anew_only_once_nobody_leads_the_one_before(cluster: ClusterProcesses) -> None:
    """The old leader does not hear from ZooKeeper any more, so it leads the deleted topic until its session is over."""
    with cut_off(cluster, 3) as cut:
        create(cluster, 1, "t", 3)
        with cluster.asked(3) as raw, cut():
            delete(cluster, 1, "t")
            create(cluster, 1, "t", 1)
            send(raw, "t", b"x")
            assert produced(raw) == Code.NOT_LEADER_OR_FOLLOWER
            assert raw.fetch("t", 0)["error_code"] == Code.NOT_LEADER_OR_FOLLOWER


def test_a_client_that_knows_only_a_broker_that_is_cut_off_finds_the_leader(cluster: ClusterProcesses) -> None:
    """The broker that is cut off goes on saying that it is the leader."""
    with cut_off(cluster, 3) as cut:
        create(cluster, 1, "led", 3, 1, 2)
        cluster.until_in_sync("led")
        with (
            blocking.connect(cluster.brokers[3].address, timeout=30) as client,
            client.producer("led") as producer,
            client.consumer("led", group="g") as member,
            client.consumer("led") as reader,
        ):
            producer.send(b"before", key=b"k").result(30)
            assert (
                [event.value for event in member.poll(30)] == [event.value for event in reader.poll(30)] == [b"before"]
            )
            with cut():
                wait_until(lambda: cluster.partitions_at(1, "led")[0].leader in (1, 2), "another broker leads")
                producer.send(b"since", key=b"k").result(30)
                assert (
                    [event.value for event in member.poll(30)]
                    == [event.value for event in reader.poll(30)]
                    == [b"since"]
                )
                found = client.table("led").get("k")
                assert found is not None
                assert found.value == b"since"
                assert client.offsets("led") == {0: 2}
                assert cluster.partitions_at(3, "led")[0].leader == 3


def test_a_client_that_knows_only_a_broker_that_is_cut_off_changes_topics_by_others(cluster: ClusterProcesses) -> None:
    """While ZooKeeper is away, all brokers refuse changes. The client asks again, but not without a pause, and its
    error says why."""
    address = cluster.brokers[3].address
    with (
        cut_off(cluster, 3) as cut,
        blocking.connect(address, timeout=30) as client,
        blocking.connect(address, timeout=4) as hasty,
    ):
        client.create_topic("before", 1, replication_factor=2)
        cluster.until_in_sync("before")
        with cut():
            wait_until(lambda: 3 not in _registered(cluster), "it is out of the cluster")
            for if_absent in (False, True):
                assert client.create_topic(f"since-{if_absent}", 1, if_absent=if_absent)
            client.alter_topic("before", {"retention.ms": 1_000_000})
            client.alter_topic("before", partitions=2)
            with blocking.connect(cluster.brokers[1].address, timeout=30) as other:
                assert other.describe("before").settings["retention.ms"] == "1000000"
                assert len(other.describe("before").partitions) == 2
                client.delete_topic("before")
                names = [topic.name for topic in other.topics()]
                assert sorted(names) == ["since-False", "since-True"]
            cluster.zookeeper.pause(True)
            try:
                before = _asked(cluster, "CreateTopic")
                with pytest.raises(ConnectionLost, match=r"ZooKeeper.*nothing was changed"):
                    hasty.create_topic("while-away", 1, if_absent=True)
                assert 3 <= _asked(cluster, "CreateTopic") - before < 100
            finally:
                cluster.zookeeper.pause(False)


def _registered(cluster: ClusterProcesses) -> set[int]:
    with cluster.asked(1) as raw:
        return {each["node_id"] for each in raw.ask(ApiKey.METADATA, {"topics": []})["brokers"]}


def _asked(cluster: ClusterProcesses, request: str) -> int:
    told = httpx.get(f"http://{cluster.brokers[3].http}/api/v1/overview", timeout=30).json()["requests"]
    return sum(each["latency"]["count"] for each in told if each["request"] == request)


def test_a_reader_up_to_now_ends_where_the_sure_leader_says(cluster: ClusterProcesses) -> None:
    """The reader is a batch of Spark, or a native reader. A broker that does not know yet that another one leads tells
    the end of its own log, but more events were acknowledged since."""
    with cut_off(cluster, 3) as cut:
        create(cluster, 1, "ends", 3, 1, 2)
        with cluster.asked(3) as raw:
            publish(raw, "ends", b"before")
        cluster.until_in_sync("ends")
        with cut():
            wait_until(lambda: cluster.partitions_at(1, "ends")[0].leader in (1, 2), "another broker leads")
            with cluster.asked(cluster.partitions_at(1, "ends")[0].leader) as raw:
                publish(raw, "ends", b"since")
            [told] = cluster.partitions_at(3, "ends").values()
            assert told.leader == 3
            with blocking.connect(cluster.brokers[3].address, timeout=30) as client:
                for _ in range(3):
                    assert logs(client, TopicChoice(("ends",)), sure=True).ends == {("ends", 0): 2}
                    with client.consumer("ends", end="now") as consumer:
                        assert [event.value for event in consumer] == [b"before", b"since"]
