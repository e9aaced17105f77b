"""Staged writes of both clients."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

import krappy
from krappy import blocking
from krappy.broker.staging.publishing import LocalPublisher
from krappy.clients.staging import StagedCommit
from krappy.errors import (
    ConfigError,
    InvalidRecord,
    InvalidRequest,
    KrappyError,
    NotLeader,
    RecordTooLarge,
    RequestTimeout,
    StagingCommitted,
    StagingFenced,
    UnknownPartition,
    UnknownStaging,
)
from krappy.testing.running import run_broker
from tests.clients.proxy import Proxy, proxy

KEYS = [f"k{number}" for number in range(5_000)]
VALUES = [f"v{number}".encode() for number in range(5_000)]


def events(client: blocking.Client, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    with client.consumer(topic, start="earliest", end="now") as consumer:
        return [(event.key, event.value) for event in consumer]


def test_a_job_of_two_tasks(address: str, topic: str) -> None:
    job = f"job of {topic}"
    seen: list[tuple[int, int]] = []
    with blocking.connect(address) as client:
        client.create_topic(topic, 3)
        tokens = []
        for task in range(2):
            with client.stage(topic, job=job, task=task, attempt=0, compression="lz4") as stage:
                stage.send_columns(KEYS, VALUES, headers=[[("task", b"%d" % task)]] * len(KEYS), timestamps=1_000)
                stage.send(None, key="gone", partition=1)
                stage.flush()
                tokens.append(stage.seal())
                assert stage.seal() == tokens[-1]
                with pytest.raises(InvalidRequest, match="sealed"):
                    stage.send(b"more")
        [found] = [each for each in client.staged_jobs() if each.job == job]
        assert (found.state, found.attempts, found.sealed) == ("Open", 2, 2)
        assert found.size > 0
        assert events(client, topic) == []
        answer = client.commit_staged(job, tokens, progress=lambda done, total: seen.append((done, total)))
        assert answer.records == 2 * (len(KEYS) + 1)
        assert {each.partition for each in answer.partitions} == {0, 1, 2}
        assert len(events(client, topic)) == answer.records
        assert client.commit_staged(job, []) == answer
        assert seen
        entry = client.table(topic).get("k7")
        assert entry is not None
        assert (entry.value, entry.timestamp, entry.headers) == (b"v7", 1_000, (("task", b"1"),))
        deleted = client.table(topic).get("gone", partition=1)
        assert deleted is not None
        assert deleted.deleted
        with pytest.raises(StagingCommitted), client.stage(topic, job=job, task=0, attempt=1):
            pass
        with pytest.raises(StagingCommitted):
            client.abort_staged(job)


def test_leaving_without_a_seal_drops_the_attempt(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        with client.stage(topic, job=topic, task=0, attempt=0) as stage:
            stage.send(b"v", key=b"k")
            stage.flush()
        with client.stage(topic, job=topic, task=0, attempt=1) as stage:  # told in order on one connection
            token = stage.seal()
        [found] = [each for each in client.staged_jobs() if each.job == topic]
        assert (found.attempts, found.size) == (1, 0)
        assert client.commit_staged(topic, [token]) == StagedCommit(topic, [])


def test_an_attempt_that_is_not_whole_is_not_sealed(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        client.create_topic(topic, 1, {"max.message.bytes": 2_000, "cleanup.policy": "compact"})
        with client.stage(topic, job=topic, task=0, attempt=0) as stage:
            stage.send(b"v", key=b"a")
            stage.send(b"v" * 5_000, key=b"b")
            with pytest.raises(RecordTooLarge):
                stage.flush()
            with pytest.raises(KrappyError):
                stage.seal()
        with client.stage(topic, job=topic, task=0, attempt=1) as stage:
            stage.send(b"without a key")
            with pytest.raises(InvalidRecord):
                stage.flush()
            stage.send(b"v", key=b"c")
            with pytest.raises((InvalidRequest, UnknownStaging)):
                stage.seal()
        with client.stage(topic, job=topic, task=0, attempt=2) as stage:
            with pytest.raises(UnknownPartition):
                stage.send(b"v", key=b"k", partition=1)  # nothing of this was taken
            stage.send(b"v", key=b"k")
            client.commit_staged(topic, [stage.seal()])
        assert events(client, topic) == [(b"k", b"v")]


def test_an_abort_fences_who_is_writing(address: str, topic: str) -> None:
    with blocking.connect(address) as client, blocking.connect(address) as other:
        with client.stage(topic, job=topic, task=0, attempt=0) as stage:
            stage.send(b"v", key=b"k")
            stage.flush()
            other.abort_staged(topic)
            stage.send(b"v", key=b"l")
            with pytest.raises(StagingFenced):
                stage.seal()
        with pytest.raises(StagingFenced), client.stage(topic, job=topic, task=0, attempt=1):
            pass
        with pytest.raises(StagingFenced):
            client.commit_staged(topic, [])
        assert topic not in [each.job for each in other.staged_jobs()]


def test_what_is_refused_beforehand(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        for ttl in (0, float("inf"), float("nan")):
            with pytest.raises(ConfigError, match="ttl="), client.stage(topic, job=topic, task=0, attempt=0, ttl=ttl):
                pass
        with pytest.raises(InvalidRequest, match="name of a job"), client.stage(topic, job="", task=0, attempt=0):
            pass
        with pytest.raises(UnknownStaging):
            client.commit_staged(topic, ["nothing"])
        stage = client.stage(topic, job=topic, task=0, attempt=0)
        with pytest.raises(KrappyError, match="use `with`"):
            stage.send(b"v")
        assert topic not in [each.name for each in client.topics()]


def test_lost_connections(lossy: Proxy, address: str, topic: str) -> None:
    """Whatever is lost on the way is sent again, and it is staged and published once."""
    with blocking.connect(lossy.address, timeout=30) as client, blocking.connect(address) as other:
        client.create_topic(topic, 2)
        done = threading.Event()

        def cut() -> None:
            for round_ in range(8):
                if done.wait(0.03):
                    return
                if round_ % 2:
                    lossy.deafen()
                    done.wait(0.02)
                lossy.cut()

        for task in range(2):
            cutter = threading.Thread(target=cut)
            cutter.start()
            with client.stage(topic, job=topic, task=task, attempt=0, batch_bytes=2_000) as stage:
                for first in range(0, 5_000, 500):
                    stage.send_columns(KEYS[first : first + 500], VALUES[first : first + 500])
                token = stage.seal()
            lossy.deafen()
            threading.Timer(0.05, lossy.cut).start()
            answer = client.commit_staged(f"{topic} {task}", [])
            assert answer.records == 0
            done.set()
            cutter.join()
            done.clear()
            if task == 0:
                first_token = token
        lossy.deafen()
        threading.Timer(0.05, lossy.cut).start()
        answer = client.commit_staged(topic, [first_token, token])
        assert answer.records == 10_000
        assert sorted(events(other, topic)) == sorted(
            2 * [(key.encode(), value) for key, value in zip(KEYS, VALUES, strict=True)]
        )


def test_a_broker_that_is_started_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ExitStack() as broker, run_broker(tmp_path / "other", durability="os") as other, proxy(other.address) as link:
        link.to = broker.enter_context(run_broker(data, durability="os")).address
        with blocking.connect(link.address) as client:
            with client.stage("t", job="j", task=0, attempt=0) as stage:
                stage.send(b"v", key=b"sealed")
                token = stage.seal()
            with client.stage("t", job="j", task=1, attempt=0) as stage:
                stage.send(b"v", key=b"lost")
                stage.flush()
                link.refuse()
                broker.close()
                with run_broker(data, durability="os") as second:
                    link.to = second.address
                    link.refuse(False)
                    stage.send(b"v", key=b"lost too")
                    with pytest.raises(UnknownStaging, match="stage it again"):
                        stage.seal()
                    assert client.commit_staged("j", [token]).records == 1
                    assert events(client, "t") == [(b"sealed", b"v")]


def test_a_commit_that_has_no_time(address: str, topic: str, lossy: Proxy) -> None:
    with blocking.connect(lossy.address) as client, blocking.connect(address) as other:
        with client.stage(topic, job=topic, task=0, attempt=0) as stage:
            stage.send(b"v", key=b"k")
            token = stage.seal()
        lossy.deafen()
        with pytest.raises(RequestTimeout):
            client.commit_staged(topic, [token], timeout=0.2)
        assert other.commit_staged(topic, [token]).records == 1  # the broker may have finished the job by itself


@pytest.mark.anyio
async def test_the_async_client(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, 2)
        tokens: dict[int, str] = {}

        async def work(task: int) -> None:
            async with client.stage(topic, job=topic, task=task, attempt="a") as stage:
                await stage.send_columns(KEYS, VALUES)
                await stage.send(b"last", key=f"last-{task}")
                tokens[task] = await stage.seal()

        async with anyio.create_task_group() as tasks:
            for task in range(3):
                tasks.start_soon(work, task)
        answer = await client.commit_staged(topic, tokens.values())
        assert answer.records == 3 * 5_001
        assert await client.commit_staged(topic, tokens.values()) == answer
        with pytest.raises(StagingCommitted):
            async with client.stage(topic, job=topic, task=0, attempt=1):
                pass
        await client.abort_staged(f"{topic}-2")
        with pytest.raises(StagingFenced):
            async with client.stage(topic, job=f"{topic}-2", task=0, attempt=1):
                pass
        entry = await client.table(topic).get("last-2")
        assert entry is not None
        assert topic not in [job.job for job in await client.staged_jobs()]


@pytest.mark.anyio
async def test_cancelling_a_commit_does_not_stop_it(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        async with client.stage(topic, job=topic, task=0, attempt=0) as stage:
            await stage.send_columns(KEYS, VALUES)
            token = await stage.seal()
        with anyio.move_on_after(0):
            await client.commit_staged(topic, [token])
        assert (await client.commit_staged(topic, [token])).records == len(KEYS)


def test_a_commit_waits_while_another_broker_leads_a_partition_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator of the job is told so while the leader changes, and tries again. It stays the one to ask."""
    carry_out, tries = LocalPublisher.carry_out, count()

    async def moving(publisher: LocalPublisher, *given: Any) -> None:
        if next(tries) < 3:
            raise NotLeader("t-0: broker 3 leads it", topic="t", partition=0, leader=3, leader_epoch=2)
        await carry_out(publisher, *given)

    monkeypatch.setattr(LocalPublisher, "carry_out", moving)
    with run_broker(tmp_path / "data") as broker, blocking.connect(broker.address, timeout=5) as client:
        client.create_topic("t", 1)
        with client.stage("t", job="j", task=0, attempt=0) as stage:
            stage.send(b"x")
            token = stage.seal()
        assert client.commit_staged("j", [token]).records == 1  # by several requests, each of which waits for a while
        assert next(tries) == 4
