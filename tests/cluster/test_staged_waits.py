"""Staged jobs of a cluster while a partition can't take their events. They wait, write nothing that would only be
aborted, and are published once the partition takes events again. And jobs that are over leave nothing in the topic of
jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic

from krappy import blocking
from krappy.broker.topics.internal_topics import JOBS
from krappy.clients.staging import StagedCommit
from krappy.core.cluster.coordinators import partition_of
from krappy.errors import KrappyError, NotLeader, UnknownStaging
from krappy.store.staging import DATA, STAGING
from krappy.wire import messages as m
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.consumers import commit, ends
from tests.cluster.scattered_transactions import leader_of
from tests.cluster.test_staged_jobs import LONG_S, coordinator
from tests.cluster.test_transactions import ends_at, values
from tests.crash.tmpfs import Tmpfs
from tests.peer import Peer
from tests.process import wait_until

WAITS_S = 2.0  # how long a request for a commit waits: a third of the client's timeout


class Commit:
    """Commits in a thread, and asks again while the broker says that the job waits."""

    def __init__(self, cluster: ClusterProcesses, job: str, tokens: list[str]) -> None:
        self._cluster, self._job, self._tokens = cluster, job, tokens
        self._result: StagedCommit | BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with blocking.connect(self._cluster.native, timeout=3 * WAITS_S) as client:
                self._result = self._ask(client)
        except BaseException as error:
            self._result = error

    def _ask(self, client: blocking.Client) -> StagedCommit:
        while True:
            try:
                return client.commit_staged(self._job, self._tokens)
            except KrappyError as error:
                if not error.retriable:  # after a retriable error the job is still decided, and will be published
                    raise

    @property
    def over(self) -> bool:
        return self._result is not None

    def published(self) -> StagedCommit:
        self._thread.join(LONG_S)
        assert isinstance(self._result, StagedCommit), self._result
        return self._result


def rows(cluster: ClusterProcesses) -> list[bytes]:
    """The keys that the topic of jobs has now."""
    reader = Consumer({"bootstrap.servers": cluster.kafka, "group.id": "r"})
    found: dict[bytes, bool] = {}
    try:
        for index in cluster.partitions(JOBS):
            start, end = ends(reader, JOBS, index)
            at = TopicPartition(JOBS, index, start)
            reader.assign([at])
            while start < end and reader.position([at])[0].offset < end:
                for each in reader.consume(100, 0.2):
                    assert each.error() is None
                    found[each.key()] = each.value() is not None
    finally:
        reader.close()
    return sorted(key for key, is_there in found.items() if is_there)


def test_a_job_that_is_over_leaves_nothing_of_its_attempts(cluster: ClusterProcesses) -> None:
    """This is so for attempts in which nothing was staged, too, sealed or not. Spark makes one for each task without
    rows."""
    [made] = cluster.admin.create_topics([NewTopic("t", 3, 3)]).values()
    made.result(30)
    cluster.until_in_sync("t")
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        for end in ("committed", "aborted"):
            tokens = []
            for task in range(4):
                with client.stage("t", job=end, task=task, attempt=0) as staged:
                    if task % 2:
                        staged.send(b"x", partition=0)
                    tokens.append(staged.seal())
                with client.stage("t", job=end, task=task, attempt=1) as lost:
                    if task > 1:
                        lost.send(b"lost", partition=0)
                        lost.flush()
            if end == "committed":
                assert client.commit_staged(end, tokens).records == 2
            else:
                client.abort_staged(end)
    wait_until(lambda: {key[:3] for key in rows(cluster)} == {b"so/", b"se/"}, "only the outcomes are left", LONG_S)


def _is_unsure(peer: Peer, job: str) -> bool:
    """Whether the coordinator can't find out now how an unknown job has ended."""
    try:
        peer.ask(m.CommitStaged(job, [], 0), m.StagedCommitted)
    except NotLeader:
        return True
    except UnknownStaging:
        return False
    return False


def test_what_a_job_has_staged_goes_also_while_its_coordinator_is_not_sure_that_it_leads(tmp_path: Path) -> None:
    """Without ZooKeeper the coordinator may end jobs, but can't look up what is to be removed. It removes that once it
    can."""
    with (
        brokers(tmp_path, zookeeper_session_timeout_ms=15_000) as cluster,  # else a busy machine may end its session
        blocking.connect(cluster.native, timeout=LONG_S) as client,
    ):
        client.create_topic("t", 3)
        with client.stage("t", job="j", task=0, attempt=0) as stage:
            stage.send_columns(None, [b"x" * 1000] * 1000)
            stage.seal()
        at = cluster.brokers[coordinator(cluster, "j")]
        parts = len(cluster.partitions(JOBS))
        near = next(each for each in map(str, count()) if partition_of(each, parts) == partition_of("j", parts))
        with Peer(str(at.settings["listen_native"])) as peer:
            cluster.zookeeper.pause(True)
            try:
                wait_until(lambda: _is_unsure(peer, near), "it can't be sure")
                peer.ask(m.AbortStaged("j"), m.StagedAborted)
                # The removal has begun before this, so it could not look up anything either.
                assert _is_unsure(peer, near)
            finally:
                cluster.zookeeper.pause(False)
        wait_until(lambda: not any(key.startswith((DATA, STAGING)) for key in rows(cluster)), "all of it is removed")
        cluster.check_errors()
        for id in cluster.brokers:
            assert not cluster.events(id, "staged_file_not_removed")


def test_a_job_waits_for_replicas_and_writes_nothing_meanwhile(cluster: ClusterProcesses) -> None:
    client = blocking.connect(cluster.native, timeout=LONG_S)
    with client:
        client.commit_staged("first", [])  # makes the topic of jobs
        coordinating = coordinator(cluster, "job")
        other, away = (id for id in cluster.brokers if id != coordinating)
        topic = NewTopic(
            "t",
            2,
            replica_assignment=[[coordinating, other], [other, away]],
            config={"min.insync.replicas": "2"},
        )
        [made] = cluster.admin.create_topics([topic]).values()
        made.result(30)
        cluster.until_in_sync("t")
        with client.stage("t", job="job", task=0, attempt=0) as staged:
            for index in range(2):
                staged.send(b"value", partition=index)
            token = staged.seal()
        cluster.brokers[away].kill()
        wait_until(lambda: cluster.partitions("t")[1].isrs == [other], "a replica is missed", LONG_S)
        publishing = Commit(cluster, "job", [token])
        wait_until(lambda: len(cluster.events(coordinating, "staged_job_waits")) > 2, "it was tried", LONG_S)
        assert not publishing.over
        assert ends_at(cluster, coordinating, "t", 0) == (0, 0), "what is written would only be aborted"
        cluster.brokers[away].start()
        assert publishing.published().records == 2
    for index in range(2):
        assert values(cluster, "t", index) == [b"value"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Tmpfs]:
    made = Tmpfs(tmp_path, "48m")
    yield made
    made.close()


@pytest.fixture
def with_small_disk(tmp_path: Path, disk: Tmpfs, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    """A cluster in which broker 2 has a small disk."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    (disk.folder / "broker-2").mkdir()
    (folder / "broker-2").symlink_to(disk.folder / "broker-2")
    with brokers(folder, shared=shared_processes, ballast_bytes=16 << 20, retention_check_ms=100) as made:
        yield made


def test_a_full_disk_of_one_broker(with_small_disk: ClusterProcesses, disk: Tmpfs) -> None:
    """A job waits if it has events for a partition that this broker leads. But jobs that the broker coordinates can be
    dropped, and groups can commit their offsets there, because neither needs room for events."""
    cluster, full = with_small_disk, 2
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        client.commit_staged("first", [])
        names = (f"job-{number}" for number in count())
        dropped = next(name for name in names if coordinator(cluster, name) == full)
        waiting = next(name for name in names if coordinator(cluster, name) != full)
        [made] = cluster.admin.create_topics([NewTopic("t", 1, replica_assignment=[[full, 1, 3]])]).values()
        made.result(30)
        cluster.until_in_sync("t")
        tokens = {}
        for job in (dropped, waiting):
            with client.stage("t", job=job, task=0, attempt=0) as staged:
                staged.send(b"value", partition=0)
                tokens[job] = staged.seal()
        group = next(f"group-{number}" for number in count() if cluster.coordinator(f"group-{number}") == full)
        disk.fill()
        wait_until(lambda: bool(cluster.events(full, "events_refused")), "it is full", LONG_S)
        assert leader_of(cluster, "t", 0) == full
        publishing = Commit(cluster, waiting, [tokens[waiting]])
        client.abort_staged(dropped)
        member = Consumer({"bootstrap.servers": cluster.kafka, "group.id": group})
        commit(member, [TopicPartition("t", 0, 0)])
        member.close()
        coordinating = coordinator(cluster, waiting)
        wait_until(lambda: len(cluster.events(coordinating, "staged_job_waits")) > 3, "it was tried", LONG_S)
        assert not publishing.over
        assert leader_of(cluster, "t", 0) == full
        (disk.folder / "others").unlink()
        assert publishing.published().records == 1
    assert values(cluster, "t", 0) == [b"value"]
