"""Runs tests/scenarios/staging_*.txt: each is a script of what is asked of staged jobs, and what came of it. Written to
be read in review.

After a change of behaviour: KRAPPY_REWRITE_SCENARIOS=1 pytest tests/core/test_staging_scenarios.py, then read the diff.

A scenario is blocks of command lines, `----`, and what they said and left behind. An attempt is JOB/TASK.ATTEMPT. The
commands:

    stage ATTEMPT [ttl=MS] [topic=t]      an attempt begins
    seal ATTEMPT RECORDS [of=RECORDS]     with so many records in partition 0 (and its sender counts `of`)
    commit JOB ATTEMPT…                   with the tokens of these
    written|complete|fail JOB             what the publication comes to
    abort JOB
    delete|create TOPIC                   then it has another id
    time MS                               passes; what is overdue expires
"""

from __future__ import annotations

from pathlib import Path

import pytest

from krappy.core import staging as core
from krappy.core.staging import Job, JobState, PublishedPart, StagedTask
from krappy.errors import KrappyError
from tests.core.scenarios import check, obey

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("staging_*.txt"))


class Coordinator:
    """Takes every transition at once, as if it were on disk."""

    def __init__(self) -> None:
        self.now = 0
        self.there = {name: name.encode() for name in "tuvw"}  # ids of topics
        self.jobs: dict[str, Job] = {}
        self.stagings: dict[str, dict[str, StagedTask]] = {}  # by job, by attempt: its token

    def run_stage(self, words: list[str], options: dict[str, str]) -> str:
        name, attempt = words[0].split("/")
        topic = options.get("topic", "t")
        ttl = int(options.get("ttl", 1_000))
        job = core.begin(self.jobs.get(name), name, ttl, self.now, topic, self.there.get)
        task, _, number = attempt.partition(".")
        self.stagings.setdefault(name, {})[attempt] = StagedTask(attempt, topic, topic.encode(), task, number)
        return self._keep(job)

    def run_seal(self, words: list[str], options: dict[str, str]) -> str:
        name, attempt = words[0].split("/")
        job, records = self.jobs[name], int(words[1])
        if job.state is not JobState.OPEN:
            raise core.refusal(job)
        staging = self.stagings[name][attempt]
        if not staging.sealed:
            staging = staging._replace(counts=((0, records),), size=100)
        self.stagings[name][attempt] = core.seal(staging, int(options.get("of", records)))
        return self._keep(job._replace(touched_ms=self.now))

    def run_commit(self, words: list[str], options: dict[str, str]) -> str:
        name, *tokens = words
        found = self.jobs.get(name)
        job = core.commit(found, name, tokens, self.stagings.get(name, {}), self.now)
        return "as it was" if job is found else self._keep(job)

    def run_written(self, words: list[str], options: dict[str, str]) -> str:
        job = self.jobs[words[0]]
        count = sum(self.stagings[job.name][token].records for token in job.tokens)
        stagings = [self.stagings[name][token] for name in words[:1] for token in job.tokens]
        return self._keep(core.written(job, [PublishedPart("t", 0, 0, count - 1, count)], stagings))

    def run_delete(self, words: list[str], options: dict[str, str]) -> str:
        del self.there[words[0]]
        return "gone"

    def run_create(self, words: list[str], options: dict[str, str]) -> str:
        self.there[words[0]] = b"another " + words[0].encode()
        return "there"

    def run_complete(self, words: list[str], options: dict[str, str]) -> str:
        return self._keep(core.complete(self.jobs[words[0]], self.now))

    def run_fail(self, words: list[str], options: dict[str, str]) -> str:
        return self._keep(core.fail(self.jobs[words[0]], self.now, "a damaged file"))

    def run_abort(self, words: list[str], options: dict[str, str]) -> str:
        found = self.jobs.get(words[0])
        job = core.abort(found, words[0], self.now)
        return "as it was" if job is found else self._keep(job)

    def run_time(self, words: list[str], options: dict[str, str]) -> str:
        self.now += int(words[0])
        overdue = [job for job in self.jobs.values() if core.overdue(job, self.now)]
        for job in overdue:
            self._keep(core.expire(job, self.now))
        return " ".join(job.name for job in overdue) or "-"

    def _keep(self, job: Job) -> str:
        self.jobs[job.name] = job
        if job.state in core.OVER:
            self.stagings.pop(job.name, None)
        return "ok"

    def state(self) -> list[str]:
        said = []
        for job in self.jobs.values():
            sealed = [each.id for each in self.stagings.get(job.name, {}).values() if each.sealed]
            parts = [f"  {job.name}: {job.state} since {job.touched_ms}"]
            if job.state is JobState.OPEN:
                parts.append(f"ttl {job.ttl_ms}, sealed {' '.join(sealed) or '-'}")
            if job.tokens:
                parts.append(f"publishes {' '.join(job.tokens)}")
            if job.published:
                parts.append(f"published {job.published[0].records}")
            said.append(", ".join(parts))
        return said


def say(coordinator: Coordinator, line: str) -> list[str]:
    try:
        return [obey(coordinator, line)]
    except KrappyError as error:
        return [f"{error.name}: {error.text}"]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check(path, Coordinator(), say)


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 4
