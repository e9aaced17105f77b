"""What a leader remembers of transactions that have staged offsets of groups, so that it can refuse ends that come
late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.partition.partition import Partition
from krappy.broker.topics.internal_topics import OFFSETS
from krappy.broker.transactions.ending import StagedFor, TransactionEnds
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.errors import InvalidTransaction, KrappyError
from krappy.ports import TransactionEnd
from krappy.types import TopicPartition
from krappy.waiting import Later
from tests.broker.engine import running

if TYPE_CHECKING:
    from krappy.broker.kafka_groups.coordinator import KafkaGroups

PRODUCER, EPOCH = 7, 3


class NoGroups:
    """Coordinates groups that have nothing staged."""

    def check_loaded(self, index: int) -> None:
        """All is loaded."""

    def settle(self, index: int, producer_id: int, commit: bool) -> Later[None]:
        settled: Later[None] = Later()
        settled.resolve(None)
        return settled


async def lead_anew(broker: LocalBroker, partition: Partition) -> None:
    state = PartitionState(broker.id, partition.epoch + 1, 1, (broker.id,))
    await partition.take(state, partition.state_version + 1, Role.LEADER, broker.id)
    broker.topics.changed.fire()


async def end_of(ends: TransactionEnds, index: int, number: int) -> KrappyError | None:
    """Writes the end of the transaction of this number in a partition of the offsets' topic. Returns why it is refused,
    or None."""
    [later] = ends.end(TransactionEnd(PRODUCER, EPOCH, True, 0, number=number), [TopicPartition(OFFSETS, index)])
    try:
        await later.wait()
    except KrappyError as error:
        return error
    return None


@trio_test
async def test_late_ends_are_refused_by_partition_until_the_leader_epoch_changes(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("offsets", 3, {})
        broker.topics[OFFSETS] = topic  # which only a cluster has
        ends = TransactionEnds(broker, cast("KafkaGroups", NoGroups()))
        for index in (0, 1):
            ends.staging(index, PRODUCER, StagedFor(EPOCH, 2))
        assert isinstance(await end_of(ends, 0, 1), InvalidTransaction)
        assert await end_of(ends, 2, 1) is None, "nothing is staged there"
        assert await end_of(ends, 0, 2) is None
        assert await end_of(ends, 0, 1) is None, "that has ended"
        assert isinstance(await end_of(ends, 1, 1), InvalidTransaction), "the end in another partition is not its own"
        ends.staging(0, PRODUCER, StagedFor(EPOCH, 4))
        await lead_anew(broker, topic.led(1))
        assert 1 not in ends._staged, "what is not known any more takes no memory"
        assert await end_of(ends, 1, 1) is None, "nobody knows what was staged in earlier epochs"
        assert isinstance(await end_of(ends, 0, 1), InvalidTransaction)
        del broker.topics[OFFSETS]
