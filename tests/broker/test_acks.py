"""Kafka's acks=1: answered once the leader has it on its disk, whatever the other replicas do."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from krappy.broker.partition.partition import Partition
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend, NotLeader, OffsetMismatch
from krappy.records import batch
from krappy.waiting import Later
from tests.broker import engine

EPOCH, OTHER = 100, 9


class Led:
    """A partition with a second replica, which does nothing that the test does not tell."""

    def __init__(self, partition: Partition, broker: int) -> None:
        self.partition, self._broker, self._version = partition, broker, EPOCH

    async def take(self, isr: tuple[int, ...], role: Role = Role.LEADER, epoch: int = EPOCH) -> None:
        self._version += 1
        isr = tuple(self._broker if each == 0 else each for each in isr)
        state = PartitionState(self._broker, epoch, 0, isr, min_isr=2)
        await self.partition.take(state, self._version, role, self._broker)

    def publish(self, value: bytes, *, alone: bool, **more: Any) -> Later[object]:
        return self.partition.publish(batch.encode([b"k"], [value], timestamps=1_000, **more), alone=alone)  # type: ignore[return-value]

    def conditional(self, expect: int, *, alone: bool = False) -> Later[object]:
        data = batch.encode([b"k"], [b"conditional"], timestamps=1_000)
        return self.partition.publish(data, [(0, expect)], alone=alone)  # type: ignore[return-value]

    def other_has(self, offset: int) -> None:
        self.partition.fetched_by(OTHER, 0, offset)


@asynccontextmanager
async def led(folder: Path, durability: str = "fsync") -> AsyncIterator[Led]:
    async with engine.running(folder, durability=durability) as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].local[0]
        made = Led(partition, broker.id)
        await made.take((0, OTHER))
        with trio.fail_after(60):
            yield made
        await made.take((0,), epoch=EPOCH + 9)


async def waits(later: Later[object]) -> bool:
    with trio.move_on_after(0.2):
        await later.wait()
    return not later.done


@pytest.mark.parametrize("durability", ["fsync", "os"])
@trio_test
async def test_who_asks_for_the_leader_alone_does_not_wait_for_the_others(tmp_path: Path, durability: str) -> None:
    async with led(tmp_path, durability) as it:
        all = it.publish(b"all", alone=False)
        for number in range(3):
            await it.publish(b"%d" % number, alone=True).wait()
        partition = it.partition
        assert partition.log.synced_offset == 4 or durability == "os"
        assert await waits(all)
        assert partition.high_watermark == 0
        it.other_has(4)
        await all.wait()
        assert partition.high_watermark == 4
        await partition.applier.caught_up()
        assert partition.look_up(b"k") is not None


@trio_test
async def test_nobody_is_answered_before_the_leader_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with led(tmp_path) as it:
        go_on, sync = threading.Event(), it.partition.log.sync

        def slowly() -> int:
            assert go_on.wait(30)
            return sync()

        monkeypatch.setattr(it.partition.log, "sync", slowly)
        alone = it.publish(b"x", alone=True)
        assert await waits(alone)
        go_on.set()
        await alone.wait()


@trio_test
async def test_too_few_replicas_refuse_only_those_who_want_more(tmp_path: Path) -> None:
    """As Kafka's leader does: min.insync.replicas concerns acks=all."""
    async with led(tmp_path) as it:
        waiting = it.publish(b"0", alone=False)
        alone = it.publish(b"1", alone=True)
        await alone.wait()
        await it.take((0,))
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await waiting.wait()
        with pytest.raises(NotEnoughReplicas):
            await it.publish(b"refused", alone=False).wait()
        with pytest.raises(NotEnoughReplicas):
            await it.conditional(7, alone=True).wait()
        for number in range(20):
            await it.publish(b"%d" % number * 1000, alone=True).wait()
        assert it.partition.high_watermark == 0
        assert it.partition.end_offset == 22
        await it.take((0, OTHER))
        later = it.conditional(0)
        assert await waits(later)  # not decided before all that was written is committed
        it.other_has(22)
        with pytest.raises(OffsetMismatch):
            await later.wait()
        later = it.conditional(21)
        assert await waits(later)
        it.other_has(23)
        await later.wait()


@trio_test
async def test_a_retry_is_answered_as_it_asks(tmp_path: Path) -> None:
    async with led(tmp_path) as it:
        producer = await it.partition._lent.new_producer_id()  # type: ignore[attr-defined]
        sequence = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
        await it.publish(b"x", alone=True, **sequence).wait()
        await it.publish(b"x", alone=True, **sequence).wait()
        assert it.partition.end_offset == 1
        all = it.publish(b"x", alone=False, **sequence)
        assert await waits(all)
        await it.take((0,))
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await all.wait()
        await it.publish(b"x", alone=True, **sequence).wait()
        assert it.partition.end_offset == 1


@trio_test
async def test_too_few_replicas_are_told_before_a_gap_that_they_make(tmp_path: Path) -> None:
    """These are batches that an idempotent producer sends without waiting. If the later ones were refused for the gap,
    librdkafka would write again, in a new epoch, batches that the log may have."""
    async with led(tmp_path) as it:
        producer = await it.partition._lent.new_producer_id()  # type: ignore[attr-defined]

        def batches(*sequences: int) -> list[Later[object]]:
            own = {"producer_id": producer, "producer_epoch": 0}
            return [it.publish(b"x", alone=False, base_sequence=each, **own) for each in sequences]

        [first] = batches(0)
        assert await waits(first)
        await it.take((0,))
        for later in (first, *batches(1, 2, 3), *batches(3), *batches(0)):
            with pytest.raises((NotEnoughReplicas, NotEnoughReplicasAfterAppend)):
                await later.wait()
        await it.take((0, OTHER))
        again = batches(0, 1, 2, 3)
        assert await waits(again[-1])
        it.other_has(4)
        for later in again:
            await later.wait()
        assert it.partition.end_offset == 4


@trio_test
async def test_the_end_of_the_role_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with led(tmp_path) as it:
        go_on, begun, sync = threading.Event(), trio.Event(), it.partition.log.sync

        def slowly() -> int:
            trio.from_thread.run_sync(begun.set)
            assert go_on.wait(30)
            return sync()

        monkeypatch.setattr(it.partition.log, "sync", slowly)
        later = it.publish(b"x" * 400_000, alone=True)  # so large that its sync is beside the write
        await begun.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.partition.rest)
            await wait_all_tasks_blocked()
            go_on.set()
        with pytest.raises(NotLeader):
            await later.wait()
