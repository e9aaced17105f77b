"""`krappy backup --incremental`: each backup is whole, and copies only what is new. And `krappy doctor --backup`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from krappy.cli import archive, checkup, generations
from krappy.store import hold
from krappy.store.lock import FolderLock
from krappy.testing.running import RunningBroker, run_broker
from tests.cli.test_backup import contents
from tests.process import krappy

SEGMENT = 20_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with run_broker(tmp_path / "data") as running:
        with running.connect() as client:
            client.create_topic("t", config={"segment.bytes": SEGMENT, "compression.type": "producer"})
        yield running


def publish(broker: RunningBroker, numbers: range) -> None:
    with broker.connect() as client, client.producer("t") as producer:
        for start in range(numbers.start, numbers.stop, 100):
            producer.send_columns(None, [b"%090d" % row for row in range(start, start + 100)])


def take(broker: RunningBroker, folder: Path, *more: object) -> dict[str, Any]:
    done = krappy("backup", folder, "--incremental", *more, "--address", broker.address, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def restored(source: Path, data: Path) -> list[bytes | None]:
    done = krappy("restore", source, "--data", data)
    assert done.returncode == 0, done.stderr
    assert checkup.check(data, repair=False, tell=lambda *_: None).sound
    with run_broker(data) as broker:
        return contents(broker.address, "t").get(0, [])


def values(count: int) -> list[bytes]:
    return [b"%090d" % row for row in range(count)]


def test_each_is_whole_and_copies_only_what_is_new(broker: RunningBroker, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    publish(broker, range(4_000))
    first = take(broker, folder)
    assert (first["shared_bytes"], first["copied_bytes"]) == (0, first["bytes"])
    publish(broker, range(4_000, 5_000))
    second = take(broker, folder)
    assert second["shared_bytes"] > 4_000 * 90 - 2 * SEGMENT
    assert second["copied_bytes"] + second["shared_bytes"] == second["bytes"]
    assert second["copied_bytes"] < first["bytes"]
    closed = min((Path(first["target"]) / "topics").rglob("*.log"))
    again = Path(second["target"]) / closed.relative_to(first["target"])
    assert again.samefile(closed)
    assert [str(each) for each in generations.list_all(folder)] == [first["target"], second["target"]]

    assert restored(Path(first["target"]), tmp_path / "one") == values(4_000)
    shutil.rmtree(first["target"])  # no backup needs another
    assert restored(folder, tmp_path / "two") == values(5_000)  # of several backups, the latest is restored


def test_a_file_of_the_same_name_and_size_that_is_another_is_copied(broker: RunningBroker, tmp_path: Path) -> None:
    """As of a topic that was deleted and made again, or after a compaction."""
    publish(broker, range(2_000))
    first = take(broker, tmp_path / "backups")
    with broker.connect() as client:
        client.delete_topic("t")
        client.create_topic("t", config={"segment.bytes": SEGMENT})
    publish(broker, range(10_000, 12_000))
    second = take(broker, tmp_path / "backups")
    logs = [sorted((Path(each["target"]) / "topics").rglob("*.log")) for each in (first, second)]
    same = [(one.name, one.stat().st_size) for one in logs[0]] == [(two.name, two.stat().st_size) for two in logs[1]]
    assert same, "this shows nothing"
    assert restored(Path(second["target"]), tmp_path / "two")[0] == b"%090d" % 10_000
    assert restored(Path(first["target"]), tmp_path / "one")[0] == b"%090d" % 0


def test_a_large_active_segment_is_closed_so_that_it_is_copied_once(
    broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "ROLL_BYTES", 8_000)
    with broker.connect() as client:
        client.alter_topic("t", {"segment.bytes": 1 << 30})
    publish(broker, range(500))
    take(broker, tmp_path / "backups")
    second = take(broker, tmp_path / "backups")
    assert second["shared_bytes"] > 500 * 90
    publish(broker, range(500, 600))
    assert restored(tmp_path / "backups", tmp_path / "two") == values(500)


def test_no_more_than_so_much_each_second(broker: RunningBroker, tmp_path: Path) -> None:
    publish(broker, range(1_000))
    done = take(broker, tmp_path / "backups", "--max-rate", "0.2")
    assert done["seconds"] >= done["bytes"] / 200_000


def test_the_oldest_go_and_what_was_cut_short(broker: RunningBroker, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    targets = [take(broker, folder)["target"] for _ in range(3)]
    (folder / ".unfinished" / "topics").mkdir(parents=True)  # left by a backup that was killed
    last = take(broker, folder, "--keep", "2")
    assert last["removed"] == [Path(each).name for each in targets[:2]]
    assert sorted(each.name for each in folder.iterdir()) == sorted(
        ["lock", Path(targets[2]).name, Path(last["target"]).name]
    )


def test_the_one_just_made_is_the_newest_after_the_clock_was_set_back(broker: RunningBroker, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    publish(broker, range(100))
    first = Path(take(broker, folder)["target"])
    later = first.rename(folder / "2199-12-31T23-59-59.999Z")  # made when the clock was ahead
    kept = Path(take(broker, folder)["target"]).rename(folder / "kept by people")
    publish(broker, range(100, 200))
    last = take(broker, folder, "--keep", "1")
    assert last["removed"] == [later.name]
    assert generations.list_all(folder) == [kept, Path(last["target"])]
    assert restored(folder, tmp_path / "two") == values(200)


def test_one_that_can_t_be_read_is_not_shared_with(broker: RunningBroker, tmp_path: Path) -> None:
    publish(broker, range(2_000))
    first = Path(take(broker, tmp_path / "backups")["target"])
    (first / archive.LISTING).write_text("{")
    assert take(broker, tmp_path / "backups")["shared_bytes"] == 0


def test_a_file_that_was_cut_is_not_shared(broker: RunningBroker, tmp_path: Path) -> None:
    publish(broker, range(2_000))
    first = Path(take(broker, tmp_path / "backups")["target"])
    log = min((first / "topics").rglob("*.log"))
    os.truncate(log, 10)
    second = Path(take(broker, tmp_path / "backups")["target"])
    assert restored(second, tmp_path / "two") == values(2_000)


def test_what_can_t_be(broker: RunningBroker, tmp_path: Path) -> None:
    address = ("--address", broker.address)
    for more in (["x.tar", "--incremental"], ["-", "--incremental"], [tmp_path / "x", "--keep", "3"]):
        assert krappy("backup", *more, *address).returncode == 2
    assert krappy("backup", tmp_path / "one", *address).returncode == 0
    done = krappy("backup", tmp_path / "one", "--incremental", *address)
    assert (done.returncode, b"is itself a backup" in done.stderr) == (1, True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    done = krappy("backup", tmp_path / "notes", "--incremental", *address)
    assert (done.returncode, b"holds other things" in done.stderr) == (1, True)
    lock = FolderLock(tmp_path / "busy")
    try:
        done = krappy("backup", tmp_path / "busy", "--incremental", *address)
        assert (done.returncode, b"another backup is being made" in done.stderr) == (1, True)
    finally:
        lock.release()


def test_a_doctor_for_backups(broker: RunningBroker, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    publish(broker, range(1_000))
    targets = [Path(take(broker, folder)["target"]) for _ in range(2)]
    assert krappy("backup", tmp_path / "one.tar", "--address", broker.address).returncode == 0
    for source, count in ((folder, 2), (targets[0], 1), (tmp_path / "one.tar", 1)):
        done = krappy("doctor", "--backup", source, "--json")
        assert done.returncode == 0, done.stderr
        assert (json.loads(done.stdout)["sound"], len(json.loads(done.stdout)["backups"])) == (True, count)
    log = min((targets[1] / "topics").rglob("*.log"))
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)  # both backups share this file
    done = krappy("doctor", "--backup", folder)
    assert done.returncode == 1
    assert done.stdout.count(log.name.encode() + b" is not as it was written") == 2, done.stdout
    piped = krappy("doctor", "--backup", "-", "--json", stdin=(tmp_path / "one.tar").read_bytes()[:5_000])
    assert (piped.returncode, json.loads(piped.stdout)["sound"]) == (1, False)
    assert krappy("doctor", "--backup", folder, "--repair").returncode == 2
