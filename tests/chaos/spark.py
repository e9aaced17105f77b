"""Spark through trouble: it writes, reads, and runs a stream from one topic to another, which is stopped and goes on.

The rules that are checked: a write is there whole and once, or not at all. A read has all writes that were done before
it. The stream copies each event once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from krappy import blocking
from krappy.errors import KrappyError
from tests.chaos.checker import Violation, shortened
from tests.chaos.jobs import COPIED, PUBLISHED, ChaosJob, JobFate, check_jobs, published
from tests.chaos.replicas import TransactionSpan
from tests.process import ROOT
from tests.spark.conftest import python_path
from tests.spark.warm import program

NAME = "spark"
ENDS_SECONDS = 300.0  # a command that began in trouble is answered within this time


class SparkEnded(AssertionError):
    """Spark's process is gone."""


class ReadPart(NamedTuple):
    """What a read has of a job in one partition. `different`: the number of different rows. `last`: the offset of the
    last row."""

    job: str
    partition: int
    rows: int
    different: int
    last: int


class Unseen(NamedTuple):
    """A read lacks rows of a job that was committed before it. `rows`: how many rows of the job it has. `reached`: by
    partition, the offset of the last row that it has of any job."""

    job: str
    rows: int
    reached: Mapping[int, int]


def check_read(jobs: Sequence[ChaosJob], found: Sequence[ReadPart]) -> tuple[list[str], list[Unseen]]:
    """Checks a read. `jobs`: all that Spark began before the read. Returns (what is wrong, the missing rows that
    `check_unseen` has to explain)."""
    reached = {index: max(each.last for each in found if each.partition == index) for _, index, *_ in found}
    counts: dict[str, tuple[int, int]] = {}
    for each in found:
        rows, different = counts.get(each.job, (0, 0))
        counts[each.job] = rows + each.rows, different + each.different
    begun = {job.name for job in jobs}
    wrong = [
        f"a read has {name}, which was not begun"
        for name in counts
        if name.startswith(f"{NAME}-") and name not in begun
    ]
    unseen: list[Unseen] = []
    for job in jobs:
        rows, different = counts.get(job.name, (0, 0))
        if rows > different or rows > len(job.rows):
            told = f"{job.name}, which is {job.fate.value}"
            wrong.append(f"a read has {rows} rows of {told}, {different} different ones of {len(job.rows)}")
        elif rows < len(job.rows) and job.fate is JobFate.COMMITTED:
            unseen.append(Unseen(job.name, rows, reached))
    return wrong, unseen


def check_unseen(unseen: Unseen, logs: Mapping[int, Sequence[TransactionSpan]]) -> Iterator[str]:
    """Checks that a read lacks rows only behind an open transaction: one that began before these rows, and was still
    open when they were committed. A read ends at the first open transaction. `logs`: by partition. Returns what is
    wrong."""
    told = f"a read has {unseen.rows} rows of {unseen.job}, which was committed before"
    there = 0
    for index, spans in logs.items():
        reached = unseen.reached.get(index, -1)
        for span in spans:
            if span.is_committed and next(iter(span.values.values())).startswith(f"{unseen.job} ".encode()):
                there += sum(offset <= reached for offset in span.values)
                is_open = any(reached < each.first < span.first and each.end > span.end for each in spans)
                if max(span.values) > reached and not is_open:
                    yield f"{told}, and reaches to {reached} of partition {index}, where no transaction was open"
    if there != unseen.rows:
        yield f"{told}, and {there} are before the last that it has"


def check_copied(there: Sequence[bytes], copied: Sequence[bytes]) -> list[str]:
    """`there`: what the stream reads; `copied`: what it has written."""
    wanted, has = Counter(there), Counter(copied)
    found = [f"{count} times too few in the copy: {value!r}" for value, count in sorted((wanted - has).items())]
    return found + [
        f"{count} times too often in the copy: {value!r}" for value, count in sorted((has - wanted).items())
    ]


class SparkDriver:
    """Gives one command after another, in a thread of its own, until `stop`."""

    def __init__(self, addresses: str, folder: Path, random: Random) -> None:
        self.name, self._addresses, self._folder, self._random = NAME, addresses, folder, random
        self.jobs: list[ChaosJob] = []
        self.done: Counter[str] = Counter()  # how many commands of each kind were done
        self.troubles: list[str] = []
        self.unseen: list[Unseen] = []  # to be judged by `check_unseen`
        self._wrong: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)

    def start(self) -> None:
        folder = self._folder / NAME
        folder.mkdir()
        environ = {**os.environ, "PYTHONPATH": python_path(folder), "PYSPARK_PYTHON": program(folder)}
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.spark_program", self._addresses, str(folder)],
                cwd=ROOT,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def join(self) -> None:
        """Waits until the thread has ended. Raises AssertionError if it does not end."""
        self._thread.join(ENDS_SECONDS)
        if self._thread.is_alive():
            self._process.kill()
            raise AssertionError(f"{NAME} does not end")

    def finish(self, is_over: Callable[[], bool]) -> list[Violation]:
        """Checks all that is there, and that the stream copies all of it. Call it after the trouble, when nobody else
        writes."""
        lacking = ["nothing was read"]
        try:
            while lacking and not is_over():
                lacking = self._copied() if self._copy() else ["no copy came to its end"]
            self._read()
            self._process.stdin.close()  # type: ignore[union-attr]
            self._process.wait(ENDS_SECONDS)
            with blocking.connect(self._addresses, timeout=10) as client:
                return check_jobs(self.jobs, published(client, f"{NAME}-")) + shortened(
                    [Violation(NAME, text) for text in [*self._wrong, *lacking]]
                )
        except (SparkEnded, OSError, subprocess.TimeoutExpired, KrappyError) as error:
            return [Violation("stuck", f"{NAME}: {type(error).__name__}: {error}")]
        finally:
            self._process.kill()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._random.choices([self._write, self._read, self._copy], [3, 1, 1])[0]()
        except SparkEnded as error:
            self._wrong.append(str(error))

    def _write(self) -> bool:
        rows, tasks = self._random.choice([1, 50, 2000]), self._random.choice([1, 2, 3])
        job = ChaosJob(f"{NAME}-{len(self.jobs)}")
        job.rows = {b"%s %d" % (job.name.encode(), number) for number in range(rows)}
        job.fate = JobFate.UNKNOWN
        self.jobs.append(job)
        done = self._ask("write", job.name, rows, tasks) is not None
        if done:
            job.fate = JobFate.COMMITTED
        return done

    def _read(self) -> bool:
        told = self._ask("read")
        if told is not None:
            wrong, unseen = check_read(self.jobs, [ReadPart(*each) for each in told["found"]])
            self._wrong += wrong
            self.unseen += unseen
        return told is not None

    def _copy(self) -> bool:
        return self._ask("copy") is not None

    def _copied(self) -> list[str]:
        """What the copy lacks, or has too often. Raises KrappyError."""
        with blocking.connect(self._addresses, timeout=10) as client:
            there, copied = ([each.value for each in published(client, "", topic)] for topic in (PUBLISHED, COPIED))
        return check_copied(there, copied)

    def _ask(self, *command: Any) -> dict[str, Any] | None:
        """Gives Spark's process a command; returns its answer. None: the command has failed. Raises SparkEnded."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(command) + "\n")
            stdin.flush()
            answer = stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            raise SparkEnded(f"{NAME} ended by itself while it was to {command[0]}: {self._folder / NAME / 'log'}")
        told: dict[str, Any] = json.loads(answer)
        if "error" in told:
            self.troubles.append(f"{command[0]}: {told['error']}")
            time.sleep(0.3)
            return None
        self.done[command[0]] += 1
        return told
