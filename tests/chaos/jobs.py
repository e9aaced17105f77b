"""Staged jobs: a driver stages rows in tasks, and some tasks twice. It commits or aborts all tasks of a job together.

The rules that are checked: the rows of a committed job are there, all of them, once, and at the places that its answer
names. No row of a job is there that was aborted or never committed. If nobody was told a job's outcome, either all of
its rows are there or none is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NamedTuple

from krappy import blocking
from krappy.clients.staging import StagedCommit
from krappy.errors import (
    ConnectionLost,
    KrappyError,
    RequestTimeout,
    StagingCommitted,
    StagingExpired,
    StagingFenced,
)
from tests.chaos.checker import Violation, shortened

PUBLISHED = "published"  # the topic
COPIED = "copied"  # a second topic, to which a stream of Spark copies the first (spark.py)
TTL_SECONDS = 900.0
WAIT_SECONDS = 10.0
HASTY_SECONDS = 0.2  # a hasty driver waits only so long for the answer to its commit, and then aborts


class JobFate(Enum):
    """What the driver was told of a job."""

    OPEN = "open"  # it was never committed
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # its commit was not answered


class PublishedRow(NamedTuple):
    """A row as a reader got it."""

    partition: int
    offset: int
    value: bytes


@dataclass
class ChaosJob:
    """`tokens`: of the attempts that are to be committed. `rows`: the values of these attempts; each begins with the
    job's name and a space."""

    name: str
    rows: set[bytes] = field(default_factory=set)
    tokens: list[str] = field(default_factory=list)
    fate: JobFate = JobFate.OPEN
    answer: StagedCommit | None = None


def check_jobs(jobs: Iterable[ChaosJob], seen: Sequence[PublishedRow]) -> list[Violation]:
    there: dict[str, list[PublishedRow]] = {}
    for row in seen:
        there.setdefault(row.value.split(b" ")[0].decode(), []).append(row)
    found: list[Violation] = []
    for job in jobs:
        found += _of_job(job, there.pop(job.name, []))
    found += [Violation("job", f"nobody has staged {name!r}, and it is there") for name in there]
    return shortened(found)


def _of_job(job: ChaosJob, rows: Sequence[PublishedRow]) -> Iterator[Violation]:
    values = {row.value for row in rows}
    told = f"{job.name}, which is {job.fate.value}"
    if len(values) < len(rows):
        yield Violation("job", f"{told}, has rows more than once: {len(rows)} for {len(values)}")
    if values - job.rows:
        yield Violation("job", f"{told}, has rows of an attempt that was not committed: {min(values - job.rows)!r}")
    if job.fate in (JobFate.OPEN, JobFate.ABORTED) and rows:
        yield Violation("job", f"{told}, is there: {len(rows)} of {len(job.rows)} rows")
    elif values and job.rows - values:
        yield Violation("job", f"{told}, is half there: {len(values)} of {len(job.rows)} rows")
    elif job.fate is JobFate.COMMITTED and job.rows - values:
        yield Violation("job", f"{told}, is lost")
    if job.answer is not None:
        where = {(each.partition, each.first_offset, each.last_offset, each.records) for each in job.answer.partitions}
        if where != _places(rows):
            yield Violation("job", f"{told}, is at {sorted(_places(rows))}, and its answer says {sorted(where)}")


def _places(rows: Sequence[PublishedRow]) -> set[tuple[int, int, int, int]]:
    """(partition, first offset, last offset, number of rows) of each partition that has some of the rows."""
    offsets: dict[int, list[int]] = {}
    for row in rows:
        offsets.setdefault(row.partition, []).append(row.offset)
    return {(partition, min(some), max(some), len(some)) for partition, some in offsets.items()}


class JobDriver:
    """Runs one job after another, in a thread of its own, until `stop`."""

    def __init__(self, name: str, addresses: str, random: Random) -> None:
        self.name, self._addresses, self._random = name, addresses, random
        self.jobs: list[ChaosJob] = []
        self.troubles: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def join(self) -> None:
        """Waits until the driver has ended. Raises AssertionError if it does not end."""
        self._thread.join(12 * WAIT_SECONDS)
        assert not self._thread.is_alive(), f"{self.name} does not end"

    @property
    def done(self) -> Mapping[str, int]:
        """How many jobs have each fate."""
        fates = [job.fate for job in self.jobs]
        return {fate.value: fates.count(fate) for fate in JobFate if fate in fates}

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with blocking.connect(self._addresses, timeout=WAIT_SECONDS) as client:
                    while not self._stopped.is_set():
                        self.ask_again(client)
                        self._work(client)
            except KrappyError as error:
                self.troubles.append(f"{type(error).__name__}: {error}")
                self._stopped.wait(0.3)

    def ask_again(self, client: blocking.Client) -> None:
        """Sends again the commits that were not answered, to learn the fates of their jobs. Raises KrappyError."""
        for job in self.jobs:
            if job.fate is JobFate.UNKNOWN:
                self._commit(client, job, WAIT_SECONDS)

    def _work(self, client: blocking.Client) -> None:
        random = self._random
        job = ChaosJob(f"{self.name}-{len(self.jobs)}")
        self.jobs.append(job)
        for task in range(random.randint(1, 3)):
            for attempt in range(random.choice([1, 1, 2])):  # only the last attempt is committed
                rows = [
                    b"%s %d.%d %d" % (job.name.encode(), task, attempt, n) for n in range(random.choice([1, 30, 400]))
                ]
                with client.stage(
                    PUBLISHED, job=job.name, task=task, attempt=attempt, ttl=TTL_SECONDS, timeout=3 * WAIT_SECONDS
                ) as stage:
                    stage.send_columns(rows, rows)
                    token = stage.seal()
            job.tokens.append(token)
            job.rows |= set(rows)
        chance = random.random()
        if chance < 0.15:
            self._abort(client, job)
        elif chance < 0.3:
            try:
                self._commit(client, job, HASTY_SECONDS)
            except (ConnectionLost, RequestTimeout):
                self._abort(client, job)
        else:
            self._commit(client, job, WAIT_SECONDS)

    def _commit(self, client: blocking.Client, job: ChaosJob, seconds: float) -> None:
        """Commits a job. Raises KrappyError if nobody knows whether it is committed."""
        job.fate = JobFate.UNKNOWN
        try:
            job.answer = client.commit_staged(job.name, job.tokens, timeout=seconds)
            job.fate = JobFate.COMMITTED
        except (StagingFenced, StagingExpired):
            job.fate = JobFate.ABORTED

    def _abort(self, client: blocking.Client, job: ChaosJob) -> None:
        """Aborts a job. Raises KrappyError if nobody knows whether it is aborted."""
        try:
            client.abort_staged(job.name)
            job.fate = JobFate.ABORTED
        except StagingCommitted:
            job.fate = JobFate.UNKNOWN  # so `ask_again` gets the answer to its commit

    def finish(self, is_over: Callable[[], bool]) -> list[Violation]:
        """Learns the fates of all jobs, and checks what is in the topic. Call it after the trouble, when the thread has
        ended. `is_over`: tells when to give up."""
        said = "the brokers were not asked"
        while not is_over():
            try:
                with blocking.connect(self._addresses, timeout=WAIT_SECONDS) as client:
                    self.ask_again(client)
                    for job in self.jobs[-3:]:
                        if (known := job.answer) is not None:
                            self._commit(client, job, WAIT_SECONDS)
                            if job.answer != known:
                                return [Violation("job", f"{job.name} was {known}, and is {job.answer}")]
                    return check_jobs(self.jobs, published(client, f"{self.name}-"))
            except KrappyError as error:
                said = f"{type(error).__name__}: {error}"
                time.sleep(0.2)
        left = [job.name for job in self.jobs if job.fate is JobFate.UNKNOWN]
        return [Violation("stuck", f"the ends of {left} are not told in peace: {said}")]


def published(client: blocking.Client, prefix: str, topic: str = PUBLISHED) -> list[PublishedRow]:
    """The rows whose values begin with `prefix`. Raises KrappyError."""
    with client.consumer(topic, start="earliest", end="now") as consumer:
        found = [PublishedRow(each.partition, each.offset, each.value or b"") for each in consumer]
    return [row for row in found if row.value.startswith(prefix.encode())]
