"""Staged writes as the broker does them: what readers see of a job, and what a restart finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from krappy.core.staging import Job, JobState
from krappy.errors import InvalidRequest, StagingCommitted, StagingFenced, UnknownStaging
from krappy.ports import TransactionalSender
from krappy.records import batch
from krappy.types import TopicPartition
from tests.broker.engine import publish, read_all, running, until
from tests.broker.staged import HOUR, begin, commit, files, made, staged, values


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
        assert [partition.high_watermark for partition in broker.topic("t").local.values()] == [0, 0, 0]
        assert broker.staging.bytes.total == sum(each.size for each in broker.staging.list()) > 0
        job = await commit(broker, "j", *tokens)
        assert job.state is JobState.COMMITTED
        assert sorted(job.published) == [("t", 0, 0, 5, 6), ("t", 1, 0, 5, 6), ("t", 2, 0, 5, 6), ("u", 0, 0, 0, 1)]
        for each in broker.topic("t").local.values():
            expected = [f"j:{number}-{letter}".encode() for number in range(3) for letter in "ab"]
            assert await values(each) == expected
            assert each.last_stable_offset == each.high_watermark == 7  # and the marker
            await each.view_wait(None, 30)
            assert each.look_up(b"2-b") is not None
        await until(lambda: not files(tmp_path))
        assert broker.staging.bytes.total == 0
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
        assert await values(broker.topic("t").led(0)) == [b"j:a"]
        assert partition.high_watermark == 2


@trio_test
async def test_a_job_whose_topic_was_made_anew_is_published_to_the_new_one(tmp_path: Path) -> None:
    for _ in range(2):
        async with running(tmp_path) as broker:
            for _ in range(2):
                partition = await made(broker)
                await commit(broker, "j", await staged(broker, "j", "a"))
                assert await values(partition) == [b"j:a"]
                with pytest.raises(StagingCommitted, match="committed already"):
                    await begin(broker, "j")
                await broker.delete_topic("t")
            await made(broker)
            await begin(broker, "j")  # and the broker stops with it
        async with running(tmp_path) as broker:
            await commit(broker, "j", await staged(broker, "j", "b"))
            assert await values(broker.topic("t").led(0)) == [b"j:b"]
        async with running(tmp_path) as broker:
            with pytest.raises(StagingCommitted, match="committed already"):
                await begin(broker, "j")
            await broker.delete_topic("t")


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
        assert partition.high_watermark == broker.staging.bytes.total == 0
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
    """Writes that are under way when the job is aborted are refused, and leave nothing behind."""
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
            await until(lambda: broker.staging.bytes.total > 50_000)
            await broker.staging.abort("j")
        assert refused == 8
        await until(lambda: not files(tmp_path))
        assert broker.staging.bytes.total == 0


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
        assert broker.staging.bytes.total == size
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
        assert await values(broker.topic("t").led(0)) == [b"j:a", b"j:b"]


@trio_test
async def test_an_empty_job_is_committed_too(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker)
        token = await (await begin(broker, "j")).seal()
        assert (await commit(broker, "j", token)).published == ()
        assert (await commit(broker, "k")).state is JobState.COMMITTED
        with pytest.raises(StagingCommitted):
            await begin(broker, "k")


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
        for at, each in enumerate(broker.topic("t").local.values()):
            found = await values(each)
            expected = [f"{name}:{task}-{row}".encode() for name in answers for task in range(2) for row in range(30)]
            assert sorted(filter(None, found)) == sorted(expected)
            assert each.last_stable_offset == each.high_watermark == (0 if at else publishes) + len(answers) * 61
            rows = {got.offset: got.value for got in await read_all(each)}
            for name, job in answers.items():
                [told] = [published for published in job.published if published.partition == at]
                mine = [offset for offset, value in rows.items() if (value or b"").startswith(f"{name}:".encode())]
                assert (told.first, told.last, told.records) == (mine[0], mine[-1], len(mine))
        await until(lambda: broker.staging.bytes.total == 0)
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
        await partition.publish(data, sender=TransactionalSender("x", False)).wait()
        await commit(broker, "j", await staged(broker, "j", "b"))
        assert partition.last_stable_offset == 0
        await broker.transactions.end("x", producer, epoch, commit=False)
        assert partition.last_stable_offset == partition.high_watermark
        assert await values(partition) == [b"j:b"]
