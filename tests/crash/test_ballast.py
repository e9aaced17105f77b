"""Other programs fill the disk to its last byte. The broker then gives up its ballast, and all its work but publishing
goes on. It also starts on such a disk, and takes events again once there is room."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from krappy.errors import KrappyError, StorageError
from krappy.wire import messages as m
from tests.crash.tmpfs import Tmpfs
from tests.peer import Peer
from tests.process import BrokerProcess, Launcher, broker_process, wait_until

SETTINGS: dict[str, Any] = {
    "view_memtable_bytes": 256 << 10,
    "view_cache_bytes": 1 << 20,
    "retention_check_ms": 100,
    "cleaner_backoff_ms": 100,
    "ballast_bytes": 64 << 20,
    "listen_http": "127.0.0.1:0",
}


class Small(Tmpfs):
    """A file system of 16 MiB."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "16m")

    @property
    def free(self) -> int:
        return shutil.disk_usage(self.folder).free

    @property
    def ballast(self) -> int:
        return (self.folder / "data" / "ballast").stat().st_size


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Small]:
    made = Small(tmp_path)
    yield made
    made.close()


def ready(broker: BrokerProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{broker.http}/readyz", timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        [line] = [line for line in answer.read().decode().splitlines() if line.startswith(f"krappy_{name} ")]
    return float(line.split()[1])


def done(attempt: Callable[[], object]) -> bool:
    """Whether the attempt succeeded. Raises AssertionError if it failed with an error that may not be tried again."""
    try:
        attempt()
    except KrappyError as error:
        if not error.retriable:
            raise
        return False
    return True


def test_all_but_publishing_goes_on_without_a_free_byte(disk: Small, launch: Launcher) -> None:
    with (
        broker_process(disk.folder / "data", launch=launch, log=disk.log, **SETTINGS) as broker,
        Peer(broker.address) as peer,
    ):
        assert disk.ballast == 2 << 20  # an eighth of the disk
        for name in ("t", "deleted", "spare"):
            peer.ask(m.CreateTopic(name, 1, {"segment.bytes": 100_000}), m.TopicCreated)
            handle = peer.producer(name).handle
            for number in range(10):
                peer.ask(m.Message(handle, bytes(40_000), b"k%d" % number), m.MessageStored)
        handle = peer.producer("t").handle
        assert ready(broker) == {"status": "ready"}
        assert metric(broker, "ballast_bytes") == 2 << 20

        disk.fill()
        wait_until(lambda: disk.ballast == 0, "the ballast is given up")
        assert 0 < disk.free < 3 << 20
        wait_until(lambda: "refused" in ready(broker), "the probe says so")
        with pytest.raises(StorageError, match=r"is full: .* Delete topics or events"):
            peer.ask(m.Message(handle, b"v", b"k"), m.MessageStored)
        [why] = ready(broker)["refused"]
        assert why.startswith("events: the disk of")
        assert metric(broker, "events_refused") == 1
        assert metric(broker, "ballast_bytes") == 0
        assert metric(broker, "disk_bytes") == 16 << 20
        assert 0 < metric(broker, "disk_free_bytes") < 3 << 20
        wait_until(lambda: done(lambda: peer.ask(m.Commit("g", [("t", 0, 3)]), m.Committed)), "positions are taken")
        peer.ask(m.CreateTopic("made"), m.TopicCreated)
        assert len(peer.read_log("t")[0]) == 10
        assert peer.get("t", b"k3") is not None
        peer.ask(m.DeleteTopic("deleted"), m.TopicDeleted)
        peer.ask(m.DeleteRecords("t", [(0, 5)]), m.RecordsDeleted)
        assert len(peer.read_log("t")[0]) == 5
        peer.ask(m.AlterTopic("spare", {"retention.ms": 1}), m.TopicAltered)
        wait_until(lambda: peer.describe("spare")["partitions"][0]["start"] == 10, "retention goes on")

        disk.clear()
        wait_until(lambda: disk.ballast == 2 << 20, "the ballast is made again")
        wait_until(lambda: ready(broker) == {"status": "ready"}, "nothing is refused")
        peer.ask(m.Message(handle, b"v", b"k"), m.MessageStored)
        assert broker.stop() == 0
        assert [event["event"] for event in broker.events("events_refused")] == ["events_refused"]
        assert not broker.events("internal_error"), broker.last_words()


def test_killed_on_a_disk_that_is_full_to_the_last_byte_it_starts(disk: Small, launch: Launcher) -> None:
    with broker_process(disk.folder / "data", launch=launch, log=disk.log, **SETTINGS) as broker:
        with Peer(broker.address) as peer:
            peer.ask(m.CreateTopic("t", 1), m.TopicCreated)
            handle = peer.producer("t").handle
            for number in range(100):
                peer.ask(m.Message(handle, bytes(20_000), b"k%d" % number), m.MessageStored)
        broker.kill()
        disk.fill()
        assert (disk.free, disk.ballast) == (0, 2 << 20)
        broker.start()
        with Peer(broker.address) as peer:
            assert len(peer.read_log("t")[0]) == 100
            handle = peer.producer("t").handle
            with pytest.raises(StorageError, match="is full"):
                peer.ask(m.Message(handle, b"v", b"k"), m.MessageStored)
            peer.ask(m.DeleteTopic("t"), m.TopicDeleted)
            assert broker.stop() == 0
        disk.fill()
        disk.clear()
        broker.start()
        assert disk.ballast == 2 << 20


def test_producers_alone_do_not_take_the_last_byte(disk: Small, launch: Launcher) -> None:
    """They don't take the ballast either: it is for disks that other programs fill."""
    with (
        broker_process(disk.folder / "data", launch=launch, log=disk.log, **SETTINGS) as broker,
        Peer(broker.address) as peer,
    ):
        peer.ask(m.CreateTopic("t", 1), m.TopicCreated)
        handle = peer.producer("t").handle
        number = 0
        for size in (40_000, 2_000):
            while done(lambda size=size: peer.ask(m.Message(handle, bytes(size), b"k"), m.MessageStored)):  # type: ignore[misc]
                number += 1
                assert number < 10_000
        assert disk.free > 100_000
        assert disk.ballast == 2 << 20
        peer.ask(m.Commit("g", [("t", 0, number)]), m.Committed)
        peer.ask(m.CreateTopic("u"), m.TopicCreated)
        peer.ask(m.DeleteTopic("t"), m.TopicDeleted)
        handle = peer.producer("u").handle
        wait_until(
            lambda: done(lambda: peer.ask(m.Message(handle, bytes(2_000), b"k"), m.MessageStored)),
            "events are taken again",
        )
        assert broker.stop() == 0


def test_with_a_size_of_0_there_is_no_ballast(disk: Small, launch: Launcher) -> None:
    settings = {**SETTINGS, "ballast_bytes": 0}
    path = disk.folder / "data" / "ballast"
    path.parent.mkdir()
    path.write_bytes(bytes(1000))  # as left by a start with another setting
    with broker_process(disk.folder / "data", launch=launch, log=disk.log, **settings):
        assert not path.exists()
