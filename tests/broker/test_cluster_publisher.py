"""In which order the coordinator of a staged job makes things durable, and has other brokers do theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trio.testing import trio_test

from krappy.broker.staging.cluster_publishing import ClusterPublisher
from krappy.broker.staging.live_job import LiveJob
from krappy.core.staging import Job, JobState
from krappy.core.transactions import Transaction

Step = tuple[str, int]  # what was done, and under which producer id


class Steps:
    """Stands for what the publisher works with, and notes what it does."""

    epoch = 4

    def __init__(self) -> None:
        self.done: list[Step] = []
        self._ids = iter(range(100, 200))

    def check(self, name: str) -> None: ...

    async def put(self, job: Job) -> None:
        self.done.append((job.state.value, job.producer_id))

    async def write(self, ended: Transaction, commit: bool, coordinator_epoch: int) -> None:
        assert coordinator_epoch == self.epoch
        self.done.append(("commit" if commit else "abort", ended.producer_id))

    async def new_own(self, partitions: Any) -> int:
        return next(self._ids)

    async def save_end(self, live: LiveJob, job: Job, *, sync: bool = True) -> None:
        self.done.append((job.state.value, job.producer_id))

    def over(self, live: LiveJob) -> None: ...

    async def wait(self) -> None: ...


async def published(job: Job, *, tried: bool) -> list[Step]:
    steps: Any = Steps()
    runtime: Any = SimpleNamespace(
        image=SimpleNamespace(names={}, topics={}), decisions=steps, clock=SimpleNamespace(steady_ms=lambda: 0)
    )
    live = LiveJob(job, steps)
    live.tried = tried
    await ClusterPublisher(runtime, steps, steps, steps).carry_out(live, steps)
    return list(steps.done)


@trio_test
async def test_a_try_of_an_earlier_coordinator_is_aborted_once_its_commit_can_not_come_up_any_more() -> None:
    """That coordinator may have written "Marking" to its own log and to a follower's, where the next one would find
    it."""
    assert await published(Job("j", JobState.PUBLISHING, producer_id=7), tried=True) == [
        ("Publishing", 7),
        ("abort", 7),
        ("Publishing", 100),
        ("Marking", 100),
        ("commit", 100),
        ("Committed", 100),
    ]


@trio_test
async def test_what_is_to_be_committed_is_only_committed() -> None:
    job = Job("j", JobState.MARKING, producer_id=7)
    assert await published(job, tried=True) == [("commit", 7), ("Committed", 7)]


@trio_test
async def test_a_first_try_aborts_nothing() -> None:
    job = Job("j", JobState.PUBLISHING, producer_id=7)
    assert await published(job, tried=False) == [("Marking", 7), ("commit", 7), ("Committed", 7)]
