"""The changes of these operations must be on disk before the operation is acknowledged. Each test records an operation;
then all that was not synced is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from krappy.cli import checkup, generations
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from tests.peer import Peer
from tests.power.disk import Disk
from tests.power.promises import wrong_files
from tests.power.record import Entry, Kind, Record
from tests.process import PATIENCE, BrokerProcess, Launcher


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    (tmp_path / "disk").mkdir()
    with Record(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with run_broker(tmp_path / "data") as running, running.connect() as client:
        with client.producer("t") as producer:
            producer.send("value", key="key")
        yield running


def back_up(record: Record, broker: RunningBroker, target: Path, *more: str) -> None:
    with Launcher(record.environ()) as launch, open(os.devnull, "r+") as nothing:
        fd = nothing.fileno()
        arguments = ["backup", str(target), "--address", broker.address, *more]
        assert launch(arguments, fd, fd, fd).wait(PATIENCE) == 0


@pytest.mark.parametrize("target", ["a/b/folder", "backup.tar", "a/b"])
def test_a_backup_is_on_disk(target: str, record: Record, broker: RunningBroker, tmp_path: Path) -> None:
    more = ["--incremental"] if target == "a/b" else []
    back_up(record, broker, record.root / target, *more)
    disk = Disk.of(record.root)
    for entry in record.entries():
        disk.play(entry)
    disk.write(tmp_path / "left", 0, Random(0))
    left = tmp_path / "left" / target
    if more:
        (left,) = generations.list_all(left)
    assert wrong_files(left) == []


def test_half_of_a_deleted_backup_counts_for_none(record: Record, broker: RunningBroker, tmp_path: Path) -> None:
    for _ in range(2):
        back_up(record, broker, record.root / "daily", "--incremental", "--keep", "1")
    random = Random(1)
    disk = Disk.of(record.root)
    looked = 0
    for number, entry in enumerate(record.entries()):
        disk.play(entry)
        if number % 5 == 0:
            disk.write(left := tmp_path / f"left-{number}", 0.5, random)
            for each in generations.list_all(left / "daily"):
                looked += 1
                assert wrong_files(each) == [], each
    assert looked


def test_a_deleted_topic_does_not_come_back_in_one_of_its_name(record: Record, tmp_path: Path) -> None:
    with (
        Launcher(record.environ()) as launch,
        BrokerProcess(record.root / "data", launch=launch, log=tmp_path / "log") as broker,
        Peer(broker.address) as peer,
    ):
        peer.ask(m.CreateTopic("other"), m.TopicCreated)
        peer.ask(m.CreateTopic("t"), m.TopicCreated)
        peer.ask(m.Message(peer.producer("t").handle, b"value", b"key"), m.MessageStored)
        peer.ask(m.DeleteTopic("t"), m.TopicDeleted)
        peer.ask(m.AlterTopic("other", {"retention.ms": 1}), m.TopicAltered)  # syncs the catalog, which lacks t by now
    disk = Disk.of(record.root)
    for entry in record.entries():
        disk.play(entry)
    disk.write(tmp_path / "left", 0, Random(0))
    with run_broker(tmp_path / "left" / "data") as running, Peer(running.address) as peer:
        assert peer.topics().keys() == {"other"}
        peer.ask(m.CreateTopic("t"), m.TopicCreated)
        assert peer.read_log("t") == ([], 0, 0)
        assert peer.get("t", b"key") is None
    assert checkup.check(tmp_path / "left" / "data", repair=False, tell=lambda *_: None).sound


def made_and_not_synced(disk: Disk, *folders: Path) -> None:
    """Makes these folders without a sync of their names, as a process does that is killed before the sync."""
    for folder in folders:
        folder.mkdir()
        parent, its = (each.stat().st_ino for each in (folder.parent, folder))
        disk.play(Entry(0, Kind.MADE_FOLDER, parent, its, folder.name.encode()))


def left_of(disk: Disk, record: Record, left: Path) -> Path:
    for entry in record.entries():
        disk.play(entry)
    disk.write(left, 0, Random(0))
    return left


def publish(record: Record, log: Path) -> None:
    with (
        Launcher(record.environ()) as launch,
        BrokerProcess(record.root / "a" / "data", launch=launch, log=log) as broker,
        Peer(broker.address) as peer,
    ):
        peer.ask(m.Message(peer.producer("t").handle, b"value", b"key"), m.MessageStored)


def check_published(data: Path) -> None:
    with run_broker(data) as running, Peer(running.address) as peer:
        assert [each.value for each in peer.read_log("t")[0]] == [b"value"]


@pytest.mark.parametrize(
    "made", [["a"], ["a", "a/data"], ["a", "a/data", "a/data/topics"], ["a", "a/data", "a/data/meta"]]
)
def test_a_data_folder_of_a_killed_start_is_on_disk(made: list[str], record: Record, tmp_path: Path) -> None:
    disk = Disk.of(record.root)
    made_and_not_synced(disk, *(record.root / name for name in made))
    publish(record, tmp_path / "log")
    check_published(left_of(disk, record, tmp_path / "left") / "a" / "data")


def test_a_partition_of_a_killed_broker_is_on_disk(record: Record, tmp_path: Path) -> None:
    data = record.root / "a" / "data"
    with run_broker(data) as running, running.connect() as client:
        client.create_topic("t")
    shutil.rmtree(data / "topics" / "t-0")
    disk = Disk.of(record.root)
    disk.load(record.root)
    made_and_not_synced(disk, data / "topics" / "t-0")
    publish(record, tmp_path / "log")
    check_published(left_of(disk, record, tmp_path / "left") / "a" / "data")


@pytest.mark.parametrize("more", [[], ["--incremental"]])
def test_a_backup_behind_a_killed_one_is_on_disk(
    more: list[str], record: Record, broker: RunningBroker, tmp_path: Path
) -> None:
    disk = Disk.of(record.root)
    made_and_not_synced(disk, record.root / "a", record.root / "a" / "b")
    back_up(record, broker, record.root / "a" / "b", *more)
    left = left_of(disk, record, tmp_path / "left") / "a" / "b"
    assert wrong_files(generations.list_all(left)[0] if more else left) == []


def test_what_is_restored_behind_a_killed_restore_is_on_disk(
    record: Record, broker: RunningBroker, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", record.root / "a" / "b"
    disk = Disk.of(record.root)
    made_and_not_synced(disk, record.root / "a", target)
    with Launcher(record.environ()) as launch, open(os.devnull, "r+") as nothing:
        fd = nothing.fileno()
        assert launch(["backup", str(source), "--address", broker.address], fd, fd, fd).wait(PATIENCE) == 0
        assert launch(["restore", str(source), "--data", str(target)], fd, fd, fd).wait(PATIENCE) == 0
    check_published(left_of(disk, record, tmp_path / "left") / "a" / "b")
