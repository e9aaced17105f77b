"""The wall's clock is set while a broker runs: durations do not notice."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.clock import Clock
from krappy.broker.groups.group_keeper import DELAYS_WRITTEN_MS
from krappy.broker.groups.shared import SharedPartition
from krappy.core.kafka.offset import Offset
from krappy.records import batch
from krappy.store.format import LOG, file_name
from tests.broker.engine import as_killed, events, publish, read_all, running, until
from tests.broker.transactional import Producer

HOUR = 3_600_000
ALL = (1000, 1 << 20)
Jump = Callable[[int], None]


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Jump:
    """Sets the wall's clock forward by so many ms, or back."""
    right, by = Clock.now_ms, [0]
    monkeypatch.setattr(Clock, "now_ms", lambda self: right(self) + by[0])

    def jump(ms: int) -> None:
        by[0] += ms

    return jump


@pytest.mark.parametrize("by", [-HOUR, 0, HOUR])
@trio_test
async def test_a_lease_lasts_as_long_as_it_was_to(tmp_path: Path, jump: Jump, by: int) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 2)
        short = await broker.groups.join("g", "a", ["t"], lease_ms=1500)
        long = await broker.groups.join("g", "b", ["t"], lease_ms=HOUR // 2)
        waits = await broker.groups.join("g", "c", ["t"])
        assert [got.offset for got in events(await short.poll(1, 1 << 20))] == [0]
        assert [got.offset for got in events(await long.poll(1, 1 << 20))] == [1]
        jump(by)
        with trio.fail_after(60):
            assert [got.offset for got in events(await waits.poll(*ALL, 120_000))] == [0]
        assert not (await waits.poll(*ALL)).leases
        told = [due for member, _, _, _, _, due in broker.groups.held("g") if member == long.name]
        assert abs(told[0] - (broker.now_ms() + HOUR // 2)) < HOUR // 4  # by the clock that people see


async def delayed(broker: LocalBroker) -> SharedPartition:
    """A partition of a group with an event that is delayed by half an hour, durably."""
    topic, _ = await broker.create_topic("t", 1, {})
    await publish(topic.led(0), 1)
    member = await broker.groups.join("g", "a", ["t"])
    await member.poll(*ALL)
    member.nack([("t", 0, 0, 0)], HOUR // 2)
    group = broker.groups._groups["g"]
    await group.writer.durable(group, group.shared.values()).wait()
    return group.shared["t", 0]


def left(broker: LocalBroker) -> int:
    """How many ms it is delayed still."""
    [shared] = broker.groups._groups["g"].shared.values()
    assert shared.leases.due is not None
    return shared.leases.due - broker.clock.steady_ms()


@pytest.mark.parametrize("by", [-HOUR, 0, HOUR])
@pytest.mark.parametrize("killed", [False, True])
@trio_test
async def test_a_delay_goes_on_after_a_restart(tmp_path: Path, jump: Jump, by: int, killed: bool) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as broker:
        await delayed(broker)
        as_killed(data, copy)
        jump(by)
    async with running(copy if killed else data) as broker:
        assert abs(left(broker) - HOUR // 2) < HOUR // 4


@trio_test
async def test_a_kill_makes_a_delay_hardly_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a delay is written again and again: else an event would never come if the broker is killed often."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as broker:
        shared = await delayed(broker)
        assert shared.alarm is not None
        assert shared.alarm <= broker.clock.steady_ms() + DELAYS_WRITTEN_MS
        right, before = Clock.steady_ms, shared.version
        monkeypatch.setattr(Clock, "steady_ms", lambda self: right(self) + HOUR // 4)
        broker.groups.alarms.set(shared, 0)  # wakes the task that looks at the clock
        await until(lambda: shared.version > before)
        await shared.group.writer.durable(shared.group, [shared]).wait()  # type: ignore[attr-defined]
        as_killed(data, copy)
    async with running(copy) as broker:
        assert abs(left(broker) - HOUR // 4) < HOUR // 8


@pytest.mark.parametrize("by", [-HOUR, HOUR])
@trio_test
async def test_a_transaction_ends_when_its_timeout_is_over(tmp_path: Path, jump: Jump, by: int) -> None:
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        long = await Producer(broker, "long").init(10 * 60_000)
        await long.write((b"k", b"long"))
        short = await Producer(broker, "short").init(300)
        await short.write((b"k", b"short"))
        jump(by)
        await until(lambda: short.id not in partition.stability.open)
        assert long.id in partition.stability.open
    async with running(tmp_path) as broker:
        found = broker.transactions.find("long")
        assert found is not None
        assert abs(found.started_ms - broker.clock.steady_ms()) < 60_000


@trio_test
async def test_positions_are_kept_for_their_time(tmp_path: Path, jump: Jump) -> None:
    async with running(tmp_path, offsets_retention_ms=HOUR) as broker:
        await broker.create_topic("t", 1, {})
        offsets = broker.kafka_groups.offsets
        group = offsets.check("g", "", -1, None)
        await offsets.commit(group, {("t", 0): Offset(0, -1, "", broker.clock.steady_ms())})
        jump(2 * HOUR)
        offsets.expire(group, broker.clock.steady_ms())
        assert group.offsets


@pytest.mark.parametrize("by", [-48 * HOUR, 48 * HOUR])
@trio_test
async def test_what_a_producer_sends_again_is_known_still(tmp_path: Path, jump: Jump, by: int) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        mine = await broker.new_producer_id()

        async def send() -> int:
            return await publish(topic.led(0), 2, producer_id=mine, producer_epoch=0, base_sequence=0)

        assert await send() == 0
        jump(by)
        await broker.housekeeper.tend(topic.led(0))
        assert await send() == 0
        assert topic.led(0).high_watermark == 2


@pytest.mark.parametrize("by", [-48 * HOUR, 48 * HOUR])
@trio_test
async def test_what_a_producer_sent_while_the_clock_was_wrong_is_known_still(
    tmp_path: Path, jump: Jump, by: int
) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        mine = await broker.new_producer_id()

        async def send() -> int:
            return await publish(topic.led(0), 2, producer_id=mine, producer_epoch=0, base_sequence=0)

        jump(by)
        assert await send() == 0
        jump(-by)
        await broker.housekeeper.tend(topic.led(0))
        assert await send() == 0
        assert topic.led(0).high_watermark == 2


@pytest.mark.parametrize("time", [None, -1], ids=["its time", "no time"])
@pytest.mark.parametrize("restart", [False, True])
@trio_test
async def test_an_event_is_kept_as_long_as_its_topic_says(
    tmp_path: Path, jump: Jump, time: int | None, restart: bool
) -> None:
    """However long before it its segment was begun, and whatever segment.ms is since."""
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {"retention.ms": 24 * HOUR})
        partition = topic.led(0)
        for value in (b"first", b"last"):
            jump(72 * HOUR)
            now = broker.now_ms() if time is None else time
            await partition.publish(batch.encode(None, [value], timestamps=now)).wait()
        assert partition.segments == 1
        if not restart:
            await check_last_is_kept(broker, jump)
    if restart:
        written = partition.log.folder / file_name(0, LOG)
        os.utime(written, (broker.now_ms() // 1000,) * 2)  # the files' clock was set, too
        async with running(tmp_path) as broker:
            await check_last_is_kept(broker, jump)


async def check_last_is_kept(broker: LocalBroker, jump: Jump) -> None:
    """Checks that the topic's last event, which was just appended, stays for 24 hours, and no longer."""
    partition = broker.topic("t").led(0)
    await broker.alter_topic("t", {"segment.ms": 1000}, None)
    for kept in (2, 2, 0):
        await broker.housekeeper.tend(partition)
        assert len(await read_all(partition)) == kept
        jump(12 * HOUR + 1000)


@trio_test
async def test_a_producer_is_known_after_a_start_by_a_clock_that_is_days_ahead(tmp_path: Path, jump: Jump) -> None:
    """Else a retry of a batch that was acknowledged before the start would be stored again."""
    again = partial(publish, count=1, producer_id=7, producer_epoch=0, base_sequence=0)
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, {"retention.ms": -1}))[0].led(0)
        await broker.catalog.skip_producer_ids(8)
        assert await again(partition) == 0
    jump(48 * HOUR)
    async with running(tmp_path) as broker:
        partition = broker.topic("t").led(0)
        await broker.housekeeper.retain(partition)
        assert await again(partition) == 0
        broker.clock._started -= 25 * HOUR
        await broker.housekeeper.retain(partition)
        assert await again(partition) == 1, "it is forgotten once the broker has run for as long"
