"""What a cluster's backup has of producers, open transactions and staged jobs, and what happens if brokers die
meanwhile. And that a restored folder does not join its own cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from kazoo.client import KazooClient

from krappy import blocking
from krappy.broker.topics.internal_topics import TRANSACTIONS
from krappy.cli import archive
from krappy.cli.cluster_backup import ClusterCopy, held_cluster
from krappy.clients import backups
from krappy.clients.backups import BegunAt, HeldAt
from krappy.clients.link import Link
from krappy.clients.router import Router
from krappy.core.cluster.coordinators import partition_of
from krappy.errors import InvalidRequest, ShuttingDown, StagingCommitted, UnknownHandle
from krappy.records import batch
from krappy.store.catalog import LocalCatalog
from krappy.store.meta import Meta
from krappy.wire import messages as m
from krappy.wire.kafka import Code
from tests.cli.test_backup_trouble import HALTED
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, start_registered
from tests.cluster.secured import SecuredProcesses
from tests.cluster.test_backup import LONG_S, check_folder, done
from tests.cluster.test_groups_kept import commit, offsets
from tests.cluster.test_secured import secured as secured
from tests.cluster.test_staged_jobs import stage
from tests.kafka.raw import Raw
from tests.peer import Peer
from tests.process import BrokerProcess, child, krappy, wait_until


@pytest.fixture(scope="module")
def cluster(lasting: ClusterProcesses) -> Iterator[ClusterProcesses]:
    yield lasting
    lasting.check_errors()


def make(cluster: ClusterProcesses, name: str, *assigned: list[int]) -> None:
    [made] = cluster.admin.create_topics([NewTopic(name, len(assigned), replica_assignment=list(assigned))]).values()
    made.result(LONG_S)
    cluster.until_led(name)


def test_producers_transactions_and_jobs(cluster: ClusterProcesses, client: blocking.Client, tmp_path: Path) -> None:
    make(cluster, "t", *[[n % 3 + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1] for n in range(6)])
    with cluster.asked(1) as raw:
        producer = raw.new_producer_id()
        once = batch.encode(None, [b"once"], timestamps=1, producer_id=producer, producer_epoch=0, base_sequence=0)
        offset = raw.produce("t", once)["base_offset"]  # to partition 0, which broker 1 leads
    open_one = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": "open"})
    open_one.init_transactions(LONG_S)
    open_one.begin_transaction()
    for index in range(6):
        open_one.produce("t", b"open", partition=index)
    open_one.send_offsets_to_transaction([TopicPartition("t", 0, 1)], _metadata(cluster), LONG_S)
    assert open_one.flush(LONG_S) == 0
    tokens = [stage(client, "done", task) for task in range(2)]
    assert client.commit_staged("done", tokens, timeout=LONG_S).records == 12
    stage(client, "half", 0)
    told = done("backup", tmp_path / "backup", "--address", cluster.native)
    assert not told["lost_brokers"]
    restored = done("restore", tmp_path / "backup", "--data", tmp_path / "alone")
    assert restored["notes"] == ["the staged job 'half' was not committed, and has to be run again"]
    again = krappy("restore", tmp_path / "backup", "--data", tmp_path / "alone")
    assert again.returncode == 1
    assert b"is not empty" in again.stderr
    check_folder(tmp_path / "alone")
    with BrokerProcess(tmp_path / "alone") as alone:
        with Raw(alone.kafka) as raw:
            assert raw.produce("t", once)["base_offset"] == offset, "it is there already"
        waiting = Producer({"bootstrap.servers": alone.kafka, "transactional.id": "open"})
        waiting.init_transactions(LONG_S)  # aborts the open transaction
        with blocking.connect(alone.address, timeout=LONG_S) as restored_client:
            with restored_client.consumer("t", start="earliest", end="now") as consumer:
                values = sorted(event.value or b"" for event in consumer)
            assert values == sorted([b"once", *(f"done:{t}:{i}".encode() for t in range(2) for i in range(6))])
            [topic] = [each for each in restored_client.topics() if each.name == "t"]
            assert all(each.last_stable_offset == each.end for each in topic.partitions)
            with pytest.raises(StagingCommitted):
                stage(restored_client, "done", 0)
            tokens = [stage(restored_client, "half", task) for task in range(2)]
            assert restored_client.commit_staged("half", tokens, timeout=LONG_S).records == 12
        asked = Consumer({"bootstrap.servers": alone.kafka, "group.id": "of a transaction"})
        assert [each.offset for each in asked.committed([TopicPartition("t", 0)], LONG_S)] == [-1001]
        asked.close()
        assert alone.stop() == 0
    with suppress(Exception):
        open_one.abort_transaction(LONG_S)


def _metadata(cluster: ClusterProcesses) -> object:
    consumer = Consumer({"bootstrap.servers": cluster.kafka, "group.id": "of a transaction"})
    return consumer.consumer_group_metadata()


def test_a_later_backup_shares_files(cluster: ClusterProcesses, client: blocking.Client, tmp_path: Path) -> None:
    for name in ("shared", "written"):
        make(cluster, name, [1, 2, 3])
    with client.producer("shared") as producer:
        producer.send_columns(None, [b"v" * 1000] * 3000)
    cluster.until_in_sync("shared")
    first = done("backup", tmp_path / "some", "--incremental", "--address", cluster.native)
    with client.producer("written") as producer:
        producer.send(b"more").result(LONG_S)
    second = done("backup", tmp_path / "some", "--incremental", "--address", cluster.native)
    assert first["shared_bytes"] == 0 < second["shared_bytes"]
    assert done("doctor", "--backup", tmp_path / "some")["sound"]
    done("restore", tmp_path / "some", "--data", tmp_path / "alone")
    check_folder(tmp_path / "alone")
    address = cluster.brokers[2].settings["listen_native"]
    archive = krappy("backup", tmp_path / "it.tar", "--address", address)
    assert archive.returncode == 1
    assert b"needs a folder" in archive.stderr
    only = done("backup", tmp_path / "it.tar", "--this-broker", "--address", address)
    assert "brokers" not in only
    assert done("doctor", "--backup", tmp_path / "it.tar")["sound"]


def test_a_broker_that_stands_still(cluster: ClusterProcesses, tmp_path: Path) -> None:
    """The backup waits until the session of this broker is over. Transactions wait only for some seconds meanwhile."""
    make(cluster, "still", [1, 2, 3])
    Producer({"bootstrap.servers": cluster.kafka, "transactional.id": "first"}).init_transactions(LONG_S)
    cluster.until_in_sync(TRANSACTIONS)
    coordinators = cluster.partitions(TRANSACTIONS)
    names = (f"still-{number}" for number in count())
    name = next(each for each in names if coordinators[partition_of(each, len(coordinators))].leader != 3)
    producer = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(LONG_S)
    # A first transaction, so that the producer knows all it needs before broker 3 stands still.
    producer.begin_transaction()
    producer.produce("still", b"v")
    producer.commit_transaction(LONG_S)
    with cluster.paused(3):
        taken = subprocess.Popen(
            [sys.executable, "-m", "krappy", "backup", str(tmp_path / "backup"), "--json", "--address", cluster.native],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        producer.begin_transaction()
        producer.produce("still", b"v")
        producer.commit_transaction(LONG_S)
        out, err = taken.communicate(timeout=LONG_S)
    assert taken.returncode == 0, err.decode()
    assert json.loads(out)["brokers"] == [1, 2]
    cluster.until_known()
    done("restore", tmp_path / "backup", "--data", tmp_path / "alone")


def test_a_broker_that_is_dead_already(cluster: ClusterProcesses, client: blocking.Client, tmp_path: Path) -> None:
    """The other brokers do not know yet that it is dead. The backup waits until they do, and until others lead its
    partitions."""
    make(cluster, "dead", [2, 3, 1], [1, 2, 3])
    with client.producer("dead") as producer:
        producer.send_columns([b"a", b"b", b"c"], [b"1", b"2", b"3"])
    cluster.until_in_sync("dead")
    cluster.brokers[2].kill()
    told = done("backup", tmp_path / "backup", "--address", cluster.native)
    assert told["brokers"] == [1, 3]
    cluster.start_again(2)
    done("restore", tmp_path / "backup", "--data", tmp_path / "alone")
    with BrokerProcess(tmp_path / "alone") as alone, blocking.connect(alone.address, timeout=LONG_S) as restored:
        assert {entry.key: entry.value for entry in restored.table("dead").scan()} == {
            b"a": b"1",
            b"b": b"2",
            b"c": b"3",
        }


def test_the_only_replica_dies_while_it_is_copied(
    cluster: ClusterProcesses, client: blocking.Client, tmp_path: Path
) -> None:
    make(cluster, "only", [3])
    with client.producer("only") as producer:
        producer.send_columns(None, [b"v" * 1000] * 5000)
    command = [sys.executable, "-m", "krappy", "backup", tmp_path / "backup", "--max-rate", "1", "--json"]
    taken = subprocess.Popen([*map(str, command), "--address", cluster.native], stderr=subprocess.PIPE)
    wait_until((tmp_path / "backup" / "cluster" / "tree.json").exists, "it copies", LONG_S)
    cluster.brokers[3].kill()
    _, err = taken.communicate(timeout=LONG_S)
    cluster.start_again(3)
    assert taken.returncode == 1
    assert "no broker holds only-0 any more: start again" in json.loads(err.splitlines()[-1])["error"]
    assert not (tmp_path / "backup").exists()
    wait_until(lambda: cluster.partitions("only")[0].leader == 3, "it is there again", LONG_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_brokers_let_go_of_a_backup_that_is_stopped(
    cluster: ClusterProcesses, client: blocking.Client, tmp_path: Path, number: signal.Signals
) -> None:
    name = f"stopped-{number}"
    make(cluster, name, [1], [2], [3])
    with client.producer(name) as producer:
        producer.send("v").result(LONG_S)
    held = [each.data / "backup" for each in cluster.brokers.values()]
    wait_until(lambda: not any(list(each.iterdir()) for each in held if each.exists()), "none is held", LONG_S)
    program = [sys.executable, "-c", HALTED, "backup", str(tmp_path / "backup"), "--address", cluster.native]
    with child(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        assert all(list(each.iterdir()) for each in held)
        process.send_signal(number)
        wait_until(lambda: not any(list(each.iterdir()) for each in held), "all have let go", 15)


def test_a_folder_of_a_backup_does_not_join_the_cluster_that_it_comes_from(
    cluster: ClusterProcesses, client: blocking.Client, tmp_path: Path
) -> None:
    make(cluster, "here", [1])
    done("backup", tmp_path / "backup", "--address", cluster.native)
    done("restore", tmp_path / "backup", "--data", tmp_path / "copy")
    where = cluster.brokers[1].settings["zookeeper_connect"]
    copy = BrokerProcess(tmp_path / "copy", broker_id=9, zookeeper_connect=where)
    copy.begin()
    assert copy.ended() != 0
    assert "of a backup, and the cluster has it, too" in copy.last_words()
    check_folder(tmp_path / "copy")


def test_what_is_begun_ends_with_its_connection(cluster: ClusterProcesses) -> None:
    """While a backup is begun, no transaction is decided, but events are written."""
    make(cluster, "held", [1, 2, 3])
    producer = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": "held", "linger.ms": 0})
    producer.init_transactions(LONG_S)
    producer.begin_transaction()
    producer.produce("held", b"v")
    producer.flush(LONG_S)
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(str(each.settings["listen_native"]))) for each in cluster.brokers.values()]
        begun = [peer.ask(m.BeginBackup(), m.BackupBegun) for peer in peers]
        assert len({str(sorted(each.brokers)) for each in begun}) == 1
        committing = threading.Thread(target=producer.commit_transaction, args=(LONG_S,), daemon=True)
        committing.start()
        for peer, at in zip(peers, begun, strict=True):
            assert at.handle is not None
            with pytest.raises(UnknownHandle):
                peer.ask(m.ReadBackup(at.handle, "manifest.json", 0, 1), m.BackupRead)
        with blocking.connect(cluster.native, timeout=LONG_S) as client, client.producer("held") as other:
            assert other.send(b"w").result(LONG_S).offset > 0
        committing.join(1.0)
        assert committing.is_alive(), "a transaction was decided while a backup was begun"
    committing.join(LONG_S)
    assert not committing.is_alive()


def test_what_can_be_read(cluster: ClusterProcesses) -> None:
    make(cluster, "readable", [1])
    with Peer(str(cluster.brokers[1].settings["listen_native"])) as peer:
        begun = peer.ask(m.BeginBackup(), m.BackupBegun)
        assert begun.handle is not None
        noted = peer.ask(m.NoteEnds(begun.handle, ["readable"]), m.EndsNoted)
        assert [(topic, index, end) for topic, index, _, end in noted.ends] == [("readable", 0, 0)]
        held = peer.ask(m.HoldBackup(begun.handle, True), m.BackupHeld)
        with pytest.raises(InvalidRequest, match="is over"):
            peer.ask(m.NoteEnds(begun.handle), m.EndsNoted)
        manifest = json.loads(peer.ask(m.ReadBackup(held.handle, "manifest.json", 0, 1 << 20), m.BackupRead).data)
        names = {name for name, _ in manifest["files"]}
        assert "cluster/tree.json" in names
        for name in ("../../meta/CURRENT", "/etc/passwd", "", "topics", "manifest.json/", "topics/../manifest.json"):
            with pytest.raises(InvalidRequest):
                peer.ask(m.ReadBackup(held.handle, name, 0, 100), m.BackupRead)
        assert peer.ask(m.ReadBackup(held.handle, "manifest.json", 1 << 62, 100), m.BackupRead).data == b""
        peer.ask(m.Unregister(held.handle), m.Unregistered)
        wait_until(lambda: not any((cluster.brokers[1].data / "backup").iterdir()), "the links are removed")


def test_groups_of_a_folder_that_was_alone_are_in_a_backup_just_after_it_joined(
    tmp_path: Path, shared_processes: SharedProcesses
) -> None:
    """They move into the cluster's topics one by one, which takes seconds."""
    groups = [f"g{number}" for number in range(600)]
    cluster = ClusterProcesses(tmp_path, shared_processes.zookeeper, 1, shared_processes.launch)
    with ExitStack() as stack:
        stack.callback(cluster.kill)
        with BrokerProcess(cluster.brokers[1].data) as alone, Raw(alone.kafka) as raw:
            with blocking.connect(alone.address, timeout=LONG_S) as client:
                client.create_topic("t", 1)
            for name in groups:
                assert commit(raw, name, 0, 7) == Code.NONE
            assert alone.stop() == 0
        start_registered(cluster.brokers[1])
        done("backup", tmp_path / "backup", "--address", cluster.native)
    done("restore", tmp_path / "backup", "--data", tmp_path / "alone")
    with BrokerProcess(tmp_path / "alone") as alone, Raw(alone.kafka) as raw:
        assert [offsets(raw, name) for name in groups] == [{0: 7}] * len(groups)
        assert alone.stop() == 0


def test_over_tls_and_only_for_brokers_and_super_users(secured: SecuredProcesses, tmp_path: Path) -> None:
    def backup(user: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
        login = {
            "KRAPPY_CA": secured.authority.ca,
            "KRAPPY_USER": user,
            "KRAPPY_PASSWORD_FILE": str(secured.folder / "users" / user),
        }
        command = [sys.executable, "-m", "krappy", "backup", str(folder), "--json"]
        address = ",".join(secured.address(id, "listen_native") for id in secured.brokers)
        environ = {**os.environ, **login}
        return subprocess.run([*command, "--address", address], env=environ, capture_output=True, timeout=LONG_S)

    refused = backup("eve", tmp_path / "eve")
    assert refused.returncode == 1
    assert b"AUTHORIZATION_FAILED" in refused.stderr
    assert not (tmp_path / "eve").exists()
    taken = backup("admin", tmp_path / "admin")
    assert taken.returncode == 0, taken.stderr.decode()
    done("restore", tmp_path / "admin", "--data", tmp_path / "alone")
    check_folder(tmp_path / "alone")
    meta = Meta(tmp_path / "alone" / "meta")
    try:
        acls = LocalCatalog(meta, change=False).tree.image.acls.values()
        assert {acl.principal for acl in acls if acl is not None} == {"User:eve"}
    finally:
        meta.close()


def test_topics_that_are_made_meanwhile(
    cluster: ClusterProcesses, client: blocking.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers do not open new topics before the backup has linked its files. So these topics are empty, and the
    backup goes on."""
    make(cluster, "before", [1, 2, 3], [2, 3, 1])
    client.table("before").put("k", "old")
    hold = backups.hold
    kazoo = KazooClient(hosts=cluster.brokers[1].settings["zookeeper_connect"])

    async def late(router: Router, begun: Sequence[BegunAt]) -> list[HeldAt]:
        """Makes topics late: the tree has them, but no broker has told their ends."""
        cluster.admin.delete_topics(["before"])
        cluster.admin.create_topics([NewTopic("fresh", 3, replica_assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])])
        for path in ("/brokers/topics/before", "/brokers/topics/fresh/partitions/2/state"):
            wait_until(lambda path=path: (kazoo.exists(path) is None) == path.endswith("before"), path, LONG_S)  # type: ignore[misc]
        return await hold(router, begun)

    monkeypatch.setattr(backups, "hold", late)
    kazoo.start(LONG_S)
    try:
        with held_cluster(client, pytest.fail) as held:
            assert held is not None
            assert {at: end.end for at, end in held.ends.items() if at[0] in ("before", "fresh")} == {
                ("fresh", index): 0 for index in range(3)
            }
            copy = ClusterCopy(held, None, lambda count: None)
            copy.write(archive.FolderSink(tmp_path / "backup"), tmp_path / "backup", lambda name, count: None)
    finally:
        kazoo.stop()
        kazoo.close()
    done("restore", tmp_path / "backup", "--data", tmp_path / "alone")
    check_folder(tmp_path / "alone")
    with BrokerProcess(tmp_path / "alone") as alone, blocking.connect(alone.address) as other:
        assert [other.table("fresh").put(f"{n}", "v", partition=n).offset for n in range(3)] == [0, 0, 0]


def test_a_backup_begins_anew_when_a_broker_is_about_to_stop(
    client: blocking.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, asked, told = backups.begin, list[Link](), list[str]()

    async def stopping(link: Link) -> BegunAt | None:
        asked.append(link)
        if len(asked) == 2:
            raise ShuttingDown("the broker is shutting down")
        return await begin(link)

    monkeypatch.setattr(backups, "begin", stopping)
    with held_cluster(client, told.append) as held:
        assert held is not None
        assert len(held.brokers) == 3
    assert told == ["the broker is shutting down; the backup begins anew"]
