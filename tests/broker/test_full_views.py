"""A view whose files can't be written must not keep its topic from being deleted, nor the broker from stopping."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from krappy.broker import applier
from krappy.errors import StorageError
from tests.broker import engine


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier, "PATIENCE", 0.05)


def test_a_topic_is_deleted_while_its_view_waits_for_the_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            broker.views.busy = lambda: True  # type: ignore[method-assign]  # as when flushes find no room
            await engine.publish(topic.partitions[0], 1, [b"k"])
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
                await engine.publish(topic.partitions[0], 1, [b"k"])

    async def second() -> None:
        async with engine.running(tmp_path) as broker:
            partition = broker.topic("t").partitions[0]
            await broker.wait_for_views([partition])
            assert partition.look_up(b"k") is not None

    trio.run(first)
    trio.run(second)


def test_a_deletion_that_the_disk_refuses_is_finished_later(tmp_path: Path) -> None:
    reports: list[str] = []

    async def main() -> None:
        async with engine.running(tmp_path, lambda event, **facts: reports.append(event)) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            await engine.publish(topic.partitions[0], 1, [b"k"])
            flush = broker.views.flush

            def refuse() -> None:
                raise StorageError("no space left")

            broker.views.flush = refuse  # type: ignore[method-assign]
            await broker.delete_topic("t")
            assert "t" not in broker.topics
            assert "deletion_unfinished" in reports
            assert broker.catalog.deleting()
            broker.views.flush = flush  # type: ignore[method-assign]
            await broker.finish_deletions()
            assert not broker.catalog.deleting()

    trio.run(main)


def test_the_space_of_a_deleted_view_is_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            partition = topic.partitions[0]
            for batch in range(20):
                await engine.publish(partition, 1000, [b"%d-%d" % (batch, row) for row in range(1000)])
            await broker.wait_for_views([partition])
            broker.views.flush()
            before = sum(file.stat().st_size for file in (tmp_path / "views").glob("*.sst"))
            await broker.delete_topic("t")
            assert broker.dropped_views == [partition.number]
            with trio.fail_after(60):
                while broker.dropped_views:
                    await trio.sleep(0.1)
            await engine.until(
                lambda: sum(file.stat().st_size for file in (tmp_path / "views").glob("*.sst")) < before / 4
            )

    trio.run(main)
