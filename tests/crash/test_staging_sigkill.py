"""The broker is killed during staged writes.

Drivers run jobs. A job's tasks stage rows for two topics, in one or two attempts, and the driver commits one token of
each task and topic. Some jobs are aborted instead. Whenever the broker dies, its topics must have only whole jobs. A
job whose commit was answered is there. A job that was aborted is not. Of any other job, all rows are there or none.
Each row is there once, for a native reader and in the tables. An unanswered commit is sent again, and must then hold.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random

from krappy.blocking import Client, connect
from krappy.cli import checkup
from krappy.clients.staging import StagedCommit
from krappy.errors import KrappyError, StagingFenced
from tests.long import LONG
from tests.process import PATIENCE, BrokerProcess, Launcher, wait_until

CYCLES = 60 if LONG else 4
DRIVERS = 2
TOPICS = {"left": 1, "right": 3}  # how many partitions each topic has
ROWS = [1, 20, 300, 2_500]  # numbers of rows that one attempt stages for one topic
PAD = "x" * 150
Row = tuple[str, str]  # topic, key: JOB TASK.ATTEMPT NUMBER


class Job:
    """A driver's knowledge of one of its jobs."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.tasks = random.randint(1, 2)
        self.attempts = random.choice([1, 1, 2])
        self.rows = random.choice(ROWS)
        self.abort = random.random() < 0.2
        self.tokens: list[str] = []
        self.keys: set[Row] = set()  # the keys of the rows that its tokens stand for
        self.asked = False  # its commit was sent
        self.answer: StagedCommit | None = None
        self.fenced = False  # its abort was answered


class Driver:
    def __init__(self, number: int, random: Random) -> None:
        self.number = number
        self.random = random
        self.jobs: list[Job] = []
        self.failures: list[BaseException] = []
        self.committing = False
        self._numbers = count()
        self._stop = threading.Event()
        self._thread = threading.Thread()

    def start(self, address: str) -> None:
        self._stop = threading.Event()
        self.committing = False
        self._thread = threading.Thread(target=self._run, args=[address, self._stop], daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self, address: str, stop: threading.Event) -> None:
        try:
            with connect(address, timeout=2) as client:
                while not stop.is_set():
                    self._work(client)
        except KrappyError:
            return  # the broker has died: the check finds out the job's outcome
        except BaseException as error:
            self.failures.append(error)

    def _work(self, client: Client) -> None:
        job = Job(f"{self.number}-{next(self._numbers)}", self.random)
        self.jobs.append(job)
        for task in range(job.tasks):
            for topic in TOPICS:
                for attempt in range(job.attempts):
                    keys = [f"{job.name} {task}.{attempt} {row}" for row in range(job.rows)]
                    with client.stage(topic, job=job.name, task=task, attempt=attempt, timeout=5) as stage:
                        stage.send_columns(keys, [key + PAD for key in keys])
                        token = stage.seal()
                job.tokens.append(token)
                job.keys |= {(topic, key) for key in keys}
        if job.abort:
            client.abort_staged(job.name)
            job.fenced = True
        else:
            job.asked = self.committing = True
            job.answer = client.commit_staged(job.name, job.tokens)
            self.committing = False


class Check:
    """Compares the broker's topics with the jobs, once every publication is over."""

    def __init__(self, client: Client, jobs: list[Job], random: Random) -> None:
        self.client = client
        wait_until(lambda: not [job for job in client.staged_jobs() if job.state != "Open"], "publications end")
        self.whole(jobs)
        for job in jobs:
            if job.asked and job.answer is None and random.random() < 0.7:
                self.ask_again(job)
        self.whole(jobs)

    def whole(self, jobs: list[Job]) -> None:
        seen: list[Row] = []
        for topic in TOPICS:
            with self.client.consumer(topic, start="earliest", end="now") as consumer:
                seen += [(topic, event.key_text) for event in map(Seen, consumer)]
            table = {(topic, entry.key.decode()) for entry in self.client.table(topic).scan()}
            assert table == {row for row in seen if row[0] == topic}, f"the table of {topic} differs from its log"
        assert not [row for row, times in Counter(seen).items() if times > 1], "a row came twice"
        there: dict[str, set[Row]] = {}
        for row in seen:
            there.setdefault(row[1].split()[0], set()).add(row)
        for job in jobs:
            found = there.pop(job.name, set())
            assert found in (set(), job.keys), f"{job.name} is half there: {len(found)} of {len(job.keys)}"
            if job.answer is not None:
                assert found == job.keys, f"{job.name} was committed, and is lost"
                assert job.answer.records == len(job.keys)
            if not job.asked or job.fenced:
                assert not found, f"nobody has committed {job.name}"
        assert not there, f"nobody has written {there.keys()}"

    def ask_again(self, job: Job) -> None:
        try:
            job.answer = self.client.commit_staged(job.name, job.tokens, timeout=PATIENCE)
        except StagingFenced:
            assert job.fenced
        assert job.answer == self.client.commit_staged(job.name, [])


class Seen:
    def __init__(self, event: object) -> None:
        self.key_text: str = event.key.decode()  # type: ignore[attr-defined]


def test_no_staged_job_is_half_there_after_a_kill(launch: Launcher, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or Random().getrandbits(32))
    random = Random(seed)
    print(f"seed {seed}")  # noqa: T201
    drivers = [Driver(number, Random(random.getrandbits(64))) for number in range(DRIVERS)]
    data = tmp_path / "data"
    with BrokerProcess(data, launch=launch) as broker:
        with connect(broker.address) as client:
            client.create_topic("left", 1, {"segment.bytes": 1_000_000})
            client.create_topic("right", 3, {"cleanup.policy": "compact", "segment.bytes": 1_000_000})
        for _ in range(CYCLES):
            for driver in drivers:
                driver.start(broker.address)
            if random.random() < 0.6:  # killed while it publishes
                wait_until(lambda: any(driver.committing for driver in drivers), "a job is committed")
                time.sleep(random.uniform(0, 0.03))
            else:
                time.sleep(random.uniform(0.1, 1.0))
            broker.kill()
            while random.random() < 0.4:  # killed while it recovers, or publishes what it found
                broker.begin()
                time.sleep(random.uniform(0, 0.3))
                broker.kill()
            for driver in drivers:
                driver.stop()
            broker.start()
            jobs = [job for driver in drivers for job in driver.jobs]
            with connect(broker.address) as client:
                Check(client, jobs, random)
        with connect(broker.address) as client:
            with client.stage("left", job="last", task=0, attempt=0) as stage:
                stage.send("value", key="last 0.0 0")
                token = stage.seal()
            assert client.commit_staged("last", [token]).records == 1
            for job in jobs:
                if job.asked:
                    assert client.commit_staged(job.name, job.tokens).records == len(job.keys)
                elif not job.fenced:
                    client.abort_staged(job.name)
            assert client.staged_jobs() == []
            wait_until(lambda: not list((data / "staging").iterdir()), "files of jobs that are over go")
        assert not broker.events("internal_error"), broker.last_words()
        assert broker.stop() == 0
    found = checkup.check(data, repair=False, tell=lambda *_: None)
    assert found.sound, found
    committed, open_ = sum(job.answer is not None for job in jobs), sum(not job.asked for job in jobs)
    resumed = len(broker.events("staged_job_resumed"))
    print(f"{committed} committed, {open_} not, of {len(jobs)}; {resumed} resumed")  # noqa: T201
    assert not [error for driver in drivers for error in driver.failures]
