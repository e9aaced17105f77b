"""Holding files for a backup: whom it makes wait, and whom not."""

from __future__ import annotations

import errno
import json
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from krappy.broker.staging.publication import Publication
from krappy.broker.upkeep.backup import AT_ONCE, Hold
from krappy.core.staging import Job, JobState, PublishedPart
from krappy.core.transactions import TxnStage
from krappy.errors import StorageError
from krappy.store.disk import File
from krappy.store.hold import MANIFEST
from tests.broker.engine import publish, read_all, running, somebody_waits, until
from tests.broker.staged import begin, commit
from tests.broker.staged import values as jobs_values
from tests.broker.transactional import Producer, made, values


@trio_test
async def test_topics_are_made_while_a_backup_waits_for_a_compaction(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        held: list[Hold] = []

        async def hold() -> None:
            held.append(await broker.hold_backup())

        async with trio.open_nursery() as nursery, broker.shrinking.of("c"):  # as a compaction has it, for long
            nursery.start_soon(hold)
            await wait_all_tasks_blocked()
            assert somebody_waits(broker.shrinking)
            await broker.create_topic("t", 1, {})
            await broker.alter_topic("t", {"retention.ms": 1_000}, 2)
            assert not held
        assert (held[0].folder / "topics" / "t-1").is_dir()


@trio_test
async def test_a_decision_in_a_backup_does_not_decide_the_next_transaction(tmp_path: Path) -> None:
    """The backup has the catalog while a commit is being completed, and the logs later. The same producer's next
    transaction must not be in those logs: a restored broker would complete the commit again, and so end that
    transaction."""
    async with running(tmp_path / "data") as broker, trio.open_nursery() as nursery:
        others, _ = await broker.create_topic("others", AT_ONCE, {})
        partition = await made(broker)
        producer = await Producer(broker, "p").init()
        await producer.write((b"a", b"first"))
        held: list[Hold] = []
        written: list[int] = []

        async def hold() -> None:
            held.append(await broker.hold_backup())

        async def write() -> None:
            written.append(await producer.write((b"b", b"second")))

        async with AsyncExitStack() as locks:
            for other in others.local.values():  # whose logs are held first
                await locks.enter_async_context(other.writing)
            ended = trio.Event()
            async with partition.writing:
                nursery.start_soon(end, producer, ended)
                await until(lambda: [each.stage for each in broker.transactions.list()] == [TxnStage.PREPARE_COMMIT])
                nursery.start_soon(hold)
                await until(lambda: all(other.writing.statistics().tasks_waiting for other in others.local.values()))
            await ended.wait()
            nursery.start_soon(write)
            await until(lambda: written or broker.decisions.waiting)
        await until(lambda: held and written)
        copy(held[0].folder, tmp_path / "restored")
    async with running(tmp_path / "restored") as broker:
        await until(lambda: [each.stage for each in broker.transactions.list()] == [TxnStage.COMPLETE_COMMIT])
        assert await values(broker.topic("t").led(0)) == [b"first"]


@trio_test
@pytest.mark.parametrize("damaged", [False, True])
async def test_a_backup_that_has_a_job_undecided_has_none_of_its_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """The backup holds the catalog while the job is published, one log before that log goes on in a new segment, and
    the other log later. A restored broker that can't write the rest gives the job up, so nothing of it may be
    committed."""
    written = trio.Event()
    real = Publication.write

    async def write(publication: Publication) -> list[PublishedPart]:
        await written.wait()
        return await real(publication)

    async with running(tmp_path / "data") as broker, trio.open_nursery() as nursery:
        early, _ = await broker.create_topic("early", 1, {})
        others, _ = await broker.create_topic("others", AT_ONCE, {})
        await broker.create_topic("late", 1, {})
        tokens = [await (await (await begin(broker, "j", topic=name)).write("a")).seal() for name in ("early", "late")]
        held: list[Hold] = []
        done: list[Job] = []

        async def hold() -> None:
            held.append(await broker.hold_backup())

        async def publish_job() -> None:
            done.append(await commit(broker, "j", *tokens))

        monkeypatch.setattr(Publication, "write", write)
        async with AsyncExitStack() as locks:
            for other in others.local.values():
                await locks.enter_async_context(other.writing)
            nursery.start_soon(publish_job)
            await until(lambda: [job.state for job in broker.staging.list()] == ["Publishing"])
            nursery.start_soon(hold)
            await until(lambda: all(other.writing.statistics().tasks_waiting for other in others.local.values()))
            await publish(early.led(0), 1)
            await early.led(0).reshape(early.led(0).log.roll)
            written.set()
            await until(lambda: done or broker.decisions.waiting)
        await until(lambda: held and done)
        assert done[0].state is JobState.COMMITTED
        copy(held[0].folder, tmp_path / "restored")
    if damaged:
        path = tmp_path / "restored" / "staging" / f"{tokens[0]}.staged"
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    async with running(tmp_path / "restored") as broker:
        await until(lambda: not broker.staging.list())
        found = [await jobs_values(broker.topic(name).led(0)) for name in ("early", "late")]
        assert found == ([[], []] if damaged else [[b"j:a"], [b"j:a"]])


async def end(producer: Producer, ended: trio.Event) -> None:
    await producer.end(commit=True)
    ended.set()


def copy(held: Path, data: Path) -> None:
    """Copies of each file that the backup holds as many bytes as the manifest says."""
    for name, size in json.loads((held / MANIFEST).read_bytes())["files"]:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes((held / name).read_bytes()[:size])


@trio_test
@pytest.mark.parametrize(("kind", "name"), [(Path, "mkdir"), (os, "link"), (Path, "write_text")])
async def test_a_disk_that_refuses_a_backup_is_told_of(
    kind: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        await broker.create_topic("t", 1, {})

        def refuse(*_: object, **more: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr(kind, name, refuse)
            with pytest.raises(StorageError, match="No space left"):
                await broker.hold_backup()
        assert not [path for path in (tmp_path / "backup").glob("*") if path.is_dir()]
        assert broker.decisions.holds == 0
        assert (await broker.hold_backup()).files


@trio_test
async def test_a_log_that_takes_no_more_events_is_backed_up_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a disk begins to fail, a backup is what people want first."""
    async with running(tmp_path / "data", durability="fsync") as broker:
        topic, _ = await broker.create_topic("t", 2, {"segment.bytes": 500})
        for _ in range(20):
            await publish(topic.led(0), 5, [b"k%d" % number for number in range(5)])
        sync = File.fdatasync

        def refuse(file: File) -> None:
            if file.path.parent.name == "t-0":
                raise OSError(errno.EIO, "Input/output error")
            sync(file)

        with monkeypatch.context() as failing:
            failing.setattr(File, "fdatasync", refuse)
            with pytest.raises(StorageError):
                await publish(topic.led(0), 1)
        await publish(topic.led(1), 3)
        held = await broker.hold_backup()
        copy(held.folder, tmp_path / "restored")
    async with running(tmp_path / "restored") as broker:
        first, second = (broker.topic("t").led(index) for index in range(2))
        assert not first.offline
        assert len(await read_all(first)) in (100, 101)
        assert len(await read_all(second)) == 3
        assert await publish(first, 1) in (100, 101)
