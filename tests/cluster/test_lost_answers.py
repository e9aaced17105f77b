"""Brokers do what clients ask for, but the answers are lost. Clients ask again: the same broker, or, if it was killed,
the broker in its place. Everything is done only once, and the clients are told so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import Any, Protocol

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from krappy import blocking
from krappy.broker.topics.internal_topics import OFFSETS, SHARES, TRANSACTIONS
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import SharedProcesses
from tests.cluster.consumers import close, commit
from tests.cluster.lossy import LossyProcesses, lossy_brokers
from tests.cluster.scattered_transactions import ScatteredProducer, group_coordinator_of, leader_of
from tests.cluster.test_share_groups import group_leader, make_ready
from tests.cluster.transfers import AGING
from tests.kafka.raw import Closed, Raw
from tests.kafka.shares import ACCEPT, Member, beat, earliest
from tests.peer import Peer
from tests.process import looks, wait_until

LONG_S = 60.0
BROKER = 1
AWAY = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR)
EVENTS = 3  # so many events are in a topic before answers are lost
_numbers = count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> Iterator[LossyProcesses]:
    with lossy_brokers(tmp_path_factory.mktemp("lossy"), shared_processes) as made:
        make_ready(made)
        with made.asked(1) as raw:
            raw.ask(ApiKey.FIND_COORDINATOR, {"key": "x", "key_type": 1}, 3)  # makes the internal topic
        made.until_in_sync(TRANSACTIONS)
        yield made
        made.check_errors()


class Scene:
    """Clients of all kinds. One broker answers all of them: it leads their topic, and coordinates their groups and
    transactions. Each client does its deed twice: the first time the answer is lost, the second time it comes."""

    def __init__(self, cluster: LossyProcesses, stack: ExitStack) -> None:
        self.cluster, self.stack = cluster, stack
        self.topic = f"t{next(_numbers)}"
        new = NewTopic(self.topic, 1, replica_assignment=[[BROKER, 2, 3]], config={"cleanup.policy": "compact"})
        [made] = cluster.admin.create_topics([new]).values()
        made.result(30)
        for topic in (OFFSETS, SHARES, TRANSACTIONS):
            cluster.until_in_sync(topic)
            cluster.spread(topic)
        cluster.until_in_sync(self.topic)
        self.client = stack.enter_context(blocking.connect(cluster.native, timeout=LONG_S))
        self.raw = stack.enter_context(cluster.asked(BROKER))
        self.peer = stack.enter_context(Peer(str(cluster.brokers[BROKER].settings["listen_native"])))
        with self.client.producer(self.topic) as producer:
            for number in range(EVENTS):
                producer.send(b"%d" % number, key=b"%d" % number)

    def name(self, internal: str) -> str:
        """A name, by the internal topic, that this broker coordinates."""
        return next(name for n in _numbers if group_leader(self.cluster, internal, name := f"n{n}") == BROKER)

    def has(self, value: bytes) -> bool:
        return value in self.raw.values(self.topic)

    def state_of(self, transactional_id: str) -> str:
        asked = {"transactional_ids": [transactional_id]}
        [found] = self.raw.ask(ApiKey.DESCRIBE_TRANSACTIONS, asked)["transaction_states"]
        return str(found["transaction_state"])

    def position_of(self, group: str, *, stable: bool = False) -> dict[str, Any]:
        """The position of a group. `stable`: it is an error while a transaction has staged another one."""
        asked = {"group_id": group, "topics": [{"name": self.topic, "partition_indexes": [0]}]}
        [found] = self.raw.ask(ApiKey.OFFSET_FETCH, {"groups": [asked], "require_stable": stable}, 8)["groups"]
        [[partition]] = [each["partitions"] for each in found["topics"]]
        return dict(partition)

    def log(self) -> dict[bytes, list[int]]:
        """The offsets of each value."""
        found: dict[bytes, list[int]] = {}
        with self.client.consumer(self.topic, end="now") as consumer:
            for event in consumer:
                found.setdefault(event.value or b"", []).append(event.offset)
        return found


class Deed(Protocol):
    """A deed of a client. It was done once before, with the number 0, so the client is connected."""

    def do(self, number: int) -> object:
        """Does the deed with this number. Returns once it is answered."""

    def is_done(self, number: int) -> bool:
        """Whether the broker has done it."""

    def check(self) -> None:
        """Checks that the deeds with the numbers 0, 1 and 2 were done once each, and nothing else."""


class Writes:
    """Writes events, and keeps their receipts. `values`: the beginning of the values; the number follows."""

    values: bytes

    def __init__(self, scene: Scene) -> None:
        self._scene, self._told = scene, list[int]()

    def is_done(self, number: int) -> bool:
        return self._scene.has(b"%s %d" % (self.values, number))

    def check(self) -> None:
        log = self._scene.log()
        assert [log[b"%s %d" % (self.values, number)] for number in range(3)] == [[offset] for offset in self._told]


class Sends(Writes):
    values = b"sent"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._producer = scene.stack.enter_context(scene.client.producer(scene.topic))
        self.do(0)

    def do(self, number: int) -> object:
        self._told.append(self._producer.send(b"sent %d" % number, key=b"sent").result().offset)
        return None


class SetsConditionally(Writes):
    values = b"set"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._table = scene.client.table(scene.topic)
        self.do(0)

    def do(self, number: int) -> object:
        expected: Any = self._told[-1] if self._told else "absent"
        self._told.append(self._table.put("key", b"set %d" % number, expect=expected).offset)
        return None


class Produces:
    def __init__(self, scene: Scene) -> None:
        self._scene, self._told = scene, list[tuple[Any, int]]()
        self._producer = Producer({"bootstrap.servers": scene.cluster.kafka, "enable.idempotence": True})
        self.do(0)

    def do(self, number: int) -> object:
        self._producer.produce(
            self._scene.topic,
            b"produced %d" % number,
            b"produced",
            on_delivery=lambda error, message: self._told.append((error, message.offset())),
        )
        return self._producer.flush(LONG_S)

    def is_done(self, number: int) -> bool:
        return self._scene.has(b"produced %d" % number)

    def check(self) -> None:
        log = self._scene.log()
        found = [log[b"produced %d" % number] for number in range(3)]
        assert [[(None, offset) for offset in offsets] for offsets in found] == [[each] for each in self._told]


class CommitsOffsets:
    def __init__(self, scene: Scene) -> None:
        self._scene, self._group = scene, scene.name(OFFSETS)
        settings = {"group.id": self._group, "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": scene.cluster.kafka, **settings})
        scene.stack.callback(close, self._consumer)
        self.do(0)

    def do(self, number: int) -> object:
        commit(self._consumer, [TopicPartition(self._scene.topic, 0, number)])
        return None

    def is_done(self, number: int) -> bool:
        return bool(self._scene.position_of(self._group)["committed_offset"] == number)

    def check(self) -> None:
        assert committed(self._consumer, self._scene.topic) == 2


class EndsTransactions:
    def __init__(self, scene: Scene) -> None:
        self._scene, self._name = scene, scene.name(TRANSACTIONS)
        self._producer = Producer({"bootstrap.servers": scene.cluster.kafka, "transactional.id": self._name})
        self._producer.init_transactions(LONG_S)
        self._begin(0)
        self.do(0)
        self._begin(1)

    def _begin(self, number: int) -> None:
        self._producer.begin_transaction()
        self._producer.produce(self._scene.topic, b"transacted %d" % number, b"transacted")
        assert self._producer.flush(LONG_S) == 0

    def do(self, number: int) -> object:
        if number == 2:
            self._begin(2)
        again(partial(self._producer.commit_transaction, LONG_S))
        return None

    def is_done(self, number: int) -> bool:
        return self._scene.state_of(self._name) == "CompleteCommit"

    def check(self) -> None:
        log = self._scene.log()
        assert [len(log[b"transacted %d" % number]) for number in range(3)] == [1, 1, 1]


class AddsOffsets:
    """Adds offsets to transactions. Each transaction is committed right after that."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._group, self._name = scene, scene.name(OFFSETS), scene.name(TRANSACTIONS)
        settings = {"bootstrap.servers": scene.cluster.kafka, "transactional.id": self._name}
        self._producer = Producer({**settings, **AGING})
        self._consumer = Consumer({"bootstrap.servers": scene.cluster.kafka, "group.id": self._group})
        scene.stack.callback(close, self._consumer)
        self._producer.init_transactions(LONG_S)
        self.do(0)

    def do(self, number: int) -> object:
        self._producer.begin_transaction()
        offsets = [TopicPartition(self._scene.topic, 0, number)]
        group = self._consumer.consumer_group_metadata()
        again(partial(self._producer.send_offsets_to_transaction, offsets, group, LONG_S))
        again(partial(self._producer.commit_transaction, LONG_S))
        return None

    def is_done(self, number: int) -> bool:
        return self._scene.state_of(self._name) == "Ongoing"

    def check(self) -> None:
        assert committed(self._consumer, self._scene.topic) == 2


class StagesOffsets:
    """Stages offsets in transactions. Only the answers of the group's coordinator are lost; those of the transaction's
    coordinator come."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._group = scene, scene.name(OFFSETS)
        self._producer = ScatteredProducer(scene.cluster, scene.name(TRANSACTIONS)).init()
        self._consumer = Consumer({"bootstrap.servers": scene.cluster.kafka, "group.id": self._group})
        scene.stack.callback(close, self._consumer)
        self.do(0)

    def do(self, number: int) -> object:
        assert self._producer.add_offsets(self._group) is Code.NONE
        stage = partial(self._producer.stage_offset, self._group, self._scene.topic, number)
        assert stage(self._scene.cluster.as_client) is Code.NONE
        assert self._producer.end(commit=True) is Code.NONE
        return None

    def is_done(self, number: int) -> bool:
        told = self._scene.position_of(self._group, stable=True)["error_code"]
        return bool(told == Code.UNSTABLE_OFFSET_COMMIT)

    def check(self) -> None:
        assert committed(self._consumer, self._scene.topic) == 2


class AcknowledgesShares:
    """Acknowledges events as a member of a share group. No answer tells the member whether its acknowledgement was done
    (KIP-932). But acknowledged events do not come again."""

    member = "member"

    def __init__(self, scene: Scene) -> None:
        self._scene, self._group = scene, scene.name(OFFSETS)
        with self._coordinator() as raw:
            earliest(raw, self._group)
        assert self._joins() >= {0, 1, 2}
        self.do(0)

    def _coordinator(self) -> Raw:
        return self._scene.cluster.asked(group_coordinator_of(self._scene.cluster, self._group))

    def _joins(self) -> set[int]:
        """Joins the group; returns the offsets that it gets, up to the last event that it will acknowledge."""
        cluster, topic = self._scene.cluster, self._scene.topic

        def taken() -> bool:
            with suppress(OSError, EOFError), self._coordinator() as raw:  # the broker may be killed just now
                return bool(beat(raw, self._group, self.member, 0, [topic])["error_code"] == Code.NONE)
            return False

        wait_until(taken, "it is a member")
        raw = self._scene.stack.enter_context(cluster.as_client(leader_of(cluster, topic, 0)))
        with self._coordinator() as coordinator:
            self._joined = Member(raw, self._group, self.member, topic, coordinator=coordinator)
        came: set[int] = set()

        def get() -> bool:
            for first, last, _ in self._joined.acquired(max_records=EVENTS, max_wait_ms=500):
                came.update(range(first, last + 1))
            return EVENTS - 1 in came

        wait_until(get, "events")
        return came

    def do(self, number: int) -> object:
        try:
            assert self._joined.acknowledge((number, number, [ACCEPT])) == Code.NONE
        except Closed:
            assert number not in self._joins()
        return None

    def is_done(self, number: int) -> bool:
        with self._coordinator() as raw:
            asked = {"group_id": self._group, "topics": [{"topic_name": self._scene.topic, "partitions": [0]}]}
            [told] = raw.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, {"groups": [asked]})["groups"]
        return [each["start_offset"] for topic in told["topics"] for each in topic["partitions"]] == [number + 1]

    def check(self) -> None:
        wait_until(partial(self.is_done, 2), "all is acknowledged")


class Acknowledges:
    def __init__(self, scene: Scene) -> None:
        self._scene, self._group = scene, scene.name(SHARES)
        self._consumer = scene.stack.enter_context(
            scene.client.consumer(scene.topic, group=self._group, start="earliest", max_records=EVENTS)
        )
        self._events: list[Any] = []
        while len(self._events) < EVENTS:
            self._events += self._consumer.poll(LONG_S)
        self.do(0)

    def do(self, number: int) -> object:
        self._consumer.ack(self._events[number], wait=True)
        return None

    def is_done(self, number: int) -> bool:
        told = self._scene.peer.ask(m.Positions(self._group), m.PositionsFound).offsets
        return [offset for _, _, offset in told] == [number + 1]

    def check(self) -> None:
        [told] = self._scene.client.group(self._group).partitions
        assert told.floor >= EVENTS


def again(work: Callable[[], object]) -> None:
    """Calls `work` again while its error is retriable, as librdkafka tells programs to do."""
    while True:
        try:
            work()
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def committed(consumer: Consumer, topic: str) -> int:
    """The group's committed offset. A broker that has just started again may lose the lead, and get it back."""
    for _ in looks("the offset is told", LONG_S):
        try:
            [found] = consumer.committed([TopicPartition(topic, 0)], LONG_S)
            return int(found.offset)
        except KafkaException as error:
            if error.args[0].code() not in AWAY:
                raise
    raise AssertionError


DEEDS = (
    *(Sends, SetsConditionally, Produces, CommitsOffsets, EndsTransactions, AddsOffsets, StagesOffsets),
    *(Acknowledges, AcknowledgesShares),
)


@pytest.mark.parametrize("dies", [False, True])
def test_what_was_done_is_not_done_again(cluster: LossyProcesses, dies: bool) -> None:
    with ExitStack() as stack:
        scene = Scene(cluster, stack)
        deeds: list[Deed] = [each(scene) for each in DEEDS]
        threads = stack.enter_context(ThreadPoolExecutor(len(deeds)))
        stack.callback(cluster.cut)
        cluster.deafen()
        doing = [threads.submit(each.do, 1) for each in deeds]
        for each in deeds:
            wait_until(partial(each.is_done, 1), f"{each} is done")
        assert not any(each.done() for each in doing)
        if dies:
            cluster.brokers[BROKER].kill()
        cluster.cut()
        for future in doing:
            future.result(2 * LONG_S)  # each deed gives up by itself after LONG_S
        if dies:
            cluster.brokers[BROKER].start()
            cluster.until_in_sync(scene.topic)
        for each in deeds:
            each.do(2)
        for each in deeds:
            each.check()
