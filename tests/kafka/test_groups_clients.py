"""Groups of real Kafka clients against a broker process: rebalances, static members, dead ones, broker restarts."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from krappy.handlers.kafka.config_entries import ConfigResource
from krappy.wire.kafka import ApiKey
from tests.kafka.raw import Raw
from tests.process import ROOT, BrokerProcess, free_address, wait_until

SETTINGS: dict[str, Any] = {
    "group_initial_rebalance_delay_ms": 100,
    "group_min_session_timeout_ms": 1000,
    "group_consumer_heartbeat_interval_ms": 200,
    "group_consumer_session_timeout_ms": 60_000,
    "durability": "os",
}
PROTOCOLS = ["classic", "consumer"]
SHORT_MS = 3000  # for the one group in which a session ends: on a slow machine, sessions of the others must not end


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("groups") / "data", **SETTINGS) as running:
        yield running


def create(broker: BrokerProcess, topic: str, partitions: int = 4) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(30)


def produce(broker: BrokerProcess, topic: str, values: range, partitions: int = 4) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % partitions)
    assert producer.flush(30) == 0


class Member:
    """A consumer that polls in a thread of its own, as programs do."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str, protocol: str = "classic", **more: Any) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.kafka,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        if protocol == "classic":
            settings |= {"session.timeout.ms": 60_000, "heartbeat.interval.ms": 200}
        self.consumer = Consumer(settings | {name.replace("_", "."): value for name, value in more.items()})
        self.got: list[int] = []
        self.parts: set[int] = set()
        self.assigned = 0
        self.revoked: set[int] = set()
        self.lost: set[int] = set()
        self._stop = False
        self._commit = threading.Event()
        self.consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _assign(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        self.assigned += 1
        self.parts |= {part.partition for part in parts}

    def _revoke(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        self.parts -= {part.partition for part in parts}
        self.revoked |= {part.partition for part in parts}

    def _lose(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        self.parts -= {part.partition for part in parts}
        self.lost |= {part.partition for part in parts}

    def _run(self) -> None:
        while not self._stop:
            message = self.consumer.poll(0.05)
            if message is not None and not message.error():
                self.got.append(int(message.value() or b""))
            if self._commit.is_set() and message is None:
                try:
                    self.consumer.commit(asynchronous=False)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError._NO_OFFSET:
                        continue  # the group is being rebalanced: it tries again after that
                self._commit.clear()

    def commit(self) -> None:
        self._commit.set()
        wait_until(lambda: not self._commit.is_set(), "a commit")

    def close(self) -> None:
        self._stop = True
        self._thread.join(30)
        self.consumer.close()


def set_session(broker: BrokerProcess, group: str) -> None:
    setting = {"name": "consumer.session.timeout.ms", "config_operation": 0, "value": str(SHORT_MS)}
    resource = {"resource_type": ConfigResource.GROUP, "resource_name": group, "configs": [setting]}
    with Raw(broker.kafka) as raw:
        asked = {"resources": [resource], "validate_only": False}
        [answer] = raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, asked)["responses"]
    assert answer["error_code"] == 0, answer


@contextmanager
def member(*args: Any, **more: Any) -> Iterator[Member]:
    found = Member(*args, **more)
    try:
        yield found
    finally:
        found.close()


def until(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what, 120)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_comes_and_goes(broker: BrokerProcess, protocol: str) -> None:
    topic = f"come-{protocol}"
    create(broker, topic)
    produce(broker, topic, range(40))
    with member(broker, topic, topic, protocol) as first:
        until(lambda: len(first.got) == 40, "all events")
        assert first.parts == {0, 1, 2, 3}
        first.commit()
        with member(broker, topic, topic, protocol) as second:
            until(lambda: len(first.parts) == len(second.parts) == 2, "two partitions each")
            assert first.parts | second.parts == {0, 1, 2, 3}
            produce(broker, topic, range(40, 80))
            until(lambda: sorted(first.got[40:] + second.got) == [*range(40, 80)], "each event once")
            second.commit()
            first.commit()
        until(lambda: first.parts == {0, 1, 2, 3}, "the other's partitions")
    with member(broker, topic, topic, protocol) as third:
        produce(broker, topic, range(80, 84))
        until(lambda: len(third.got) >= 4, "what came since the commits")
        assert sorted(third.got) == [80, 81, 82, 83]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_static_member_comes_back_without_a_rebalance(broker: BrokerProcess, protocol: str) -> None:
    topic = f"static-{protocol}"
    create(broker, topic)
    with member(broker, topic, topic, protocol, group_instance_id="a") as first:
        second = Member(broker, topic, topic, protocol, group_instance_id="b")
        until(lambda: len(first.parts) == len(second.parts) == 2, "two partitions each")
        held, assigned = set(second.parts), first.assigned
        second.close()
        with member(broker, topic, topic, protocol, group_instance_id="b") as again:
            until(lambda: again.parts == held, "what it had")
            assert first.assigned == assigned
            assert not first.lost


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_dead_member_had_goes_to_the_others(broker: BrokerProcess, protocol: str) -> None:
    topic = f"dead-{protocol}"
    create(broker, topic)
    short: dict[str, Any] = {}
    if protocol == "classic":
        short = {"session_timeout_ms": SHORT_MS}
    else:
        set_session(broker, topic)
    with member(broker, topic, topic, protocol, **short) as first:
        code = (
            "import time\nfrom tests.kafka.test_groups_clients import Member\n"
            f"class B: kafka = {broker.kafka!r}\n"
            f"m = Member(B, {topic!r}, {topic!r}, {protocol!r}, **{short!r})\n"
            "while len(m.parts) != 2: time.sleep(0.02)\n"
            "print('in', flush=True)\n"
            "time.sleep(100)\n"
        )
        other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"in\n"
            until(lambda: len(first.parts) == 2, "two partitions")
        finally:
            other.kill()
            other.wait()
            assert other.stdout is not None
            other.stdout.close()
        until(lambda: first.parts == {0, 1, 2, 3}, "the dead one's partitions")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_moves_from_one_protocol_to_the_other_and_back(broker: BrokerProcess, strategy: str) -> None:
    """Members are replaced one by one while events come: no event is lost, and no member has to stop."""
    topic = f"roll-{strategy}"
    create(broker, topic)
    classic: dict[str, Any] = {"partition_assignment_strategy": strategy}
    first, second = (Member(broker, topic, topic, **classic) for _ in range(2))
    until(lambda: len(first.parts) == len(second.parts) == 2, "two partitions each")
    produce(broker, topic, range(40))
    until(lambda: sorted(first.got + second.got) == [*range(40)], "each event once")
    first.commit()
    second.commit()

    third = Member(broker, topic, topic, "consumer")
    until(lambda: third.parts != set() and len(first.parts | second.parts | third.parts) == 4, "all partitions")
    until(lambda: len(first.parts) + len(second.parts) + len(third.parts) == 4, "each partition once")
    produce(broker, topic, range(40, 80))
    until(lambda: {*first.got, *second.got, *third.got} == {*range(80)}, "what came while both protocols are there")
    assert kind(broker, topic) == "consumer"
    for each in (first, second, third):
        each.commit()
    first.close()
    fourth = Member(broker, topic, topic, "consumer")
    second.close()
    until(lambda: len(third.parts) == len(fourth.parts) == 2, "two partitions each")
    produce(broker, topic, range(80, 120))
    until(lambda: {*range(80, 120)} <= {*third.got, *fourth.got}, "what came after the move")
    for each in (third, fourth):
        each.commit()
        assert not each.lost

    third.close()
    fifth = Member(broker, topic, topic, **classic)
    until(lambda: len(fourth.parts) == len(fifth.parts) == 2, "two partitions each")
    fourth.close()
    until(lambda: fifth.parts == {0, 1, 2, 3}, "all partitions")
    assert kind(broker, topic) == "classic"
    produce(broker, topic, range(120, 160))
    until(lambda: {*range(120, 160)} <= {*fifth.got}, "what came after the way back")
    assert not fifth.lost
    assert min(fifth.got) >= 120, "an event that was committed came again"
    fifth.close()


def kind(broker: BrokerProcess, group: str) -> str:
    with Raw(broker.kafka) as raw:
        listed = raw.ask(ApiKey.LIST_GROUPS)["groups"]
    return str(next(each["group_type"] for each in listed if each["group_id"] == group))


@pytest.mark.parametrize("way", [PROTOCOLS, PROTOCOLS[::-1]], ids=lambda way: "-to-".join(way))
def test_static_members_change_their_protocol_without_a_rebalance(broker: BrokerProcess, way: list[str]) -> None:
    topic = f"static-{'-to-'.join(way)}"
    create(broker, topic)
    before = [Member(broker, topic, topic, way[0], group_instance_id=name) for name in "ab"]
    until(lambda: all(len(each.parts) == 2 for each in before), "two partitions each")
    held = [set(each.parts) for each in before]
    assigned = before[0].assigned
    before[1].close()
    after = [Member(broker, topic, topic, way[1], group_instance_id="b")]
    until(lambda: after[0].parts == held[1], "what it had")
    before[0].close()
    assert before[0].assigned == assigned
    after.insert(0, Member(broker, topic, topic, way[1], group_instance_id="a"))
    until(lambda: [each.parts for each in after] == held, "what they had")
    assert kind(broker, topic) == way[1]
    for each in after:
        each.close()
        assert not each.lost
        assert each.assigned == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_outlive_the_broker(tmp_path: Path, protocol: str) -> None:
    with BrokerProcess(tmp_path / "data", listen_kafka=free_address(), **SETTINGS) as running:
        create(running, "t")
        produce(running, "t", range(8))
        with member(running, "g", "t", protocol) as first:
            until(lambda: len(first.got) == 8, "all events")
            first.commit()
            running.kill()
            running.start()
            produce(running, "t", range(8, 16))
            until(lambda: len(first.got) >= 16, "what came after the restart")
            assert sorted(first.got) == [*range(16)]
            assert not first.lost
            first.commit()
        running.kill()
        running.start()
        consumer = Consumer({"bootstrap.servers": running.kafka, "group.id": "g"})
        found = consumer.committed([TopicPartition("t", at) for at in range(4)], 30)
        consumer.close()
        assert [each.offset for each in found] == [4, 4, 4, 4]
