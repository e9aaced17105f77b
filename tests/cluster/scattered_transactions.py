"""A transactional producer in a cluster. It sends only the requests that its test asks for, each to the broker that
serves it."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from krappy.broker.topics.internal_topics import OFFSETS, TRANSACTIONS
from krappy.core.cluster.coordinators import partition_of
from krappy.records import batch
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses
from tests.kafka.raw import Raw
from tests.kafka.transactional import Transactional
from tests.process import looks

AGAIN = {
    *(Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR),
    *(Code.CONCURRENT_TRANSACTIONS, Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_ENOUGH_REPLICAS, Code.NETWORK_EXCEPTION),
}

ANSWER_S = 12.0  # the time for an answer, longer than a broker waits for other brokers


def leader_of(cluster: ClusterProcesses, topic: str, index: int) -> int:
    """The id of the partition's leader. Waits until there is one."""
    for _ in looks(f"somebody leads {topic}-{index}"):
        if (leader := int(cluster.partitions(topic)[index].leader)) in cluster.running:
            return leader
    raise AssertionError


def coordinator_of(cluster: ClusterProcesses, name: str) -> int:
    """The id of the broker that coordinates a transactional id. Waits until there is one."""
    return leader_of(cluster, TRANSACTIONS, partition_of(name, len(cluster.partitions(TRANSACTIONS))))


def group_coordinator_of(cluster: ClusterProcesses, group: str) -> int:
    """The id of the broker that coordinates a group. Waits until there is one."""
    with cluster.asked(cluster.running[0]) as raw:
        raw.ask(ApiKey.FIND_COORDINATOR, {"key": group, "key_type": 0}, 3)  # makes the internal topic
    return leader_of(cluster, OFFSETS, partition_of(group, len(cluster.partitions(OFFSETS))))


class ScatteredProducer:
    """`bumps`: it follows KIP-890. Each end of a transaction then gives it the next epoch, and a write adds its
    partition to the transaction."""

    def __init__(self, cluster: ClusterProcesses, name: str, *, bumps: bool = False) -> None:
        self.cluster, self.name, self.bumps = cluster, name, bumps
        self.id = self.epoch = -1
        self.sequences: Counter[tuple[str, int]] = Counter()

    def _of_coordinator(self, ask: Callable[[Transactional], int]) -> Code:
        """The code of the coordinator's answer. Waits until there is a coordinator that can answer."""

        return self._until_told(lambda: coordinator_of(self.cluster, self.name), lambda raw: ask(self._over(raw)))

    def _over(self, raw: Raw) -> Transactional:
        producer = Transactional(raw, self.name)
        producer.id, producer.epoch = self.id, self.epoch
        return producer

    def _until_told(
        self, broker: Callable[[], int], ask: Callable[[Raw], int], connect: Callable[[int], Raw] | None = None
    ) -> Code:
        """The code of a broker's answer. It tries again while the code demands that. `connect`: opens a connection to a
        broker, by default `cluster.asked`."""
        for _ in looks("it is told"):
            with contextlib.suppress(OSError, EOFError):  # it was killed or stopped, and other brokers do not know yet
                with (connect or self.cluster.asked)(broker()) as raw:
                    raw.socket.settimeout(ANSWER_S)
                    code = Code(ask(raw))
                if code not in AGAIN:
                    return code
        raise AssertionError

    def init(self, timeout_ms: int = 60_000) -> ScatteredProducer:
        told: dict[str, Any] = {}

        def ask(producer: Transactional) -> int:
            told.update(producer.ask_init(transaction_timeout_ms=timeout_ms))
            return int(told["error_code"])

        with self.cluster.asked(self.cluster.running[0]) as raw:
            raw.ask(ApiKey.FIND_COORDINATOR, {"key": self.name, "key_type": 1}, 3)  # makes the internal topic
        assert self._of_coordinator(ask) == Code.NONE
        self.id, self.epoch = told["producer_id"], told["producer_epoch"]
        self.sequences.clear()
        return self

    def add(self, *partitions: tuple[str, int]) -> Code:
        return self._of_coordinator(lambda producer: max(producer.add(*partitions)))

    def end(self, commit: bool) -> Code:
        def ask(producer: Transactional) -> int:
            code = producer.end(commit, 5 if self.bumps else 4)
            if (producer.id, producer.epoch) != (self.id, self.epoch):
                self.id, self.epoch = producer.id, producer.epoch
                self.sequences.clear()
            return code

        return self._of_coordinator(ask)

    def add_offsets(self, group: str) -> Code:
        return self._of_coordinator(lambda producer: producer.add_offsets(group))

    def stage_offset(self, group: str, topic: str, offset: int, connect: Callable[[int], Raw] | None = None) -> Code:
        """Stages an offset of the topic's partition 0 at the group's coordinator. Returns the code of its answer.
        `connect`: as in `_until_told`."""

        return self._until_told(
            lambda: group_coordinator_of(self.cluster, group),
            lambda raw: self._over(raw).commit_offset(group, topic, offset, 5 if self.bumps else 4),
            connect,
        )

    def write(self, topic: str, index: int, value: bytes = b"v") -> Code:
        """Writes one event at the partition's leader. Returns the code of its answer."""
        data = batch.encode(
            [None],
            [value],
            timestamps=int(time.time() * 1000),
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences[topic, index],
            transactional=True,
        )
        partition = {"index": index, "records": data}
        body = {
            "transactional_id": self.name,
            "acks": -1,
            "timeout_ms": 30_000,
            "topic_data": [{"name": topic, "partition_data": [partition]}],
        }

        def ask(raw: Raw) -> int:
            [told] = raw.ask(ApiKey.PRODUCE, body, 12 if self.bumps else 11)["responses"][0]["partition_responses"]
            return int(told["error_code"])

        code = self._until_told(lambda: leader_of(self.cluster, topic, index), ask)
        self.sequences[topic, index] += code is Code.NONE
        return code

    def mark(
        self,
        topic: str,
        index: int,
        commit: bool,
        coordinator_epoch: int,
        *,
        number: int = -1,
        epoch: int | None = None,
    ) -> Code:
        """Sends a marker of this producer to the partition's leader, as a coordinator of this epoch would. Returns the
        code of the answer. `epoch`: a producer epoch for a marker without KIP-890; None: the producer's own."""
        marker = {
            "producer_id": self.id,
            "producer_epoch": self.epoch if epoch is None else epoch,
            "transaction_result": commit,
            "topics": [{"name": topic, "partition_indexes": [index]}],
            "coordinator_epoch": coordinator_epoch,
            "transaction_version": 2 if self.bumps and epoch is None else 0,
            "transaction_number": number,
        }
        with self.cluster.asked(leader_of(self.cluster, topic, index)) as raw:
            [answer] = raw.ask(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})["markers"]
        return Code(answer["topics"][0]["partitions"][0]["error_code"])

    def state(self) -> str:
        """The state of the transaction, as the coordinator describes it."""
        told: dict[str, Any] = {}

        def ask(producer: Transactional) -> int:
            body = {"transactional_ids": [self.name]}
            told.update(producer.raw.ask(ApiKey.DESCRIBE_TRANSACTIONS, body)["transaction_states"][0])
            return int(told["error_code"])

        assert self._of_coordinator(ask) == Code.NONE
        return str(told["transaction_state"])
