"""Random requests for one staged job, from tasks and drivers that may lose their answers, compared with what must hold
for any coordinator: one outcome, which all are told; nothing is published twice, or without a seal; and nothing after
an abort."""

from __future__ import annotations

from random import Random

import pytest

from krappy.core import staging as core
from krappy.core.staging import Job, JobState, PublishedPart, StagedTask
from krappy.errors import InvalidRequest, KrappyError, StagingCommitted, StagingExpired, StagingFenced, UnknownStaging

NAME = "j"
MOVES = {  # the only ways from state to state
    (None, JobState.OPEN),
    (None, JobState.ABORTED),
    (None, JobState.PUBLISHING),
    (JobState.OPEN, JobState.OPEN),
    (JobState.OPEN, JobState.PUBLISHING),
    (JobState.OPEN, JobState.ABORTED),
    (JobState.OPEN, JobState.EXPIRED),
    (JobState.EXPIRED, JobState.OPEN),
    (JobState.EXPIRED, JobState.ABORTED),
    (JobState.PUBLISHING, JobState.MARKING),
    (JobState.PUBLISHING, JobState.ABORTED),
    (JobState.MARKING, JobState.COMMITTED),
}


class Coordinated:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0
        self.job: Job | None = None
        self.stagings: dict[str, StagedTask] = {}
        self.number = 0
        self.ever: list[str] = []  # every token that was ever given
        self.published: list[tuple[str, ...]] = []
        self.aborted = False  # an abort was answered

    def take(self, job: Job) -> None:
        """Takes a transition, as if it were on disk."""
        before = None if self.job is None else self.job.state
        if job is self.job:
            return
        assert (before, job.state) in MOVES
        if job.state is JobState.PUBLISHING:
            assert not self.aborted
            chosen = [self.stagings[token] for token in job.tokens]
            assert all(staging.sealed for staging in chosen)
            assert len({staging.task for staging in chosen}) == len(chosen)
            self.published.append(job.tokens)
        if job.state in core.OVER:
            self.stagings.clear()
        self.job = job

    def stage(self) -> None:
        self.take(core.begin(self.job, NAME, self.random.choice([10, 50]), self.now, "t", {"t": b"t"}.get))
        self.number += 1
        id = f"id-{self.number}"
        self.ever.append(id)
        self.stagings[id] = StagedTask(id, "t", b"t", str(self.random.randrange(3)), str(self.number))

    def seal(self) -> None:
        id = self.random.choice([*self.ever, "nonsense"])
        if self.job is None or self.job.state is not JobState.OPEN or id not in self.stagings:
            return
        count = self.random.randrange(3)
        staging = self.stagings[id]
        if not staging.sealed:
            staging = staging._replace(counts=((0, count),), size=10)
        self.stagings[id] = core.seal(staging, self.random.choice([count, count, 9]))
        self.take(self.job._replace(touched_ms=self.now))

    def commit(self) -> None:
        some = [*self.ever[-6:], "nonsense"]
        tokens = [self.random.choice(some) for _ in range(self.random.randrange(1, 4))]
        sealed = [id for id, staging in self.stagings.items() if staging.sealed]
        if self.random.random() < 0.5:
            tokens = sealed[: self.random.randrange(3)] or tokens
        before = self.job
        job = core.commit(before, NAME, tokens, self.stagings, self.now)
        assert before is None or before.state not in core.DECIDED or job is before, "decided twice"
        self.take(job)

    def abort(self) -> None:
        self.take(core.abort(self.job, NAME, self.now))
        self.aborted = True

    def go_on(self) -> None:
        """The publication's next step."""
        if self.job is None:
            return
        if self.job.state is JobState.PUBLISHING:
            if self.random.random() < 0.1:
                self.take(core.fail(self.job, self.now, "damage"))
            else:
                stagings = [self.stagings[token] for token in self.job.tokens]
                self.take(core.written(self.job, [PublishedPart("t", 0, 0, 0, 1)], stagings))
        elif self.job.state is JobState.MARKING:
            self.take(core.complete(self.job, self.now))

    def time(self) -> None:
        self.now += self.random.choice([1, 5, 60])
        if self.job is not None and core.overdue(self.job, self.now):
            self.take(core.expire(self.job, self.now))

    def step(self) -> None:
        refusals = {
            JobState.ABORTED: StagingFenced,
            JobState.EXPIRED: StagingExpired,
            JobState.COMMITTED: StagingCommitted,
            JobState.PUBLISHING: StagingCommitted,
            JobState.MARKING: StagingCommitted,
        }
        run = self.random.choice([self.stage, self.stage, self.seal, self.seal, self.commit, self.time, self.go_on])
        if self.random.random() < 0.02:
            run = self.abort
        before = self.job
        try:
            run()
        except (InvalidRequest, UnknownStaging):
            assert self.job is before
        except KrappyError as error:
            refused = type(error)
            assert self.job is before
            assert before is not None
            assert refused is refusals[before.state]


@pytest.mark.parametrize("seed", range(300))
def test_any_order_of_requests(seed: int) -> None:
    model = Coordinated(Random(seed))
    for _ in range(60):
        model.step()
    assert len(model.published) <= 1


def test_every_end_is_come_to() -> None:
    """Without this, a model that tries nothing would pass."""
    ends = set()
    for seed in range(300):
        model = Coordinated(Random(seed))
        for _ in range(60):
            model.step()
            if model.job is not None:
                ends.add(model.job.state)
    assert ends == set(JobState)
