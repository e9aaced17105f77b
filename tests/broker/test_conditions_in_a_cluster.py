"""A compare-and-set is refused only for what is committed, by a leader that is sure to be one."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from krappy.broker.broker import LocalBroker
from krappy.broker.partition import commit
from krappy.broker.partition.partition import Partition
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.errors import NotLeader, OffsetMismatch, UnknownTopic
from krappy.ports import StoredAt
from krappy.records import batch
from krappy.types import ABSENT
from krappy.waiting import Later
from tests.broker import engine

OTHER = 7  # the id of a follower


async def led_with_a_follower(broker: LocalBroker) -> Partition:
    """A partition with a committed event of the key k at offset 0. Nothing more is committed before `follow`."""
    partition = (await broker.create_topic("t", 1, {}))[0].led(0)
    await publish(partition).wait()
    await lead_anew(partition)
    return partition


async def lead_anew(partition: Partition) -> None:
    epoch = partition.epoch + 1
    state = PartitionState(partition.leader, epoch, 1, (partition.leader, OTHER), min_isr=1)
    await partition.take(state, partition.state_version + 1, Role.LEADER, partition.leader)


def publish(partition: Partition, expect: int | None = None) -> Later[StoredAt]:
    data = batch.encode([b"k"], [b"v"], timestamps=1_000)
    return partition.publish(data, None if expect is None else [(0, expect)])


def follow(partition: Partition) -> None:
    """The follower has all that there is."""
    partition.fetched_by(OTHER, 1, partition.end_offset)


async def outcome(later: Later[StoredAt]) -> int | type[Exception]:
    try:
        with trio.fail_after(20):
            return (await later.wait()).offset
    except (OffsetMismatch, NotLeader) as error:
        return type(error)


@pytest.mark.parametrize("commits", [True, False])
def test_a_refusal_waits_for_what_it_rests_on(commits: bool, tmp_path: Path) -> None:
    """Two conditional writes come at the same time, and both expect what is there. The second one is refused rightly
    only if the first one's event can't be lost with its leader."""

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = await led_with_a_follower(broker)
            first, second = publish(partition, 0), publish(partition, 0)
            await trio.testing.wait_all_tasks_blocked()
            if commits:
                follow(partition)
            else:
                await partition.rest()
            assert await outcome(first) == (1 if commits else NotLeader)
            assert await outcome(second) is (OffsetMismatch if commits else NotLeader)

    trio.run(main)


def test_one_is_judged_once_the_followers_have_what_was_before(tmp_path: Path) -> None:
    """The condition waits until what was before is committed, which a follower's fetch brings about."""

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = await led_with_a_follower(broker)
            written = publish(partition)
            await trio.testing.wait_all_tasks_blocked()
            asked = publish(partition, 1)
            await trio.testing.wait_all_tasks_blocked()
            follow(partition)
            assert await outcome(written) == 1
            await trio.testing.wait_all_tasks_blocked()
            follow(partition)
            assert await outcome(asked) == 2

    trio.run(main)


def test_more_is_written_once_the_followers_have_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so much may be written that is not committed."""
    monkeypatch.setattr(commit, "MAX_WAITING", 100)

    async def main() -> None:
        async with engine.running(tmp_path, durability="fsync") as broker:
            partition = await led_with_a_follower(broker)
            published: list[Later[StoredAt]] = []
            for _ in range(3):
                published.append(publish(partition))
                await trio.sleep(0.2)
            with trio.fail_after(20):
                while partition.end_offset < 4:
                    follow(partition)
                    await trio.sleep(0.01)
            follow(partition)
            assert [await outcome(each) for each in published] == [1, 2, 3]

    trio.run(main)


def test_one_that_waits_is_not_judged_when_the_role_has_ended(tmp_path: Path) -> None:
    """A new leader does not know yet how far the one before it has committed, so its table may lack committed
    events."""

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = await led_with_a_follower(broker)
            written = publish(partition)
            await trio.testing.wait_all_tasks_blocked()
            await lead_anew(partition)
            asked = publish(partition, 1)  # the event of this publish has been committed elsewhere, and read there
            await trio.testing.wait_all_tasks_blocked()
            await partition.rest()
            assert await outcome(asked) is NotLeader
            assert await outcome(written) is NotLeader

    trio.run(main)


def test_one_without_a_lease_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker may have taken its place, and the key may be there by now."""

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = await led_with_a_follower(broker)
            follow(partition)
            assert await outcome(publish(partition, ABSENT)) is OffsetMismatch
            monkeypatch.setattr(type(broker), "may_read", lambda self, *at: False)
            assert await outcome(publish(partition, ABSENT)) is NotLeader

    trio.run(main)


def test_who_waits_for_what_is_written_waits_no_longer_than_the_role(tmp_path: Path) -> None:
    """What was not committed by then may be cut from the log, and then the log might never be that long again."""

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = await led_with_a_follower(broker)
            written = publish(partition)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partition.written)
                await trio.testing.wait_all_tasks_blocked()
                assert len(nursery.child_tasks) == 1
                await partition.rest()
                with trio.fail_after(20):
                    while nursery.child_tasks:
                        await trio.sleep(0.01)
            assert await outcome(written) is NotLeader

    trio.run(main)


@trio.testing.trio_test
async def test_who_waits_for_replicas_of_a_topic_that_is_deleted_is_told(tmp_path: Path) -> None:
    async with engine.running(tmp_path) as broker:
        partition = await led_with_a_follower(broker)
        waiting = publish(partition)
        await partition.appender.idle()
        await broker.delete_topic("t")
        with trio.fail_after(20), pytest.raises(UnknownTopic):
            await waiting.wait()
