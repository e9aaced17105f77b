"""Staged writes that go wrong: what is refused, expires, is damaged, or meets a broker that stops."""

from __future__ import annotations

import errno
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.staging import staging
from krappy.broker.staging.keeping import LocalJobs
from krappy.broker.staging.live_job import LiveJob
from krappy.broker.staging.publication import Publication
from krappy.broker.staging.staged_attempt import StagedAttempt
from krappy.broker.upkeep import room
from krappy.core.staging import JobState, StagedTask
from krappy.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidRequest,
    InvalidTransaction,
    OutOfOrderSequence,
    Overloaded,
    RecordTooLarge,
    StagingExpired,
    StagingFenced,
    StagingFull,
    StorageError,
    UnknownPartition,
    UnknownStaging,
    UnknownTopic,
)
from krappy.ports import TransactionalSender
from krappy.records import batch
from krappy.store.disk import Disk, File
from krappy.store.staging import SyncFailed
from tests.broker.engine import asks, publish, running, until
from tests.broker.staged import HOUR, Task, begin, commit, files, made, staged, values


@trio_test
async def test_what_is_staged_is_checked_as_what_is_published(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker, "t", 1, **{"cleanup.policy": "compact", "max.message.bytes": 1_000})
        task = await begin(broker, "j")
        for error, partition, data in (
            (InvalidRecord, 0, batch.encode(None, [b"x"], timestamps=1)),
            (RecordTooLarge, 0, batch.encode([b"k"], [b"x" * 2_000], timestamps=1)),
            (CorruptBatch, 0, b"nonsense"),
            (CorruptBatch, 0, batch.encode([b"k"], [b"x"], timestamps=1) + b"more"),
            (InvalidRecord, 0, batch.encode([b"k"], [b"x"], timestamps=1, control=True)),
            (InvalidRecord, 0, batch.encode([b"k"], [b"x"], timestamps=1, transactional=True)),
            (UnknownPartition, 1, batch.encode([b"k"], [b"x"], timestamps=1)),
        ):
            with pytest.raises(error):
                task.attempt.publish(partition, data)
        await task.write("a")
        with pytest.raises(InvalidRequest, match="2 records were to be sealed, and 1 are staged"):
            await broker.staging.seal("j", task.id, 2)
        await task.seal()
        with pytest.raises(InvalidRequest, match="sealed"):
            await task.write("b")
        broker.config = replace(broker.config, auto_create_topics=False)
        with pytest.raises(UnknownTopic):
            await begin(broker, "j", topic="nowhere")
        for job, name, ttl in (("", "0", 1), ("x" * 1_001, "0", 1), ("k", "", 1), ("k", "0", 0), ("k", "0", 2**40)):
            with pytest.raises(InvalidRequest):
                await broker.staging.stage("t", job, name, "1", ttl, None)


@trio_test
async def test_a_batch_that_is_sent_again_is_staged_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        task = await begin(broker, "j")
        first, second = (task.batch(0, [key], [b"j:" + key]) for key in (b"a", b"b"))
        third = task.batch(0, [b"c"], [b"j:c"])
        answers = [task.attempt.publish(0, data) for data in (first, first, second, first, second)]
        assert [(await each.wait()).offset for each in answers] == [0, 0, 1, 0, 1]
        again = await broker.staging.stage("t", "j", "0", "1", HOUR, task.id)
        assert (again.producer_id, again.id) == (task.producer, task.id)
        task.sequences[0] = 7
        with pytest.raises(OutOfOrderSequence):
            await again.attempt.publish(0, task.batch(0, [b"x"], [b"j:x"])).wait()
        assert (await again.attempt.publish(0, third).wait()).offset == 2
        await commit(broker, "j", await broker.staging.seal("j", task.id, 3))
        assert await values(partition) == [b"j:a", b"j:b", b"j:c"]


@trio_test
async def test_nothing_is_staged_on_a_full_disk_and_nothing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows a refused batch is refused as well, although there may be room again by then."""
    monkeypatch.setattr(room, "LOOK_S", 3600)
    async with running(tmp_path) as broker:
        partition = await made(broker)
        task = await begin(broker, "j")
        first, second = (task.batch(0, [key], [b"j:" + key]) for key in (b"a", b"b"))
        broker.room._left = len(first)  # an event may be stored twice
        with pytest.raises(StorageError, match="is full"):
            task.attempt.publish(0, first)
        assert broker.staging.bytes.total == 0
        await broker.room.look()
        with pytest.raises(OutOfOrderSequence, match="starts with sequence 1, not 0"):
            await task.attempt.publish(0, second).wait()
        answers = [task.attempt.publish(0, data) for data in (first, second)]
        assert [(await each.wait()).offset for each in answers] == [0, 1]
        await commit(broker, "j", await broker.staging.seal("j", task.id, 2))
        assert await values(partition) == [b"j:a", b"j:b"]


@trio_test
async def test_a_publication_leaves_the_last_room_on_the_disk_to_deletions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk no publication is decided, so that the job can be aborted. A decided job waits for room."""
    monkeypatch.setattr(room, "LOOK_S", 3600)
    monkeypatch.setattr("krappy.broker.staging.staging.RETRY_S", 0.01)
    blocks, read = Publication._blocks, list[Any]()

    def noted(*args: Any) -> Any:
        read.append(blocks(*args))
        return read[-1]

    monkeypatch.setattr(Publication, "_blocks", noted)
    async with running(tmp_path) as broker:
        partition = await made(broker)
        tokens = {name: await staged(broker, name, "a", "b") for name in "jk"}
        broker.room._left = -1
        for name, token in tokens.items():
            with pytest.raises(StorageError, match="is full"):
                await commit(broker, name, token)
        assert {each.state for each in broker.staging.list()} == {"Open"}
        await broker.staging.abort("k")
        await broker.room.look()
        broker.room._left = 100  # less than the job needs
        with pytest.raises(StorageError, match="is full"):
            await broker.staging.commit("j", [tokens["j"]], 500)
        assert [each.state for each in broker.staging.list()] == ["Publishing"]
        assert partition.log.end_offset == 0
        assert inspect.getgeneratorstate(read[0]) == inspect.GEN_CLOSED, "its file is still open"
        await broker.room.look()
        await until(lambda: not broker.staging.list())
        assert await values(partition) == [b"j:a", b"j:b"]


@trio_test
async def test_a_silent_job_expires_and_a_busy_one_does_not(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        now = broker.clock.steady_ms()
        broker.clock.steady_ms = lambda: now  # type: ignore[method-assign]
        token = await staged(broker, "silent", "a")
        busy = await (await begin(broker, "busy")).write("a")
        now += HOUR
        await broker.staging.tend()
        assert len(broker.staging.list()) == 2
        await busy.write("b")
        now += 1
        await broker.staging.tend()
        assert [each.job for each in broker.staging.list()] == ["busy"]
        for tokens in ([token], []):
            with pytest.raises(StagingExpired, match="a longer ttl"):
                await commit(broker, "silent", *tokens)
        await until(lambda: len(files(tmp_path)) == 1)
        await commit(broker, "busy", await busy.seal())
        assert await values(partition) == [b"busy:a", b"busy:b"]
        again = await begin(broker, "silent")
        with pytest.raises(UnknownStaging):
            await commit(broker, "silent", token)
        now += 2 * HOUR
        await broker.staging.tend()
        with pytest.raises(StagingExpired):
            await again.seal()
        again = await (await begin(broker, "silent")).write("c")
        await commit(broker, "silent", await again.seal())
        now += 7 * 24 * HOUR
        await broker.staging.tend()
        assert (await commit(broker, "silent")).published != ()  # it is remembered for a week
        now += 1
        await broker.staging.tend()
        assert (await commit(broker, "silent")).published == ()  # then it is as good as new


@trio_test
async def test_the_disk_that_staging_takes_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, staging_bytes=2_000) as broker:
        await made(broker)
        task = await (await begin(broker, "j")).write("a" * 900)
        with pytest.raises(StagingFull, match="staging_bytes"):
            await task.write("b" * 900)
        other = await begin(broker, "k")
        with pytest.raises(StagingFull):
            await other.write("c" * 900)
        task.sequences[0] = 1
        await commit(broker, "j", await task.seal())
        await until(lambda: broker.staging.bytes.total == 0)
        other.sequences.clear()
        await other.write("c" * 900)


@trio_test
async def test_a_topic_that_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker)
        other = await made(broker, "u")
        task = await (await begin(broker, "j")).write("a")
        token = await task.seal()
        writing = await (await begin(broker, "j", "1")).write("b")
        kept = await staged(broker, "j", "c", topic="u")
        await broker.delete_topic("t")
        with pytest.raises(UnknownTopic, match="deleted"):
            await writing.write("d")
        await made(broker)  # another one of that name
        with pytest.raises(UnknownTopic, match="deleted since task '0' staged"):
            await commit(broker, "j", token, kept)
        await commit(broker, "j", kept)
        assert await values(other) == [b"j:c"]


@trio_test
async def test_a_topic_that_became_compacted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker)
        task = await begin(broker, "j")
        await task.attempt.publish(0, task.batch(0, [None], [b"j:a"])).wait()
        task.records = 1
        token = await task.seal()
        await broker.alter_topic("t", {"cleanup.policy": "compact"}, None)
        with pytest.raises(InvalidRecord, match="compact now"):
            await commit(broker, "j", token)


@trio_test
async def test_a_damaged_file_publishes_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    async with running(tmp_path, lambda event, **facts: said.append(event)) as broker:
        partition = await made(broker)
        tokens = [await staged(broker, "j", str(number), task=str(number)) for number in range(3)]
        path = tmp_path / "staging" / f"{tokens[1]}.staged"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        for _ in range(2):
            with pytest.raises(StagingFenced, match="by the broker"):
                await commit(broker, "j", *tokens)
        await until(lambda: partition.last_stable_offset == 2)
        assert await values(partition) == []
        await publish(partition, 1, [b"after"])
        await partition.view_wait(None, 30)
        assert partition.look_up(b"0") is None
        assert "staged_job_failed" in said
    async with running(tmp_path) as broker:
        with pytest.raises(StagingFenced, match="by the broker"):
            await commit(broker, "j", *tokens)
        assert broker.topic("t").led(0).stability.open == {}


@trio_test
async def test_nobody_else_writes_under_the_producer_id_of_a_publication(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        broker.staging.owners.add(77)
        for transactional in (False, True):
            stranger = batch.encode(
                [b"k"],
                [b"v"],
                timestamps=1,
                producer_id=77,
                producer_epoch=0,
                base_sequence=0,
                transactional=transactional,
            )
            with pytest.raises(InvalidTransaction, match="the broker's own"):
                await partition.publish(stranger, sender=TransactionalSender("x", False)).wait()


@trio_test
async def test_a_broker_that_stops_in_the_middle_publishes_after_its_next_start(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker, "t", 2)
        tokens = []
        for number in range(20):
            task = await begin(broker, "j", str(number))
            for partition in range(2):
                await task.write(*(f"{number}-{row}" for row in range(500)), partition=partition)
            tokens.append(await task.seal())
        job, _, _ = await broker.staging.commit("j", tokens, 0)
        assert job.state is JobState.PUBLISHING
    async with running(tmp_path) as broker:
        job = await commit(broker, "j")
        assert sorted(each[1:] for each in job.published) == [(0, 0, 9_999, 10_000), (1, 0, 9_999, 10_000)]
        for each in broker.topic("t").local.values():
            assert await values(each) == [f"j:{number}-{row}".encode() for number in range(20) for row in range(500)]


@trio_test
async def test_what_comes_after_the_sync_is_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a sender that has lost count writes by another connection: the write is answered, but not on disk."""
    async with running(tmp_path) as broker:
        partition = await made(broker)
        task = await (await begin(broker, "j")).write("a")
        sync = StagedAttempt.sync

        async def synced(attempt: StagedAttempt) -> StagedTask:
            found = await sync(attempt)
            await task.write("b")
            return found

        monkeypatch.setattr(StagedAttempt, "sync", synced)
        with pytest.raises(InvalidRequest, match="2 records were to be sealed, and 1 are staged"):
            await broker.staging.seal("j", task.id, 2)
        token = await broker.staging.seal("j", task.id, 2)
        await commit(broker, "j", token)
        assert await values(partition) == [b"j:a", b"j:b"]


@trio_test
@pytest.mark.parametrize(("kind", "name"), [(File, "fdatasync"), (Disk, "fsync_dir")])
async def test_a_sync_that_failed_is_not_tried_again(
    kind: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have dropped the pages, and tells of it only once (fsyncgate): the next sync proves nothing."""
    async with running(tmp_path) as broker:
        partition = await made(broker)
        kept = await (await begin(broker, "j", "1")).write("b")
        token = await kept.seal()
        task = await (await begin(broker, "j")).write("a")

        def refuse(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr(kind, name, refuse)
            with pytest.raises(StorageError, match="Input/output error"):
                await task.seal()
            with pytest.raises(StorageError, match="Input/output error"):
                await kept.seal()
        with pytest.raises(UnknownStaging, match="stage it again"):
            await task.seal()
        with pytest.raises(UnknownStaging, match="stage it again"):
            await task.write("c")
        assert await kept.seal() == token  # it was on disk before
        again = await (await begin(broker, "j", attempt="2")).write("a")
        await commit(broker, "j", token, await again.seal())
        assert await values(partition) == [b"j:b", b"j:a"]
        await until(lambda: broker.staging.bytes.total == 0)


@pytest.mark.parametrize("goes_on", [False, True], ids=["and it is sealed", "and more is staged"])
@trio_test
async def test_a_file_that_was_replaced_by_an_earlier_copy_of_it_is_not_sealed(tmp_path: Path, goes_on: bool) -> None:
    """What follows would be written behind a hole, and the seal would promise what can't be published."""
    async with running(tmp_path) as broker:
        await made(broker, "t", 1)
        task = await (await begin(broker, "j")).write("a")
        [file] = files(tmp_path)
        copy = (tmp_path / "staging" / file).read_bytes()
        await task.write("b")
        (tmp_path / "staging" / file).write_bytes(copy)
        if goes_on:
            with pytest.raises(UnknownStaging, match="stage it again"):
                await task.write("c")
        with pytest.raises(SyncFailed, match="it was replaced"):
            await task.seal()
        with pytest.raises(UnknownStaging, match="stage it again"):
            await task.seal()
        anew = await (await begin(broker, "j", attempt="2")).write("a", "b")
        assert (await commit(broker, "j", await anew.seal())).state is JobState.COMMITTED


@trio_test
async def test_a_seal_and_a_commit_wait_for_a_folder_that_is_away(tmp_path: Path) -> None:
    """The folder is unmounted, say, and comes back as it was. But a file that is then missing in it is lost."""
    async with running(tmp_path) as broker:
        partition = await made(broker)
        task, lost = [await (await begin(broker, "j", each)).write(each) for each in ("a", "b")]
        folder, away = tmp_path / "staging", tmp_path / "away"
        folder.rename(away)
        with pytest.raises(StorageError, match="No such file") as told:
            await task.seal()
        assert not isinstance(told.value, SyncFailed)
        away.rename(folder)
        token = await task.seal()
        (folder / f"{lost.id}.staged").unlink()
        with pytest.raises(SyncFailed, match="No such file"):
            await lost.seal()
        folder.rename(away)
        with pytest.raises(StorageError, match="No such file"):
            await broker.staging.commit("j", [token], 1000)
        away.rename(folder)
        await commit(broker, "j", token)
        assert await values(partition) == [b"j:a"]


@trio_test
async def test_a_seal_without_a_descriptor_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        task = await (await begin(broker, "j")).write("a")

        def refuse(*_: object, **more: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        for name in ("open", "fsync_dir"):
            with monkeypatch.context() as failing:
                failing.setattr(Disk, name, refuse)
                with pytest.raises(StorageError, match="Too many open files"):
                    await task.seal()
        await commit(broker, "j", await task.seal())
        assert await values(partition) == [b"j:a"]


@pytest.mark.parametrize("what", ["jobs", "attempts", "bytes"])
@trio_test
async def test_what_one_user_stages_leaves_room_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(staging, "MAX_JOBS", 4 if what == "jobs" else 100)
    monkeypatch.setattr(staging, "MAX_ATTEMPTS", 4 if what == "attempts" else 100)
    async with running(tmp_path, authorizer="acl", staging_bytes=8_000 if what == "bytes" else 1 << 20) as broker:

        async def stage(number: int) -> Task:
            return await (await begin(broker, f"{number}" if what == "jobs" else "j", f"{number}")).write("a" * 900)

        await made(broker)
        asks("eve")
        there = [await stage(number) for number in range(2)]
        with pytest.raises((Overloaded, StagingFull), match="one user"):
            await stage(2)
        asks("bob")
        await stage(3)
        asks("eve")
        for job in {task.job for task in there}:
            await broker.staging.abort(job)
        await until(lambda: broker.staging.bytes.total < 2_000)
        held = broker.staging
        assert held._jobs.total == len(held._live)
        assert held._attempts.total == sum(len(live.attempts) for live in held._live.values())
        await begin(broker, "again")


@trio_test
async def test_attempts_that_begin_together_are_counted_before_they_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster, an attempt begins once it is committed."""
    monkeypatch.setattr(staging, "MAX_JOBS", 8)
    refused = 0

    async def committed(*_: object) -> None:
        await trio.sleep(0.01)

    monkeypatch.setattr(LocalJobs, "begin_attempt", committed)
    async with running(tmp_path, authorizer="acl") as broker:
        await made(broker)
        asks("eve")

        async def stage(number: int) -> None:
            nonlocal refused
            try:
                await begin(broker, f"{number}")
            except Overloaded:
                refused += 1

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(stage, number)
        held = broker.staging
        assert (refused, held._jobs.total, held._attempts.total) == (16, 4, 4)
        with monkeypatch.context() as failing:
            failing.setattr(LocalJobs, "begin_attempt", _refuse)
            asks("bob")
            with pytest.raises(StorageError):
                await begin(broker, "his")
        assert (held._jobs.total, held._attempts.total) == (4, 4)


@trio_test
async def test_empty_jobs_that_wait_for_their_turn_leave_room_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "MAX_JOBS", 20)
    async with running(tmp_path, authorizer="acl") as broker:
        await made(broker)
        held, there = broker.staging, trio.Event()
        carry_out = held.publisher.carry_out

        async def hang(live: LiveJob, owner: Any) -> None:
            with trio.move_on_after(10):
                await there.wait()
            await carry_out(live, owner)

        monkeypatch.setattr(held.publisher, "carry_out", hang)
        asks("eve")
        for number in range(10):
            await held.commit(f"{number}", [], 0)
        with pytest.raises(Overloaded, match="one user"):
            await held.commit("10", [], 0)
        await held.commit("9", [], 0)  # once more
        asks("bob")
        await begin(broker, "his")
        there.set()
        await until(lambda: held._jobs.total == 1)


@trio_test
async def test_the_jobs_of_one_user_that_can_not_be_published_keep_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those for a topic whose leader is away."""
    async with running(tmp_path, authorizer="acl") as broker:
        partition = await made(broker)
        carry_out, there = broker.staging.publisher.carry_out, trio.Event()

        async def hang(live: LiveJob, owner: Any) -> None:
            if live.job.name.startswith("hers"):
                await there.wait()
            await carry_out(live, owner)

        monkeypatch.setattr(broker.staging.publisher, "carry_out", hang)
        asks("eve")
        for number in range(10):
            task = await (await begin(broker, f"hers-{number}")).write("a")
            await broker.staging.commit(f"hers-{number}", [await task.seal()], 0)
        asks("bob")
        task = await (await begin(broker, "his")).write("b")
        with trio.fail_after(10):
            await commit(broker, "his", await task.seal())
        assert await values(partition) == [b"his:b"]
        there.set()


async def _refuse(*_: object) -> None:
    raise StorageError("no room")
