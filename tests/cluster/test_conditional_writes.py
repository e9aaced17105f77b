"""Conditional writes (compare-and-set) of several clients, while leaders die or stand still.

Each value names the offset that its writer expected. So the log itself shows whether a condition was decided by a stale
value: each event of a key must name the offset of the event before it."""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import NamedTuple

import pytest
from confluent_kafka.admin import NewTopic

from krappy import blocking
from krappy.errors import ConnectionLost, NotLeader, OffsetMismatch, RequestTimeout
from krappy.partitioner import partition_for
from krappy.records import batch
from krappy.types import ABSENT
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.cut_off import cut_off
from tests.peer import Peer
from tests.process import wait_until

LONG_S = 60.0
SHORT = 1.0  # the timeout of a client that does not wait for the next leader
PAUSE = 0.02
KEYS = "a", "b"
OLD = 3


class Attempt(NamedTuple):
    """One conditional write. `offset`: the offset that its acknowledgement named. `current`: the offset of the key that
    its refusal named. Both None: the outcome is unknown. `floor`: the highest offset of the key that any client had
    been told before this write began."""

    key: str
    value: str
    floor: int
    offset: int | None = None
    current: int | None = None


def value_of(writer: str, number: int, expected: int) -> str:
    return f"{writer} {number} {expected}"


class Told:
    """What clients were told. `floors`: by key, the latest offset."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.floors = dict.fromkeys(KEYS, ABSENT)
        self._lock = threading.Lock()

    def note(self, key: str, offset: int, attempt: Attempt | None = None) -> None:
        with self._lock:
            self.floors[key] = max(self.floors[key], offset)
            if attempt is not None:
                self.attempts.append(attempt)

    @property
    def stored(self) -> int:
        return sum(each.offset is not None for each in self.attempts)


class Writer:
    """A thread that sets the keys in turn, and expects the offset that it was told last. `trouble`: what must not
    happen."""

    def __init__(self, name: str, cluster: ClusterProcesses, topic: str, told: Told, timeout: float) -> None:
        self.trouble: list[str] = []
        self._name, self._told, self._topic = name, told, topic
        self._cluster, self._timeout = cluster, timeout
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2 * LONG_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with blocking.connect(self._cluster.native, timeout=self._timeout) as client:
            table, number = client.table(self._topic), 0
            expected: dict[str, int | None] = dict.fromkeys(KEYS)  # None: it has to read the key first
            while not self._stop.is_set():
                key = KEYS[number % len(KEYS)]
                try:
                    at = expected[key]
                    if at is None:
                        expected[key] = self._look(table, key)
                    else:
                        number += 1
                        expected[key] = self._set(table, key, number, at)
                except (RequestTimeout, ConnectionLost):
                    # It goes on from what any client was told. To read the key might fail as long as there is no
                    # leader.
                    expected[key] = self._told.floors[key]
                except Exception as error:
                    self.trouble.append(repr(error))
                    return
                self._stop.wait(PAUSE)

    def _look(self, table: blocking.Table, key: str) -> int:
        floor = self._told.floors[key]
        entry = table.get(key)
        found = ABSENT if entry is None else entry.offset
        if found < floor:
            self.trouble.append(f"{key} was read at {found}, and stood at {floor} before")
        self._told.note(key, found)
        return found

    def _set(self, table: blocking.Table, key: str, number: int, expected: int) -> int | None:
        """Sets a key; returns its new offset. None: it has to read the key first. Raises KrappyError."""
        attempt = Attempt(key, value_of(self._name, number, expected), self._told.floors[key])
        try:
            receipt = table.put(key, attempt.value, expect="absent" if expected == ABSENT else expected)
        except OffsetMismatch as refused:
            current = ABSENT if refused.current is None else refused.current
            self._told.note(key, current, attempt._replace(current=current))
            # If it reads the key next, it must not get an older entry.
            return current if number % 3 else None
        except (RequestTimeout, ConnectionLost):
            self._told.note(key, ABSENT, attempt)
            raise
        self._told.note(key, receipt.offset, attempt._replace(offset=receipt.offset))
        return int(receipt.offset)


def judge(client: blocking.Client, topic: str, attempts: Iterable[Attempt]) -> None:
    """Checks that the log has each event once, and right behind the event that its writer expected. Checks that the log
    agrees with all that writers were told."""
    at: dict[str, int] = {}
    last: dict[str, int] = {}
    stood: defaultdict[str, set[int]] = defaultdict(lambda: {ABSENT})
    with client.consumer(topic, end="now") as consumer:
        for event in consumer:
            assert event.key is not None
            assert event.value is not None
            key, value = event.key.decode(), event.value.decode()
            assert value not in at, f"{value} is there twice"
            assert int(value.split()[-1]) == last.get(key, ABSENT), f"{value} stands behind {last.get(key)}"
            at[value] = last[key] = event.offset
            stood[key].add(event.offset)
    for each in attempts:
        if each.offset is not None:
            assert at.get(each.value) == each.offset, f"{each} is lost"
        elif each.current is not None:
            assert each.value not in at, f"{each} was refused, and is there"
            assert each.current in stood[each.key], f"{each}: the key never stood there"
            assert each.current >= each.floor, f"{each}: the key stood further already"


def make(cluster: ClusterProcesses, topic: str) -> None:
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        client.create_topic(topic, 1, {"cleanup.policy": "compact"})
    cluster.until_in_sync(topic)


def size(cluster: ClusterProcesses, id: int, topic: str, partition: int) -> int:
    """The size of the partition's log in bytes, including events that are not committed."""
    with cluster.asked(id) as raw:
        wanted = {"topics": [{"topic": topic, "partitions": [partition]}]}
        [found] = raw.ask(ApiKey.DESCRIBE_LOG_DIRS, wanted)["results"]
    [[told]] = [each["partitions"] for each in found["topics"]]
    return int(told["partition_size"])


def until_others_lead(cluster: ClusterProcesses, topic: str, old: int) -> None:
    def led() -> bool:
        return not {old, -1} & {each.leader for each in cluster.partitions(topic).values()}

    wait_until(led, f"others than {old} lead", LONG_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    folder = tmp_path_factory.mktemp("conditions")
    with brokers(folder, shared=shared_processes, zookeeper_session_timeout_ms=4000) as made:
        yield made


def until_more(told: Told, count: int) -> None:
    aim = told.stored + count
    wait_until(lambda: told.stored >= aim, f"{count} more conditions hold", LONG_S)


def test_conditions_hold_while_leaders_die_and_stand_still(cluster: ClusterProcesses) -> None:
    """Two clients wait until there is a leader again. One client does not wait, so some of its outcomes are unknown."""
    make(cluster, "t")
    told = Told()
    timeouts = {"first": LONG_S, "second": LONG_S, "hasty": SHORT}
    writers = [Writer(name, cluster, "t", told, timeout) for name, timeout in timeouts.items()]
    with ExitStack() as stack:
        for each in writers:
            each.start()
            stack.callback(each.stop)
        until_more(told, 30)
        old = cluster.partitions("t")[0].leader
        cluster.brokers[old].kill()
        cluster.brokers[old].start()
        until_more(told, 30)
        cluster.until_in_sync("t")
        old = cluster.partitions("t")[0].leader
        with cluster.paused(old):
            until_others_lead(cluster, "t", old)
            until_more(told, 30)
        cluster.until_in_sync("t")
        until_more(told, 30)
    assert [each.trouble for each in writers] == [[]] * len(writers)
    unknown = [each for each in told.attempts if each.offset is None and each.current is None]
    assert {each.value.split()[0] for each in unknown} == {"hasty"}
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        judge(client, "t", told.attempts)


def test_a_leader_that_wakes_up_deposed_decides_no_condition(cluster: ClusterProcesses) -> None:
    """The leader has two partitions. The log of the first ends with an event that no other replica has, and the leader
    got conditions on this event before it stood still. While it stands still, conditions on committed events of the
    second partition come. When it wakes up, it must decide none of these conditions: it neither accepts nor refuses
    them."""
    a, b = (next(name for name in map(str, count()) if partition_for(name.encode(), 2) == at) for at in (0, 1))
    others = [broker for id, broker in cluster.brokers.items() if id != OLD]
    with ExitStack() as stack, blocking.connect(cluster.native, timeout=LONG_S) as client:
        cut = stack.enter_context(cut_off(cluster, OLD))
        new = NewTopic("w", 2, replica_assignment=[[OLD, 1, 2], [OLD, 2, 1]], config={"cleanup.policy": "compact"})
        [made] = cluster.admin.create_topics([new]).values()
        made.result(30)
        cluster.until_in_sync("w")
        committed = client.table("w").put(b, value_of("client", 0, ABSENT), expect="absent").offset
        peers = [stack.enter_context(Peer(cluster.brokers[OLD].address)) for _ in range(6)]
        handles = [peer.producer("w").handle for peer in peers]

        def send(index: int, key: str, expected: int) -> None:
            data = batch.encode([key.encode()], [value_of("peer", index, expected).encode()], timestamps=1)
            peers[index].send(m.Batch(handles[index], int(key == b), data, [(0, expected)]))

        before = size(cluster, OLD, "w", 0)
        for each in others:
            os.kill(each.pid, signal.SIGSTOP)
        send(0, a, ABSENT)
        wait_until(lambda: size(cluster, OLD, "w", 0) > before, "its log has the event")
        send(1, a, ABSENT)
        send(2, a, 0)
        peers[1].ask(m.Ping(), m.Pong)
        peers[2].ask(m.Ping(), m.Pong)
        for each in others:
            each.kill()
        with cut():
            with cluster.paused(OLD):
                send(3, b, ABSENT)
                send(4, b, committed)
                send(5, b, committed + 1)
                for each in others:
                    each.start()
                until_others_lead(cluster, "w", OLD)
                with blocking.connect(",".join(each.address for each in others), timeout=LONG_S) as other:
                    other.table("w").put(a, value_of("client", 1, ABSENT), expect="absent")
                    other.table("w").put(b, value_of("client", 1, committed), expect=committed)
            refused(peers[3:])  # it does not know yet that another broker leads
        refused(peers[:3])
        cluster.until_in_sync("w")
        judge(client, "w", [])


def refused(peers: Iterable[Peer]) -> None:
    for each in peers:
        _, answer = each.receive()
        assert isinstance(answer, NotLeader), answer
