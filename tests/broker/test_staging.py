"""Staged writes as the broker does them: what readers see of a job, and what a restart finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy import batch
from krappy.broker.broker import Broker
from krappy.broker.partition import Partition
from krappy.broker.staged_attempt import Attempt
from krappy.core.staging import Job, Staging, State
from krappy.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidRequest,
    InvalidTransaction,
    OutOfOrderSequence,
    RecordTooLarge,
    StagingCommitted,
    StagingExpired,
    StagingFenced,
    StagingFull,
    UnknownPartition,
    UnknownStaging,
    UnknownTopic,
)
from krappy.ports import StageOpened
from krappy.types import TopicPartition
from tests.broker.engine import publish, read_all, running, until

HOUR = 3_600_000
WAIT = 60_000  # ms that a commit may take here


class Task:
    """An attempt, as a client of the broker's parts."""

    def __init__(self, broker: Broker, job: str, opened: StageOpened) -> None:
        self.broker = broker
        self.job = job
        self.id = opened.id
        self.attempt = opened.attempt
        self.producer = opened.producer_id
        self.records = 0
        self.sequences: dict[int, int] = {}

    def batch(self, partition: int, keys: Sequence[bytes | None], values: Sequence[bytes | None], **more: Any) -> bytes:
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = sequence + len(values)
        return batch.encode(
            keys,
            values,
            timestamps=1_000,
            producer_id=self.producer,
            producer_epoch=0,
            base_sequence=sequence,
            **more,
        )

    async def write(self, *keys: str, partition: int = 0) -> Task:
        data = self.batch(partition, [key.encode() for key in keys], [f"{self.job}:{key}".encode() for key in keys])
        await self.attempt.publish(partition, data).wait()
        self.records += len(keys)
        return self

    async def seal(self) -> str:
        return await self.broker.staging.seal(self.job, self.id, self.records)


async def begin(broker: Broker, job: str, task: str = "0", topic: str = "t", attempt: str = "1") -> Task:
    return Task(broker, job, await broker.staging.stage(topic, job, task, attempt, HOUR, None))


async def commit(broker: Broker, job: str, *tokens: str) -> Job:
    done, _, _ = await broker.staging.commit(job, tokens, WAIT)
    return done


async def staged(broker: Broker, job: str, *keys: str, **where: Any) -> str:
    """The token of an attempt with these keys."""
    return await (await (await begin(broker, job, **where)).write(*keys)).seal()


async def values(partition: Partition) -> list[bytes | None]:
    return [got.value for got in await read_all(partition) if got.value is not None and b":" in got.value]


async def made(broker: Broker, name: str = "t", partitions: int = 1, **config: Any) -> Partition:
    topic, _ = await broker.create_topic(name, partitions, config)
    return topic.partitions[0]


def files(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "staging").iterdir())


@trio_test
async def test_a_job_appears_at_once_in_every_partition_and_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker, "t", 3)
        await made(broker, "u")
        tokens = []
        for number in range(3):
            task = await begin(broker, "j", str(number))
            for partition in range(3):
                await task.write(f"{number}-a", f"{number}-b", partition=partition)
            tokens.append(await task.seal())
        tokens.append(await staged(broker, "j", "x", topic="u"))
        assert [partition.high_watermark for partition in broker.topic("t").partitions] == [0, 0, 0]
        assert broker.staging.used == sum(each.size for each in broker.staging.list()) > 0
        job = await commit(broker, "j", *tokens)
        assert job.state is State.COMMITTED
        assert sorted(job.published) == [("t", 0, 0, 5, 6), ("t", 1, 0, 5, 6), ("t", 2, 0, 5, 6), ("u", 0, 0, 0, 1)]
        for each in broker.topic("t").partitions:
            expected = [f"j:{number}-{letter}".encode() for number in range(3) for letter in "ab"]
            assert await values(each) == expected
            assert each.last_stable_offset == each.high_watermark == 7  # and the marker
            await each.view_wait(None, 30)
            assert each.look_up(b"2-b") is not None
        await until(lambda: not files(tmp_path))
        assert broker.staging.used == 0
        assert broker.staging.list() == []


@trio_test
async def test_a_job_is_published_once_however_often_it_is_committed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        token = await staged(broker, "j", "a")
        first = await commit(broker, "j", token)
        for tokens in ([token], [], ["nonsense"]):
            assert await commit(broker, "j", *tokens) == first
        with pytest.raises(StagingCommitted, match="committed already"):
            await begin(broker, "j")
        with pytest.raises(StagingCommitted, match="is published"):
            await broker.staging.abort("j")
    async with running(tmp_path) as broker:
        assert await commit(broker, "j", token) == first
        assert await values(broker.topic("t").partition(0)) == [b"j:a"]
        assert partition.high_watermark == 2


@trio_test
async def test_of_two_attempts_of_a_task_one_is_published(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        tokens = [await staged(broker, "j", f"attempt-{number}", attempt=str(number)) for number in range(2)]
        unsealed = await (await begin(broker, "j", "1")).write("never")
        with pytest.raises(InvalidRequest, match="task '0' would be published twice"):
            await commit(broker, "j", *tokens)
        with pytest.raises(InvalidRequest, match="named twice"):
            await commit(broker, "j", tokens[0], tokens[0])
        with pytest.raises(InvalidRequest, match="not sealed"):
            await commit(broker, "j", tokens[0], unsealed.id)
        with pytest.raises(UnknownStaging, match="staged nothing under the token"):
            await commit(broker, "j", tokens[0], "other")
        await commit(broker, "j", tokens[1])
        assert await values(partition) == [b"j:attempt-1"]
        with pytest.raises(StagingCommitted):
            await unsealed.write("late")
        await until(lambda: not files(tmp_path))


@trio_test
async def test_the_token_of_another_job_is_unknown(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker)
        token = await staged(broker, "mine", "a")
        await staged(broker, "other", "b")
        with pytest.raises(UnknownStaging):
            await commit(broker, "other", token)
        with pytest.raises(UnknownStaging):
            await commit(broker, "third", token)
        with pytest.raises(UnknownStaging):
            await broker.staging.seal("other", token, 1)


@trio_test
async def test_an_abort_drops_and_fences(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        token = await staged(broker, "j", "a")
        writing = await (await begin(broker, "j", "1")).write("b")
        await broker.staging.abort("j")
        await broker.staging.abort("j")
        for refused in (
            writing.write("c"),
            writing.seal(),
            begin(broker, "j", "2"),
            commit(broker, "j", token),
            commit(broker, "j"),
        ):
            with pytest.raises(StagingFenced, match="run it again under another job id"):
                await refused
        await until(lambda: not files(tmp_path))
        assert partition.high_watermark == broker.staging.used == 0
    async with running(tmp_path) as broker:
        with pytest.raises(StagingFenced):
            await begin(broker, "j")


@trio_test
async def test_an_abort_before_anything_was_written_fences_too(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker)
        await broker.staging.abort("j")
        with pytest.raises(StagingFenced):
            await begin(broker, "j")


@trio_test
async def test_an_abort_beside_writes(tmp_path: Path) -> None:
    """Whatever is under way when the job is aborted is refused, and leaves nothing behind."""
    async with running(tmp_path) as broker:
        await made(broker)
        refused = 0

        async def work(number: int) -> None:
            nonlocal refused
            try:
                task = await begin(broker, "j", str(number))
                while True:
                    await task.write(*(f"{number}-{row}" for row in range(100)))
            except StagingFenced:
                refused += 1

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(work, number)
            await until(lambda: broker.staging.used > 50_000)
            await broker.staging.abort("j")
        assert refused == 8
        await until(lambda: not files(tmp_path))
        assert broker.staging.used == 0


@trio_test
async def test_one_attempt_can_be_dropped_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        kept, gone = await staged(broker, "j", "a"), await staged(broker, "j", "b", task="1")
        await broker.staging.abort("j", gone)
        await broker.staging.abort("j", gone)
        await broker.staging.abort("nobody's", gone)
        with pytest.raises(UnknownStaging):
            await commit(broker, "j", kept, gone)
        await until(lambda: len(files(tmp_path)) == 1)
        await commit(broker, "j", kept)
        assert await values(partition) == [b"j:a"]


@trio_test
async def test_sealed_attempts_outlive_a_restart_and_others_do_not(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker)
        token = await staged(broker, "j", "a", "b")
        open_task = await (await begin(broker, "j", "1")).write("c")
        size = (tmp_path / "staging" / f"{token}.staged").stat().st_size
    async with running(tmp_path) as broker:
        assert files(tmp_path) == [f"{token}.staged"]
        assert broker.staging.used == size
        [job] = broker.staging.list()
        assert (job.job, job.state, job.attempts, job.sealed, job.size) == ("j", "Open", 1, 1, size)
        for gone in (
            broker.staging.seal("j", open_task.id, 1),
            broker.staging.stage("t", "j", "1", "1", HOUR, open_task.id),
        ):
            with pytest.raises(UnknownStaging, match="stage it again"):
                await gone
        assert await broker.staging.seal("j", token, 2) == token
        again = await broker.staging.stage("t", "j", "0", "1", HOUR, token)
        with pytest.raises(InvalidRequest, match="sealed"):
            again.attempt.publish(0, b"")
        await commit(broker, "j", token)
        assert await values(broker.topic("t").partition(0)) == [b"j:a", b"j:b"]


@trio_test
async def test_what_comes_after_the_sync_is_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another connection of a sender that has lost count: it is answered, but it is not on disk."""
    async with running(tmp_path) as broker:
        partition = await made(broker)
        task = await (await begin(broker, "j")).write("a")
        sync = Attempt.sync

        async def synced(attempt: Attempt) -> Staging:
            found = await sync(attempt)
            await task.write("b")
            return found

        monkeypatch.setattr(Attempt, "sync", synced)
        with pytest.raises(InvalidRequest, match="2 records were to be sealed, and 1 are staged"):
            await broker.staging.seal("j", task.id, 2)
        token = await broker.staging.seal("j", task.id, 2)
        await commit(broker, "j", token)
        assert await values(partition) == [b"j:a", b"j:b"]


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
async def test_a_silent_job_expires_and_a_busy_one_does_not(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        now = broker.now_ms()
        broker.now_ms = lambda: now  # type: ignore[method-assign]
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
        assert (await commit(broker, "silent")).published != ()  # remembered for a week
        now += 1
        await broker.staging.tend()
        assert (await commit(broker, "silent")).published == ()  # and then as good as new


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
        await until(lambda: broker.staging.used == 0)
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
        assert broker.topic("t").partition(0).stability.open == {}


@trio_test
async def test_nobody_else_writes_under_the_producer_id_of_a_publication(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        broker.staging._owners.add(77)
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
                await partition.publish(stranger).wait()


@trio_test
async def test_an_empty_job_is_committed_too(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker)
        token = await (await begin(broker, "j")).seal()
        assert (await commit(broker, "j", token)).published == ()
        assert (await commit(broker, "k")).state is State.COMMITTED
        with pytest.raises(StagingCommitted):
            await begin(broker, "k")


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
        assert job.state is State.PUBLISHING
    async with running(tmp_path) as broker:
        job = await commit(broker, "j")
        assert sorted(each[1:] for each in job.published) == [(0, 0, 9_999, 10_000), (1, 0, 9_999, 10_000)]
        for each in broker.topic("t").partitions:
            assert await values(each) == [f"j:{number}-{row}".encode() for number in range(20) for row in range(500)]


@trio_test
async def test_many_jobs_beside_each_other_and_beside_publishes(tmp_path: Path) -> None:
    jobs, publishes = 12, 40
    async with running(tmp_path) as broker:
        partition = await made(broker, "t", 2)
        answers: dict[str, Job] = {}

        async def run(number: int) -> None:
            name = f"j{number}"
            tokens = []
            for task in range(2):
                attempt = await begin(broker, name, str(task))
                for at in range(2):
                    await attempt.write(*(f"{task}-{row}" for row in range(30)), partition=at)
                tokens.append(await attempt.seal())
            if number % 4:
                answers[name] = await commit(broker, name, *tokens)
            else:
                await broker.staging.abort(name)

        async def write() -> None:
            for number in range(publishes):
                await publish(partition, 1, [b"beside-%d" % number])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for number in range(jobs):
                nursery.start_soon(run, number)
        for at, each in enumerate(broker.topic("t").partitions):
            found = await values(each)
            expected = [f"{name}:{task}-{row}".encode() for name in answers for task in range(2) for row in range(30)]
            assert sorted(filter(None, found)) == sorted(expected)
            assert each.last_stable_offset == each.high_watermark == (0 if at else publishes) + len(answers) * 61
            rows = {got.offset: got.value for got in await read_all(each)}
            for name, job in answers.items():
                [told] = [published for published in job.published if published.partition == at]
                mine = [offset for offset, value in rows.items() if (value or b"").startswith(f"{name}:".encode())]
                assert (told.first, told.last, told.records) == (mine[0], mine[-1], len(mine))
        await until(lambda: broker.staging.used == 0)
        assert broker.staging.list() == []


@trio_test
async def test_a_transaction_of_a_client_and_a_job_in_one_partition(tmp_path: Path) -> None:
    """Each is decided by itself; readers get what is behind the older one when that has ended."""
    async with running(tmp_path) as broker:
        partition = await made(broker)
        at = TopicPartition("t", 0)
        producer, epoch = await broker.transactions.init_producer("x", 60_000)
        await broker.transactions.add_partitions("x", producer, epoch, [at])
        data = batch.encode(
            [b"a"],
            [b"x:a"],
            timestamps=1,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=True,
        )
        await partition.publish(data).wait()
        await commit(broker, "j", await staged(broker, "j", "b"))
        assert partition.last_stable_offset == 0
        await broker.transactions.end("x", producer, epoch, commit=False)
        assert partition.last_stable_offset == partition.high_watermark
        assert await values(partition) == [b"j:b"]
