"""A transaction is decided once and wholly, at whatever step its coordinator or a leader dies, and even if a deposed
coordinator goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.broker.topics.internal_topics import OFFSETS, TRANSACTIONS
from krappy.core.cluster.coordinators import partition_of
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.scattered_transactions import (
    ScatteredProducer,
    coordinator_of,
    group_coordinator_of,
    leader_of,
)
from tests.cluster.stepping import stepping, stopping_at
from tests.cluster.test_cluster import make_topic
from tests.cluster.test_transactions import check_nothing_is_open, values
from tests.cluster.transfers import PARTITIONS
from tests.cluster.zookeeper import ZooKeeperServer
from tests.long import some
from tests.process import PATIENCE, wait_until

GROUP = "readers"
AT_COORDINATOR = [
    *(("writes {}", 1), ("wrote {}", 1), ("saved {}", 1)),
    *(("sends marker", 1), ("sends marker", 2), ("sent marker", 1), ("sent marker", 2)),
    *(("writes {done}", 1), ("wrote {done}", 1)),
]
AT_LEADER = ["takes marker", "queued marker", "wrote marker"]


@pytest.fixture
def cluster(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> Iterator[ClusterProcesses]:
    with brokers(tmp_path, shared=SharedProcesses(shared_zookeeper, stepping)) as made:
        yield made


class Work:
    """Transactions of one producer, and what readers must see of them. Each transaction writes to all partitions, and
    commits an offset."""

    def __init__(self, cluster: ClusterProcesses, *, bumps: bool = False) -> None:
        self.cluster = cluster
        self.producer = ScatteredProducer(cluster, "x", bumps=bumps).init()
        self.committed: list[bytes] = []
        self.offset = -1  # the committed offset of the group
        self._number = 0

    def do(self) -> bytes:
        """Does all of the next transaction except its end; returns the value that it has written."""
        self._number += 1
        value, producer = b"%d" % self._number, self.producer
        if not producer.bumps:
            assert producer.add(*(("t", index) for index in range(PARTITIONS))) == Code.NONE
            assert producer.add_offsets(GROUP) == Code.NONE
        assert producer.stage_offset(GROUP, "t", self._number) == Code.NONE
        for index in range(PARTITIONS):
            assert producer.write("t", index, value) == Code.NONE
        return value

    def end(self, value: bytes, commit: bool) -> None:
        assert self.producer.end(commit) == Code.NONE
        if commit:
            self.committed.append(value)
            self.offset = self._number

    def check(self, commit: bool) -> None:
        """Waits until all replicas are in sync. Checks that the transaction has ended as decided in all partitions, and
        that readers see nothing else."""
        cluster = self.cluster
        done = "CompleteCommit" if commit else "CompleteAbort"
        wait_until(lambda: self.producer.state() == done, f"it is {done}")
        for topic in ("t", OFFSETS, TRANSACTIONS):
            cluster.until_in_sync(topic)
        for index in range(PARTITIONS):
            assert values(cluster, "t", index) == self.committed
        assert committed_offset(cluster) == self.offset
        check_nothing_is_open(cluster, "t")


def committed_offset(cluster: ClusterProcesses) -> int:
    """The committed offset of the group. Waits until its coordinator knows that no offset is staged."""
    found: list[int] = []

    def ask() -> bool:
        with cluster.asked(group_coordinator_of(cluster, GROUP)) as raw:
            topics = [{"name": "t", "partition_indexes": [0]}]
            body = {"groups": [{"group_id": GROUP, "topics": topics}], "require_stable": True}
            [group] = raw.ask(ApiKey.OFFSET_FETCH, body, 8)["groups"]
            if group["error_code"] == Code.NONE:
                [partition] = group["topics"][0]["partitions"]
                if partition["error_code"] == Code.NONE:
                    found.append(partition["committed_offset"])
        return bool(found)

    wait_until(ask, f"the offset of {GROUP} is told")
    return found[-1]


@pytest.mark.parametrize(("commit", "bumps"), some([(True, True), (False, False)], 2))
def test_the_coordinator_dies_between_any_two_steps(cluster: ClusterProcesses, commit: bool, bumps: bool) -> None:
    make_topic(cluster, "t")
    work = Work(cluster, bumps=bumps)
    for step, times in some(AT_COORDINATOR, 2, first=commit):
        cluster.spread("t")  # so that the coordinator sends markers to two other brokers
        value = work.do()
        broker = cluster.brokers[coordinator_of(cluster, "x")]
        decided, done = ("PrepareCommit", "CompleteCommit") if commit else ("PrepareAbort", "CompleteAbort")
        with stopping_at(broker, step.format(decided, done=done), times):
            ending = threading.Thread(target=work.end, args=(value, commit))
            ending.start()
        broker.start()
        ending.join(PATIENCE)
        assert not ending.is_alive(), step
        work.check(commit)


@pytest.mark.parametrize(("commit", "bumps"), some([(True, False), (False, True)], 2))
def test_a_leader_dies_at_any_step_of_a_marker(cluster: ClusterProcesses, commit: bool, bumps: bool) -> None:
    make_topic(cluster, "t")
    work = Work(cluster, bumps=bumps)
    for step in some(AT_LEADER, 2):
        cluster.spread("t")
        value = work.do()
        coordinator = coordinator_of(cluster, "x")
        leaders = {leader_of(cluster, "t", index) for index in range(PARTITIONS)}
        broker = cluster.brokers[min(leaders - {coordinator})]
        with stopping_at(broker, step):
            work.end(value, commit)
        broker.start()
        work.check(commit)


def test_markers_of_a_coordinator_that_was_deposed_are_refused(cluster: ClusterProcesses) -> None:
    """The coordinator stops for longer than its session, right before it sends its markers. Meanwhile the next
    coordinator completes the transaction, and the producer begins another one, which is aborted. When the old
    coordinator goes on, it sends its markers, or learns first that it was deposed. So the test sends one of these
    markers, too."""
    make_topic(cluster, "t")
    work = Work(cluster)
    value = work.do()
    zombie, epoch = coordinator_of(cluster, "x"), coordinator_epoch(cluster)
    with stopping_at(cluster.brokers[zombie], "sends marker", by=signal.SIGSTOP):
        ending = threading.Thread(target=work.end, args=(value, True))
        ending.start()
    with cluster.paused(zombie):
        ending.join(PATIENCE)
        assert not ending.is_alive()
        wait_until(lambda: coordinator_of(cluster, "x") != zombie, "another broker coordinates")
        wait_until(lambda: work.producer.state() == "CompleteCommit", "the next coordinator completes it")
        aborted = work.do()
    assert work.producer.mark("t", 0, True, epoch, number=1) == Code.TRANSACTION_COORDINATOR_FENCED
    for topic in ("t", TRANSACTIONS):
        cluster.until_in_sync(topic)  # then the old coordinator knows the new one
    work.end(aborted, False)
    work.check(False)


@pytest.mark.parametrize("bumps", [True, False])
def test_a_marker_that_comes_late_does_not_end_the_next_transaction(cluster: ClusterProcesses, bumps: bool) -> None:
    """The marker's sender did not wait for it any longer and sent it again, and the producer has gone on. The leader
    tells transactions apart by their epochs if the producer gets another epoch each time, and otherwise by their
    numbers."""
    make_topic(cluster, "t")
    work = Work(cluster, bumps=bumps)
    work.end(work.do(), True)
    offsets = group_partition(cluster)
    by = coordinator_epoch(cluster)
    aborted = work.do()
    late = Code.INVALID_PRODUCER_EPOCH if bumps else Code.INVALID_TXN_STATE
    for topic, index in (("t", 0), (OFFSETS, offsets)):
        assert work.producer.mark(topic, index, True, by, number=-1 if bumps else 1) == late
    if bumps:
        older = work.producer.epoch - 1
        assert work.producer.mark("t", 0, True, by, epoch=older) == Code.INVALID_PRODUCER_EPOCH
    work.end(aborted, False)
    work.check(False)
    assert work.producer.mark("t", 0, True, by, number=2) == Code.NONE, "nothing is open"
    work.check(False)


def coordinator_epoch(cluster: ClusterProcesses) -> int:
    known = cluster.partitions(TRANSACTIONS)
    return known[partition_of("x", len(known))].epoch


def group_partition(cluster: ClusterProcesses) -> int:
    return partition_of(GROUP, len(cluster.partitions(OFFSETS)))
