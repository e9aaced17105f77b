"""Staged jobs of a cluster are published wholly and once, at whatever step their coordinator or a leader dies, and even
if a deposed coordinator goes on."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from krappy import blocking
from krappy.broker.topics.internal_topics import JOBS
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.state import NOBODY
from krappy.errors import StagingCommitted, StagingExpired, StagingFenced, UnknownStaging
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.scattered_transactions import leader_of
from tests.cluster.stepping import stepping, stopping_at
from tests.cluster.test_cluster import make_topic
from tests.cluster.test_transactions import check_nothing_is_open, values
from tests.cluster.transfers import PARTITIONS
from tests.cluster.zookeeper import ZooKeeperServer
from tests.long import some
from tests.process import PATIENCE, BrokerProcess, wait_until

LONG_S = 120.0
TASKS = 2
AT_COORDINATOR = {
    "while it takes attempts": [("put Open", 1), ("staged row", 1), ("puts Open", 2), ("put Open", 2)],
    "while it publishes": [
        *(("puts Publishing", 1), ("put Publishing", 1), ("sends batch", 1), ("sent batch", 2), ("appends batch", 1)),
    ],
    "while it ends the job": [
        *(("puts Marking", 1), ("put Marking", 1), ("sends marker", 1), ("sent marker", 1), ("sent marker", 2)),
        *(("ends Committed", 1), ("ended Committed", 1)),
    ],
}
AT_LEADER = ["appends batch", "takes marker", "queued marker", "wrote marker"]


@pytest.fixture
def cluster(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> Iterator[ClusterProcesses]:
    with brokers(tmp_path, shared=SharedProcesses(shared_zookeeper, stepping)) as made:
        make_topic(made, "t")
        yield made


def coordinator(cluster: ClusterProcesses, job: str) -> int:
    """The broker that coordinates a job. Waits until there is one."""
    found: list[int] = []

    def known() -> bool:
        if cluster.topic(JOBS) is None:
            return False
        parts = cluster.partitions(JOBS)
        found.append(parts[partition_of(job, len(parts))].leader)
        return found[-1] in cluster.running

    wait_until(known, f"somebody coordinates {job}", LONG_S)
    return found[-1]


def until_another(cluster: ClusterProcesses, job: str, before: int) -> None:
    def known() -> bool:
        parts = cluster.partitions(JOBS)
        return parts[partition_of(job, len(parts))].leader not in (before, NOBODY)

    wait_until(known, "another broker coordinates the job", LONG_S)


def values_of(job: str, task: int) -> list[bytes]:
    return [f"{job}:{task}:{index}".encode() for index in range(PARTITIONS)]


def stage(client: blocking.Client, job: str, task: int) -> str:
    """Stages one event for each partition, and seals the attempt; returns its token. Makes another attempt as often as
    one is lost."""
    for attempt in count():
        try:
            with client.stage("t", job=job, task=task, attempt=attempt, timeout=LONG_S) as staged:
                for index, value in enumerate(values_of(job, task)):
                    staged.send(value, partition=index)
                return staged.seal()
        except UnknownStaging:
            continue
    raise AssertionError


class Driver:
    """Runs a job as Spark would. A lost attempt is made again. A job that was given up is run again under its next
    name. `job`: the present name."""

    def __init__(self, client: blocking.Client, name: str) -> None:
        self.job = name
        self._client, self._name = client, name
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error

    def _run(self) -> None:
        for run in count():
            self.job = f"{self._name}#{run}" if run else self._name
            try:
                tokens = [stage(self._client, self.job, task) for task in range(TASKS)]
                published = self._client.commit_staged(self.job, tokens, timeout=LONG_S)
                assert published.records == TASKS * PARTITIONS
                return
            except StagingCommitted:
                return
            except (StagingFenced, StagingExpired, UnknownStaging):
                continue

    def join(self, step: str) -> str:
        self._thread.join(LONG_S)
        assert not self._thread.is_alive(), step
        if self._error is not None:
            raise AssertionError(f"at {step}") from self._error
        return self.job


def check(cluster: ClusterProcesses, jobs: list[str], step: str) -> None:
    """Checks that readers of committed events see each of these jobs whole and once, and nothing else."""
    for topic in ("t", JOBS):
        cluster.until_in_sync(topic)
    for index in range(PARTITIONS):
        wanted = Counter(values_of(job, task)[index] for job in jobs for task in range(TASKS))
        assert Counter(values(cluster, "t", index)) == wanted, step
    check_nothing_is_open(cluster, "t")


@pytest.mark.parametrize("when", AT_COORDINATOR)
def test_the_coordinator_dies_between_any_two_steps(
    cluster: ClusterProcesses, client: blocking.Client, when: str
) -> None:
    done: list[str] = []
    for number, (step, times) in enumerate(some(AT_COORDINATOR[when], 3)):
        cluster.spread("t")
        name = f"job-{number}"
        client.commit_staged(f"{name}-first", [])  # makes the topic of jobs
        broker = cluster.brokers[coordinator(cluster, name)]
        with stopping_at(broker, step, times):
            driver = Driver(client, name)
        broker.start()
        done.append(driver.join(step))
        assert client.commit_staged(done[-1], []).records == TASKS * PARTITIONS
        check(cluster, done, step)
    assert done == [f"job-{number}" for number in range(len(done))], "no job had to be given up"
    assert client.staged_jobs() == []


def test_a_leader_dies_at_any_step(cluster: ClusterProcesses, client: blocking.Client) -> None:
    done: list[str] = []
    for number, step in enumerate(some(AT_LEADER, 2)):
        cluster.spread("t")
        name = f"job-{number}"
        client.commit_staged(f"{name}-first", [])
        leaders = {leader_of(cluster, "t", index) for index in range(PARTITIONS)}
        broker = cluster.brokers[min(leaders - {coordinator(cluster, name)})]
        with stopping_at(broker, step):
            driver = Driver(client, name)
        broker.start()
        done.append(driver.join(step))
        check(cluster, done, step)
    assert done == [f"job-{number}" for number in range(len(done))], "no job had to be given up"


@pytest.mark.parametrize("step", some(["puts Marking", "sends batch", "sends marker"], 3))
def test_a_coordinator_that_was_deposed_goes_on(cluster: ClusterProcesses, client: blocking.Client, step: str) -> None:
    """The coordinator stops for longer than its session. Meanwhile the next coordinator publishes the job."""
    client.commit_staged("first", [])
    zombie = coordinator(cluster, "job")
    with stopping_at(cluster.brokers[zombie], step, by=signal.SIGSTOP):
        driver = Driver(client, "job")
    with cluster.paused(zombie):
        assert driver.join(step) == "job"
    wait_until(lambda: coordinator(cluster, "job") != zombie, "another broker coordinates", PATIENCE)
    cluster.until_in_sync("t")
    check(cluster, ["job"], step)
    client.commit_staged("another", [stage(client, "another", task) for task in range(TASKS)])
    check(cluster, ["job", "another"], step)


def test_what_is_sealed_outlives_its_coordinator_and_what_is_not_is_refused(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    tokens = [stage(client, "job", task) for task in range(TASKS)]
    with client.stage("t", job="job", task="late", attempt=1, timeout=LONG_S) as late:
        late.send(b"never", partition=0)
        late.flush()
        killed = coordinator(cluster, "job")
        cluster.brokers[killed].kill()
        until_another(cluster, "job", killed)
        with pytest.raises(UnknownStaging):
            late.seal()
    [listed] = client.staged_jobs()
    assert (listed.job, listed.attempts, listed.sealed) == ("job", TASKS, TASKS)
    assert listed.size > 0
    client.commit_staged("job", tokens)
    cluster.brokers[killed].start()
    check(cluster, ["job"], "")
    assert client.commit_staged("job", []).records == TASKS * PARTITIONS
    with pytest.raises(StagingCommitted):
        stage(client, "job", 0)


def test_a_job_that_was_dropped_leaves_nothing(cluster: ClusterProcesses, client: blocking.Client) -> None:
    stage(client, "job", 0)
    client.abort_staged("job")
    killed = coordinator(cluster, "job")
    cluster.brokers[killed].kill()
    until_another(cluster, "job", killed)
    with pytest.raises(StagingFenced):
        stage(client, "job", 0)
    cluster.brokers[killed].start()
    client.commit_staged("other", [stage(client, "other", task) for task in range(TASKS)])
    check(cluster, ["other"], "")


def test_a_folder_that_was_alone_keeps_its_outcomes(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> None:
    with BrokerProcess(tmp_path / "broker") as alone, blocking.connect(alone.address, timeout=LONG_S) as client:
        client.create_topic("t", PARTITIONS)
        published = client.commit_staged("done", [stage(client, "done", task) for task in range(TASKS)])
        token = stage(client, "open", 0)
        client.abort_staged("dropped")
        alone.stop()
    chroot = f"127.0.0.1:{shared_zookeeper.port}/{tmp_path.name}"
    with (
        BrokerProcess(tmp_path / "broker", broker_id=1, zookeeper_connect=chroot) as broker,
        blocking.connect(broker.address, timeout=LONG_S) as client,
    ):
        assert client.commit_staged("done", []) == published
        with pytest.raises(StagingCommitted):
            stage(client, "done", 0)
        with pytest.raises(StagingFenced):
            stage(client, "dropped", 0)
        with pytest.raises(UnknownStaging):
            client.commit_staged("open", [token])
        assert client.commit_staged("open", [stage(client, "open", 0)]).records == PARTITIONS
