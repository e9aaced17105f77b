"""A view whose files can't be written must not keep its topic from being deleted, nor the broker from stopping; and
who waits for a view that never will catch up is told so."""

from __future__ import annotations

import errno
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from krappy.broker.broker import LocalBroker
from krappy.broker.partition import appender, applier
from krappy.broker.partition.partition import Partition
from krappy.broker.upkeep import housekeeping
from krappy.errors import CorruptBatch, KrappyError, ShuttingDown, StorageError, UnknownTopic, ViewDisabled
from krappy.records import batch
from krappy.store.log import Log
from krappy.types import Span
from tests.broker import engine


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier, "PATIENCE", 0.05)


def test_a_topic_is_deleted_while_its_view_waits_for_the_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            broker.views.busy = lambda: True  # type: ignore[method-assign]  # as when flushes find no room
            await engine.publish(topic.led(0), 1, [b"k"])
            with trio.fail_after(10):
                await broker.delete_topic("t")
            assert "t" not in broker.topics

    trio.run(main)


def test_a_broker_stops_while_a_view_waits_for_the_disk(tmp_path: Path, impatient: None) -> None:
    """The log has the events, so the next start folds them."""

    async def first() -> None:
        with trio.fail_after(10):
            async with engine.running(tmp_path) as broker:
                topic, _ = await broker.create_topic("t", 1, {})
                broker.views.busy = lambda: True  # type: ignore[method-assign]
                await engine.publish(topic.led(0), 1, [b"k"])

    async def second() -> None:
        async with engine.running(tmp_path) as broker:
            partition = broker.topic("t").led(0)
            await broker.wait_for_views([partition])
            assert partition.look_up(b"k") is not None

    trio.run(first)
    trio.run(second)


def test_a_deletion_that_the_disk_refuses_is_finished_later(tmp_path: Path) -> None:
    reports: list[str] = []

    async def main() -> None:
        async with engine.running(tmp_path, lambda event, **facts: reports.append(event)) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            await engine.publish(topic.led(0), 1, [b"k"])
            flush = broker.views.flush

            def refuse() -> None:
                raise StorageError("no space left")

            broker.views.flush = refuse  # type: ignore[method-assign]
            await broker.delete_topic("t")
            assert "t" not in broker.topics
            await engine.until(lambda: "deletion_unfinished" in reports)
            assert broker.catalog.deleting()
            broker.views.flush = flush  # type: ignore[method-assign]
            await broker.changes.finish_deletions()
            assert not broker.catalog.deleting()

    trio.run(main)


def test_the_space_of_a_deleted_view_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "SCAN_CHECK_S", 0.05)

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            partition = topic.led(0)
            for batch in range(20):
                await engine.publish(partition, 1000, [b"%d-%d" % (batch, row) for row in range(1000)])
            await broker.wait_for_views([partition])
            broker.views.flush()
            before = sum(file.stat().st_size for file in (tmp_path / "views").glob("*.sst"))
            reclaimed: list[int] = []
            reclaim = broker.views.reclaim

            def noted(number: int) -> None:
                reclaim(number)
                reclaimed.append(number)

            monkeypatch.setattr(broker.views, "reclaim", noted)
            await broker.delete_topic("t")
            await engine.until(lambda: reclaimed == [partition.number])
            await engine.until(
                lambda: sum(file.stat().st_size for file in (tmp_path / "views").glob("*.sst")) < before / 4
            )

    trio.run(main)


def test_a_log_that_the_disk_does_not_read_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad sector: publishers do not wait for a view that never comes. It goes on by itself when the disk is back."""
    monkeypatch.setattr(applier, "KEPT", -1)  # all is read from the log
    monkeypatch.setattr(applier, "RETRY_S", 0.01)
    monkeypatch.setattr(appender, "MAX_LAG", 1000)
    reports: list[str] = []

    async def main() -> None:
        async with engine.running(tmp_path, lambda event, **facts: reports.append(event)) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            partition = topic.led(0)
            read = partition.log.read_span

            def refuse(*given: object, **more: object) -> Span:
                raise StorageError("t-0: Input/output error") from OSError(errno.EIO, "Input/output error")

            partition.log.read_span = refuse  # type: ignore[method-assign]
            with trio.fail_after(60):
                for number in range(20):
                    await engine.publish(partition, 100, [b"%d-%d" % (number, row) for row in range(100)])
                with pytest.raises(CorruptBatch):
                    await partition.view_wait(None, 60)
                partition.log.read_span = read  # type: ignore[method-assign]
                await engine.until(lambda: partition.applied == 2000)
                assert await partition.view_wait(None, 60)
            assert partition.look_up(b"19-99") is not None
            assert partition.view_failed is None
            assert reports.count("view_failed") == 1

    trio.run(main)


HOUR = 3_600_000
NEVER = {"cleaner_backoff_ms": HOUR, "retention_check_ms": HOUR}
FULL = {"cleanup.policy": "compact,delete", "segment.bytes": 2000, "retention.ms": 1}
Work = Callable[[LocalBroker, Partition], Awaitable[object]]


async def filled(broker: LocalBroker, config: Mapping[str, Any] = FULL) -> Partition:
    """The partition of a new topic, with several segments."""
    topic, _ = await broker.create_topic("t", 1, config)
    partition = topic.led(0)
    for _ in range(40):
        await engine.publish(partition, 10, [b"k%d" % number for number in range(10)])
    return partition


async def retain(broker: LocalBroker, partition: Partition) -> None:
    await broker.housekeeper.retain(partition)


async def compact(broker: LocalBroker, partition: Partition) -> None:
    await broker.housekeeper.clean(partition, broker.now_ms())


async def delete_records(broker: LocalBroker, partition: Partition) -> None:
    await partition.delete_records(-1)


async def look_up(broker: LocalBroker, partition: Partition) -> None:
    await partition.view_wait(None, 3600)


async def write_where(broker: LocalBroker, partition: Partition) -> None:
    await partition.publish(batch.encode([b"k1"], [b"new"], timestamps=1_000), [(0, 391)]).wait()


async def turn_off(broker: LocalBroker) -> None:
    await broker.alter_topic("t", {"cleanup.policy": "delete", "view.enable": False}, None)
    assert await engine.publish(broker.topic("t").led(0), 1, [b"k"]) == 410  # nothing is in its way


async def delete(broker: LocalBroker) -> None:
    await broker.delete_topic("t")


async def stop(broker: LocalBroker) -> None:
    broker.topic("t").led(0).appender.close()
    await broker.topic("t").led(0).close()


@pytest.mark.parametrize(
    ("end", "told"),
    [(turn_off, ViewDisabled), (delete, UnknownTopic), (stop, ShuttingDown)],
    ids=["off", "gone", "end"],
)
@pytest.mark.parametrize("work", [retain, compact, delete_records, look_up, write_where])
def test_nobody_waits_for_a_view_that_has_ended(
    tmp_path: Path,
    impatient: None,
    work: Work,
    end: Callable[[LocalBroker], Awaitable[None]],
    told: type[KrappyError],
) -> None:
    """They would wait for ever, and with them whoever waits for the locks that they hold."""
    ended: list[BaseException | None] = []

    async def main() -> None:
        async with engine.running(tmp_path, **NEVER) as broker:
            partition = await filled(broker)
            assert await partition.view_wait(None, 60)
            broker.views.busy = lambda: True  # type: ignore[method-assign]  # as when flushes find no room
            await engine.publish(partition, 10, [b"k%d" % number for number in range(10)])

            async def wait() -> None:
                try:
                    await work(broker, partition)
                    ended.append(None)
                except KrappyError as error:
                    ended.append(error)

            assert not partition.applier.moved.is_heard
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await engine.until(lambda: partition.applier.moved.is_heard)  # it may work in a thread before
                assert not ended
                with trio.fail_after(30):
                    await end(broker)
                    await engine.until(lambda: ended)

    trio.run(main)
    assert type(ended[0]) is told or (work is compact and end is delete and ended == [None])


@pytest.mark.parametrize("work", [retain, delete_records])
def test_a_topic_is_deleted_while_its_log_is_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Work
) -> None:
    """A thread works on the log when the log is deleted. The error that the thread meets is no fault of the disk."""
    began, deleted = threading.Event(), threading.Event()
    roll, destroy = Log.roll, Log.destroy

    def roll_later(log: Log) -> None:
        began.set()
        assert deleted.wait(30)
        roll(log)

    def destroy_now(log: Log) -> None:
        destroy(log)
        deleted.set()

    async def main() -> None:
        async with engine.running(tmp_path, **NEVER) as broker:
            partition = await filled(broker)
            monkeypatch.setattr(Log, "roll", roll_later)
            monkeypatch.setattr(Log, "destroy", destroy_now)

            async def refused() -> None:
                with pytest.raises(UnknownTopic):
                    await work(broker, partition)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(refused)
                with trio.fail_after(30):
                    await engine.until(began.is_set)
                    await broker.delete_topic("t")

    trio.run(main)


def test_a_topic_is_deleted_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the threads that read it wait for the disk."""
    deleted = threading.Event()
    read_span, find_timestamp, find_latest, destroy = Log.read_span, Log.find_timestamp, Log.find_latest, Log.destroy

    def read_later(log: Log, *given: Any, **named: Any) -> Span:
        if named.get("nowait"):
            raise BlockingIOError
        assert deleted.wait(30)
        return read_span(log, *given, **named)

    def find_later(log: Log, *given: Any) -> tuple[int, int] | None:
        assert deleted.wait(30)
        return find_timestamp(log, *given)

    def find_latest_later(log: Log, *given: Any) -> tuple[int, int] | None:
        assert deleted.wait(30)
        return find_latest(log, *given)

    def destroy_now(log: Log) -> None:
        destroy(log)
        deleted.set()

    async def main() -> None:
        async with engine.running(tmp_path, **NEVER) as broker:
            partition = await filled(broker, {"segment.bytes": 2000})
            assert await partition.view_wait(None, 60)
            for name, later in (
                ("read_span", read_later),
                ("find_timestamp", find_later),
                ("find_latest", find_latest_later),
                ("destroy", destroy_now),
            ):
                monkeypatch.setattr(Log, name, later)

            async def refused(work: Awaitable[object]) -> None:
                with pytest.raises(UnknownTopic):
                    await work

            async with trio.open_nursery() as nursery:
                for work in (
                    partition.read(0, 1000),
                    partition.fetch(0, 1000, 400),
                    partition.fetch_all(0, 1000),
                    partition.find_time(500, 400),
                    partition.find_latest_time(400),
                    partition.offset_at(500),
                ):
                    nursery.start_soon(refused, work)
                await trio.testing.wait_all_tasks_blocked()  # each has its thread
                with trio.fail_after(30):
                    await broker.delete_topic("t")

    trio.run(main)


def test_a_condition_costs_nobody_else_their_write(tmp_path: Path) -> None:
    """The view is turned off under a conditional write: what waits beside it is written."""

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            partition = topic.led(0)
            broker.views.busy = lambda: True  # type: ignore[method-assign]
            await engine.publish(partition, 1, [b"k"])
            before = partition.publish(batch.encode([b"a"], [b"1"], timestamps=1_000))
            conditional = partition.publish(batch.encode([b"k"], [b"2"], timestamps=1_000), [(0, 0)])
            after = partition.publish(batch.encode([b"b"], [b"3"], timestamps=1_000))
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(30):
                await broker.alter_topic("t", {"view.enable": False}, None)
                with pytest.raises(ViewDisabled):
                    await conditional.wait()
                assert [(await each.wait()).offset for each in (before, after)] == [1, 2]

    trio.run(main)
