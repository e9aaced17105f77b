"""A broker that dies at any step of a staged job: each copy of its folder is what a SIGKILL would have left there."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.staging import publication
from krappy.core.staging import Job, JobState
from krappy.errors import KrappyError, StorageError, UnknownTopic
from krappy.store.log import Log
from krappy.store.staging import StagedFiles, StagingStore
from tests.broker.engine import as_killed, publish, running, until
from tests.broker.staged import begin, commit, files, made, staged, values

KEYS = {0: ["a", "b", "c"], 1: ["d", "e", "f"]}  # by partition: a batch each
EXPECTED = {partition: [f"j:{task}{key}".encode() for task in "01" for key in keys] for partition, keys in KEYS.items()}


class Copies:
    """Copies of the folder before and after each step."""

    def __init__(self, data: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = data
        self.to = to
        self.steps: list[str] = []
        self._monkeypatch = monkeypatch
        self._lock = threading.Lock()

    def path(self, number: int) -> Path:
        return self.to / str(number)

    def take(self, step: str) -> None:
        as_killed(self.data, self.path(len(self.steps)))
        self.steps.append(step)

    def around(self, cls: type, name: str) -> None:
        real: Callable[..., Any] = getattr(cls, name)

        def step(*args: Any, **more: Any) -> Any:
            with self._lock:  # some steps are taken in threads
                self.take(f"before {cls.__name__}.{name}")
                try:
                    return real(*args, **more)
                finally:
                    self.take(f"after {cls.__name__}.{name}")

        self._monkeypatch.setattr(cls, name, step)


async def prepared(broker: LocalBroker) -> list[str]:
    await made(broker, "t", 2)
    tokens = []
    for number in "01":
        task = await begin(broker, "j", number)
        for partition, keys in KEYS.items():
            for key in keys:
                await task.write(number + key, partition=partition)
        tokens.append(await task.seal())
    return tokens


async def there(broker: LocalBroker) -> dict[int, list[bytes | None]]:
    """The committed values by partition. Asserts that the table says the same."""
    found = {}
    for partition in broker.topic("t").local.values():
        assert partition.stability.open == {}
        rows = found[partition.index] = await values(partition)
        await partition.view_wait(None, 30)
        for key in KEYS[partition.index]:
            assert (partition.look_up(f"0{key}".encode()) is not None) == bool(rows)
    return found


def emptied(data: Path) -> bool:
    return not files(data)


@trio_test
async def test_a_crash_at_any_step_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[int, list[bytes]] = {0: [], 1: []}
    async with running(tmp_path / "data", durability="fsync") as broker:
        tokens = await prepared(broker)
        with monkeypatch.context() as patched:
            patched.setattr(publication, "WINDOW", 0)
            copies = Copies(tmp_path / "data", tmp_path / "copies", patched)
            for cls, name in (
                (StagingStore, "put"),
                (StagingStore, "end"),
                (Log, "append"),
                (StagedFiles, "remove"),
            ):
                copies.around(cls, name)
            answer = await commit(broker, "j", *tokens)
            acknowledged = len(copies.steps)
            await until(lambda: not files(tmp_path / "data"))
    assert copies.steps.count("after Log.append") == 12 + 2, "each batch by itself, and a marker for each partition"
    outcomes = set()
    for number, step in enumerate(copies.steps):
        async with running(copies.path(number)) as broker:
            await until(lambda broker=broker: not any(job.state != "Open" for job in broker.staging.list()))
            found = await there(broker)
            assert found in (nothing, EXPECTED), step
            assert found == EXPECTED or number < acknowledged, step
            outcomes.add(bool(found[0]))
            again = await commit(broker, "j", *tokens)
            assert await there(broker) == EXPECTED, step
            assert again.published == answer.published, step
            assert await commit(broker, "j") == again
            await until(partial(emptied, copies.path(number)))
    assert outcomes == {False, True}


async def older_catalog(folder: Path) -> tuple[Path, list[str]]:
    """A data folder whose catalog says that a job is to be committed, and whose logs have the whole job; and the tokens
    of its tasks."""
    async with running(folder / "data", durability="fsync") as broker:
        tokens = await prepared(broker)
        with pytest.MonkeyPatch.context() as patched:
            copies = Copies(folder / "data", folder / "copies", patched)
            copies.around(StagingStore, "put")
            await commit(broker, "j", *tokens)
    decided = copies.path(copies.steps.index("after StagingStore.put"))
    shutil.rmtree(decided / "topics")
    shutil.copytree(folder / "data" / "topics", decided / "topics")
    return decided, tokens


@trio_test
@pytest.mark.parametrize("damaged", [False, True])
async def test_a_catalog_that_is_older_than_the_logs(tmp_path: Path, damaged: bool) -> None:
    """As in a backup, which takes the catalog first. What the logs have is not published again. Where a file of it
    can't be read any more, it is not aborted in one partition and committed in another."""
    decided, tokens = await older_catalog(tmp_path)
    if damaged:
        (decided / "staging" / f"{tokens[1]}.staged").write_bytes(b"")
    async with running(decided) as broker:
        await until(lambda: not broker.staging.list())
        assert await there(broker) == EXPECTED
        assert sorted(each[3:] for each in (await commit(broker, "j")).published) == [(5, 6), (5, 6)]


@trio_test
async def test_an_old_backup_does_not_publish_a_job_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logs have the whole job, its catalog does not say so, and its producers have been silent for long."""
    decided, _ = await older_catalog(tmp_path)
    real, tries = StagingStore.put, []

    def fail_once(store: StagingStore, job: Job, *more: Any) -> Any:
        tries.append(job)
        if len(tries) == 1:
            raise StorageError("the disk refuses once")
        return real(store, job, *more)

    monkeypatch.setattr(StagingStore, "put", fail_once)
    async with running(decided, producer_id_expiration_ms=1) as broker:
        await until(lambda: tries)
        for partition in broker.topic("t").local.values():
            await broker.housekeeper.retain(partition)
        await until(lambda: not broker.staging.list())
        assert await there(broker) == EXPECTED


@trio_test
async def test_a_crash_at_any_step_of_sealing_and_aborting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "data", durability="fsync") as broker:
        await made(broker)
        with monkeypatch.context() as patched:
            copies = Copies(tmp_path / "data", tmp_path / "copies", patched)
            for cls, name in (
                (StagedFiles, "append"),
                (StagedFiles, "sync"),
                (StagedFiles, "remove"),
                (StagingStore, "put"),
                (StagingStore, "end"),
            ):
                copies.around(cls, name)
            token = await staged(broker, "j", "a", "b")
            sealed = len(copies.steps)
            await broker.staging.abort("j")
            aborted = len(copies.steps)
            await until(lambda: not files(tmp_path / "data"))
    for number, step in enumerate(copies.steps):
        async with running(copies.path(number)) as broker:
            try:
                await commit(broker, "j", token)
                outcome = "committed"
            except KrappyError as error:
                outcome = error.name
            rows = await values(broker.topic("t").led(0))
            assert rows == ([b"j:a", b"j:b"] if outcome == "committed" else []), step
            if number < sealed:
                assert outcome in ("committed", "UNKNOWN_STAGING"), step
            elif number < aborted:
                assert outcome in ("committed", "STAGING_FENCED"), step
            else:
                assert outcome == "STAGING_FENCED", step
            if outcome == "UNKNOWN_STAGING":
                assert not files(copies.path(number)), step
            await until(partial(emptied, copies.path(number)))


@trio_test
async def test_a_disk_that_refuses_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the disk takes nothing, then every second append. The publication goes on behind what is there, and ends
    the same."""
    monkeypatch.setattr(publication, "WINDOW", 100)
    monkeypatch.setattr("krappy.broker.staging.staging.RETRY_S", 0)
    real, calls, full = Log.append, 0, True

    def append(self: Log, *args: Any) -> int:
        nonlocal calls
        calls += 1
        if full or calls % 2:
            raise StorageError("no space left on device")
        return real(self, *args)

    async with running(tmp_path) as broker:
        tokens = await prepared(broker)
        monkeypatch.setattr(Log, "append", append)
        assert (await broker.staging.commit("j", tokens, 0))[0].state is JobState.PUBLISHING
        await until(lambda: broker.staging._live["j"].trouble)
        with pytest.raises(StorageError, match="no space"):
            await broker.staging.commit("j", tokens, 0)
        full = False
        job = await commit_patiently(broker, "j", tokens)
        assert await there(broker) == EXPECTED
        assert sorted(each[4] for each in job.published) == [6, 6]


@trio_test
async def test_a_broker_that_stops_does_not_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are drained at a stop: somebody who has work to end must not wait for somebody who has none."""
    async with running(tmp_path) as broker:
        tokens = await prepared(broker)
        tried = 0

        def read(*_: Any) -> Any:
            nonlocal tried
            tried += 1
            raise StorageError("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(StagedFiles, "read", read)
            assert (await broker.staging.commit("j", tokens, 0))[0].state is JobState.PUBLISHING
            await until(lambda: tried)
            broker.begin_stop()
            before = tried
            for _ in range(100):
                await trio.to_thread.run_sync(lambda: None)
            assert tried <= before + 1
    async with running(tmp_path) as broker:
        await commit_patiently(broker, "j", tokens)
        assert await there(broker) == EXPECTED


@trio_test
async def test_a_log_that_has_forgotten_the_producer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after more than ten thousand other producers: what is there in part is aborted, and all of it is published
    anew."""
    monkeypatch.setattr(publication, "WINDOW", 0)
    monkeypatch.setattr("krappy.broker.staging.staging.RETRY_S", 0)
    real, calls = Log.append, 0

    def append(self: Log, *args: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 5:
            self.producers._states.clear()
            raise StorageError("no space left on device")
        return real(self, *args)

    async with running(tmp_path) as broker:
        tokens = await prepared(broker)
        monkeypatch.setattr(Log, "append", append)
        job = await commit_patiently(broker, "j", tokens)
        assert await there(broker) == EXPECTED
        assert sum(each[4] for each in job.published) == 12
        assert any(partition.stability for partition in broker.topic("t").local.values()), "nothing was aborted"
    async with running(tmp_path) as broker:
        assert await there(broker) == EXPECTED


@trio_test
async def test_a_beginning_that_the_disk_refused_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk then takes the batches that follow, which are on their way already; and the log knows nothing of the
    producer yet."""
    monkeypatch.setattr("krappy.broker.staging.staging.RETRY_S", 0)
    real, refused = Log.append, list[Log]()

    def append(self: Log, *args: Any) -> int:
        if self not in refused:
            refused.append(self)
            raise StorageError("no space left on device")
        return real(self, *args)

    async with running(tmp_path) as broker:
        tokens = await prepared(broker)
        monkeypatch.setattr(Log, "append", append)
        job = await commit_patiently(broker, "j", tokens)
        assert await there(broker) == EXPECTED
        assert sorted(each[1:] for each in job.published) == [(0, 0, 5, 6), (1, 0, 5, 6)]


async def commit_patiently(broker: LocalBroker, name: str, tokens: list[str]) -> Any:
    while True:
        try:
            return await commit(broker, name, *tokens)
        except StorageError:
            continue


@trio_test
async def test_a_topic_that_is_deleted_in_the_middle_of_a_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part goes with it; the rest of the job is published."""
    monkeypatch.setattr(publication, "WINDOW", 0)
    async with running(tmp_path) as broker:
        tokens = await prepared(broker)
        tokens.append(await staged(broker, "j", "u", topic="u"))
        real, deleted = Log.append, False

        def append(self: Log, *args: Any) -> int:
            nonlocal deleted
            first = real(self, *args)
            if not deleted:
                deleted = True
                trio_token.run_sync_soon(lambda: broker.spawn(broker.delete_topic, "t"))
            return first

        trio_token = trio.lowlevel.current_trio_token()
        monkeypatch.setattr(Log, "append", append)
        job = await commit(broker, "j", *tokens)
        assert [each[:2] for each in job.published if each[0] == "u"] == [("u", 0)]
        assert await values(broker.topic("u").led(0)) == [b"j:u"]
        await until(lambda: "t" not in broker.topics)
        with pytest.raises(UnknownTopic):
            broker.topic("t")


@trio_test
async def test_readers_beside_a_publication_see_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "WINDOW", 0)
    async with running(tmp_path) as broker:
        tokens = await prepared(broker)
        partition = broker.topic("t").led(0)
        await publish(partition, 1, [b"before"])
        ends = set()
        real = StagingStore.put

        def put(self: StagingStore, job: Any, *more: Any) -> None:
            ends.add((job.state, partition.high_watermark, partition.last_stable_offset))
            real(self, job, *more)

        monkeypatch.setattr(StagingStore, "put", put)
        await commit(broker, "j", *tokens)
        assert ends == {(JobState.PUBLISHING, 1, 1), (JobState.MARKING, 7, 1)}
        assert partition.last_stable_offset == 8
