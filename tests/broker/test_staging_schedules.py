"""Requests about one staged job, all at once, in many schedules: what was acknowledged holds.

A commit that was acknowledged as done has all its events in the log, each once, and an abort none of them; never both.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.partition.partition import Partition
from krappy.broker.staging.publication import Publication
from krappy.core.staging import JobState, PublishedPart, StagedTask
from krappy.errors import KrappyError, StagingCommitted
from krappy.records import batch
from tests import schedules
from tests.broker.engine import running
from tests.broker.staged import HOUR, WAIT, begin, made

ROUNDS = 40


async def committed(partition: Partition) -> list[bytes | None]:
    """The values that a reader of committed events sees."""
    found: list[bytes | None] = []
    at = partition.start_offset
    while at < partition.last_stable_offset:
        span = await partition.read(at, 1 << 20)
        for header, view in batch.split(span.data):
            if not header.is_control and header.count:
                found += batch.decode(view).values
        at = span.next_offset
    return found


async def one_round(broker: LocalBroker, partition: Partition, name: str, chance: random.Random) -> None:
    first, second = await begin(broker, name, "0"), await begin(broker, name, "1")
    await first.write("a", "b")
    await second.write("c")
    token = await first.seal()
    done: dict[str, Any] = {}

    async def commit() -> None:
        job, _, _ = await broker.staging.commit(name, [token], WAIT)
        assert job.state is JobState.COMMITTED
        assert [each.records for each in job.published] == [2], "what it says of itself"
        assert [topic for topic, _ in job.topics] == ["t"]
        done["commit"] = True

    async def seal() -> None:
        done["seal"] = await second.seal()

    async def abort() -> None:
        await broker.staging.abort(name)
        done["abort"] = True

    async def drop() -> None:
        await broker.staging.abort(name, second.id)

    async def stage() -> None:
        await broker.staging.stage("t", name, "2", "1", HOUR, None)

    async def send(request: Any, after: int) -> None:
        for _ in range(after):
            await trio.lowlevel.checkpoint()
        try:
            await request()
        except KrappyError as error:
            done[f"{request.__name__} refused"] = error

    requests = [commit, seal, *chance.sample([abort, drop, stage, seal, commit], 2)]
    async with trio.open_nursery() as nursery:
        for request in requests:
            nursery.start_soon(send, request, chance.randrange(60))
    assert not ("commit" in done and "abort" in done), f"{name}: {done}"
    if "commit" not in done and "abort" not in done:
        await commit()
    values = [value for value in await committed(partition) if value is not None and value.startswith(name.encode())]
    expected = [f"{name}:{key}".encode() for key in "ab"] if "commit" in done else []
    assert values == expected, f"{name}: {done}"
    assert not partition.stability.open


@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_of_a_job_holds(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        async with running(tmp_path, durability="fsync") as broker:
            partition = await made(broker)
            for number in range(ROUNDS):
                await one_round(broker, partition, f"job{number}", chance)
            assert broker.staging.list() == []

    schedules.run(main, seed)


@trio_test
async def test_an_attempt_that_is_late_does_not_touch_a_job_that_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was let in while the job was open, and then waited for the disk. Else the job would be Publishing again."""
    syncing, synced, go_on = trio.Event(), trio.Event(), trio.Event()
    write = Publication.write

    async def write_later(self: Publication) -> list[PublishedPart]:
        await go_on.wait()
        return await write(self)

    async with running(tmp_path) as broker:
        partition = await made(broker)
        first, second = await begin(broker, "j", "0"), await begin(broker, "j", "1")
        await first.write("a")
        await second.write("b")
        token = await first.seal()
        attempt: Any = second.attempt
        sync = attempt.sync

        async def sync_long() -> StagedTask:
            found: StagedTask = await sync()
            syncing.set()
            await synced.wait()
            return found

        async def seal() -> None:
            with pytest.raises(StagingCommitted):
                await second.seal()

        monkeypatch.setattr(attempt, "sync", sync_long)
        monkeypatch.setattr(Publication, "write", write_later)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(seal)
                await syncing.wait()
                job, _, _ = await broker.staging.commit("j", [token], 0)
                assert job.state is JobState.PUBLISHING
                synced.set()
            go_on.set()
            job, _, _ = await broker.staging.commit("j", [token], WAIT)
        assert (job.state, [each.records for each in job.published]) == (JobState.COMMITTED, [1])
        assert await committed(partition) == [b"j:a"]
