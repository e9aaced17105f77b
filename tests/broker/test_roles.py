"""A broker that ceases to lead a partition: every publish is answered, whenever that comes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.errors import NotLeader
from krappy.records import batch
from tests.broker import engine

LATER = batch.encode([b"k"], [b"w"], timestamps=1_000)


def test_a_publish_under_way_is_answered_when_the_role_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write is in its thread when the broker's session is over. The role ends after the write, for later nobody
    would settle the publish."""

    async def main() -> None:
        async with engine.running(tmp_path, durability="fsync") as broker:
            partition = (await broker.create_topic("t", 1, {}))[0].led(0)
            append, begun, go_on = partition.log.append, trio.Event(), threading.Event()

            def slow(*given: object) -> int:
                trio.from_thread.run_sync(begun.set)
                go_on.wait(30)
                return int(append(*given))  # type: ignore[arg-type]

            monkeypatch.setattr(partition.log, "append", slow)
            stored = partition.publish(batch.encode([b"k"], [b"v"], timestamps=1_000))
            with trio.fail_after(30):
                await begun.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partition.rest)
                await trio.testing.wait_all_tasks_blocked()
                go_on.set()
            with trio.fail_after(30):
                assert (await stored.wait()).offset == 0  # all replicas in sync, this one, had it before the role ended

    trio.run(main)


def test_a_retry_is_answered_when_the_role_has_ended(tmp_path: Path) -> None:
    """This broker does not know any more whether the original is committed."""

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            partition = (await broker.create_topic("t", 1, {}))[0].led(0)
            producer = await broker.new_producer_id()
            data = batch.encode(
                [b"k"], [b"v"], timestamps=1_000, producer_id=producer, producer_epoch=0, base_sequence=0
            )
            await partition.publish(data).wait()
            await partition.rest()
            partition.high_watermark = 0  # as of a follower that does not know yet that it is committed
            with trio.fail_after(30), pytest.raises(NotLeader):
                await partition.publish(data).wait()

    trio.run(main)


def test_a_role_whose_log_is_on_disk_waits_for_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a broker goes or comes, hundreds of partitions get new roles, and most of them have nothing left to sync."""

    async def main() -> None:
        async with engine.running(tmp_path, durability="fsync") as broker:
            partition = (await broker.create_topic("t", 1, {}))[0].led(0)
            await partition.publish(batch.encode([b"k"], [b"v"], timestamps=1_000)).wait()
            syncs: list[int] = []
            sync = partition.log.sync

            def counted() -> int:
                syncs.append(sync())
                return syncs[-1]

            monkeypatch.setattr(partition.log, "sync", counted)

            async def follow(epoch: int) -> None:
                await partition.take(PartitionState(7, epoch, 1, (7,), min_isr=1), epoch, Role.FOLLOWER, 1)

            await follow(partition.epoch + 1)
            assert (syncs, partition.role) == ([], Role.FOLLOWER)
            data = batch.stamp(batch.read_header(LATER), 1, partition.epoch) + LATER[batch.STAMPED :]
            partition.log.append_as_is([(batch.read_header(data), data)], 1_000)
            await follow(partition.epoch + 1)
            assert syncs == [2]

    trio.run(main)
