"""`krappy backup` beside a busy broker, and `krappy restore` elsewhere: a backup is whole, checked, and has a prefix of
every log."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from krappy import blocking
from krappy.broker.topics.catalog import STARTS
from krappy.cli import archive, checkup
from krappy.store.catalog import LocalCatalog
from krappy.store.meta import Meta
from krappy.testing.running import run_broker
from tests.process import krappy, wait_until


class Load:
    """Writes keyed events until it is stopped; counts how many were acknowledged in each partition."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self.acknowledged = [0] * partitions
        self._address, self._topic = address, topic
        self._stop = threading.Event()
        self._moved = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        with blocking.connect(self._address) as client, client.producer(self._topic) as producer:
            number = 0
            while not self._stop.is_set():
                partition = number % len(self.acknowledged)
                rows = range(number, number + 50)
                producer.send_columns(
                    [b"k%d" % (row % 300) for row in rows], [b"%d" % row for row in rows], partition=partition
                )
                number += 50
                with self._moved:
                    self.acknowledged[partition] += 50
                    self._moved.notify_all()

    def wait_for(self, count: int) -> list[int]:
        with self._moved:
            assert self._moved.wait_for(lambda: sum(self.acknowledged) >= count, 60)
            return list(self.acknowledged)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def loaded(address: str, topic: str, partitions: int) -> Iterator[Load]:
    load = Load(address, topic, partitions)
    try:
        yield load
    finally:
        load.stop()


def contents(address: str, topic: str) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = {}
    with blocking.connect(address) as client, client.consumer(topic, start="earliest", end="now") as consumer:
        for event in consumer:
            found.setdefault(event.partition, []).append(event.value)
    return found


@pytest.mark.parametrize("form", ["folder", "tar", "pipe"])
def test_a_backup_under_load_is_a_prefix_of_what_was_acknowledged(tmp_path: Path, form: str) -> None:
    with run_broker(tmp_path / "data") as broker:
        with blocking.connect(broker.address) as client:
            client.create_topic("t", partitions=3, config={"segment.bytes": 20_000, "cleanup.policy": "delete"})
            client.create_topic("users", config={"cleanup.policy": "compact"})
            with client.producer("users") as producer:
                producer.send("Ada", key="u1")
                producer.send(None, key="u2")
            with client.consumer("users", group="mail") as consumer:
                consumer.ack(next(consumer))
        target = tmp_path / ("copy.tar" if form == "tar" else "copy")
        with loaded(broker.address, "t", 3) as load:
            before = load.wait_for(3_000)
            if form == "pipe":
                done = krappy("backup", "-", "--address", broker.address)
                target.write_bytes(done.stdout)
            else:
                done = krappy("backup", target, "--address", broker.address)
            assert done.returncode == 0, done.stderr
            load.wait_for(sum(before) + 1_000)  # writing went on meanwhile
        whole = contents(broker.address, "t")
        wait_until(lambda: not list((tmp_path / "data" / "backup").iterdir()), "the broker lets go")

    done = krappy("restore", target, "--data", tmp_path / "elsewhere", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] > 10
    found = checkup.check(tmp_path / "elsewhere", repair=False, tell=lambda *_: None)
    assert found.sound, found
    with run_broker(tmp_path / "elsewhere") as broker:
        restored = contents(broker.address, "t")
        for partition, values in restored.items():
            assert values == whole[partition][: len(values)]
            assert len(values) >= before[partition]
        with blocking.connect(broker.address) as client:
            entry = client.table("users").get("u1")
            assert entry is not None
            assert entry.value == b"Ada"
            assert client.group("mail").lag == 1
            with client.producer("t") as producer:  # the restored broker takes events
                producer.send("after", key="k").result()


def test_segments_that_expire_during_a_backup_are_in_it(tmp_path: Path) -> None:
    with run_broker(tmp_path / "data") as broker, blocking.connect(broker.address) as client:
        client.create_topic("t", config={"segment.bytes": 5_000})
        with client.producer("t") as producer:
            for start in range(0, 2_000, 100):
                producer.send_columns(None, [b"%d" % row for row in range(start, start + 100)])
        with client.hold_backup() as held:
            folder = Path(held.folder)
            manifest = json.loads((folder / "manifest.json").read_bytes())
            client.delete_records("t", {0: 1_500})
            archive.write(archive.FolderSink(tmp_path / "copy"), folder, manifest, lambda *_: None)
    assert krappy("restore", tmp_path / "copy", "--data", tmp_path / "elsewhere").returncode == 0
    with run_broker(tmp_path / "elsewhere") as broker:
        assert contents(broker.address, "t") == {0: [b"%d" % row for row in range(2_000)]}


def test_staged_writes_are_in_it_and_their_commit_goes_on(tmp_path: Path) -> None:
    with run_broker(tmp_path / "data") as broker, blocking.connect(broker.address) as client:
        client.create_topic("t")
        with client.stage("t", job="j", task="0", attempt="0") as stage:
            stage.send_columns(None, [b"staged"])
            token = stage.seal()
        assert krappy("backup", tmp_path / "copy", "--address", broker.address).returncode == 0
        client.commit_staged("j", [token])
    assert krappy("restore", tmp_path / "copy", "--data", tmp_path / "elsewhere").returncode == 0
    with run_broker(tmp_path / "elsewhere") as broker:
        assert contents(broker.address, "t") == {}
        with blocking.connect(broker.address) as client:
            client.commit_staged("j", [token])
        assert contents(broker.address, "t") == {0: [b"staged"]}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A finished backup of one event."""
    with run_broker(tmp_path / "data") as broker, blocking.connect(broker.address) as client:
        with client.producer("t") as producer:
            producer.send("1").result()
        assert krappy("backup", tmp_path / "copy", "--address", broker.address).returncode == 0
    return tmp_path / "copy"


def test_a_damaged_backup_is_refused(small: Path, tmp_path: Path) -> None:
    log = next(small.glob("topics/t-*/*.log"))
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    done = krappy("restore", small, "--data", tmp_path / "elsewhere")
    assert done.returncode == 1
    assert b"not as they were written" in done.stderr
    assert log.name.encode() in done.stderr
    assert not (tmp_path / "elsewhere" / "meta").exists()


def test_what_is_restored_is_led_in_epochs_of_its_own(small: Path, tmp_path: Path) -> None:
    """The broker that was copied may have been started again since, and may have written other events in its next
    epochs."""
    assert krappy("restore", small, "--data", tmp_path / "elsewhere").returncode == 0
    epochs = []
    for folder in ("data", "elsewhere"):
        with run_broker(tmp_path / folder):
            pass
        meta = Meta(tmp_path / folder / "meta")
        (partition,) = LocalCatalog(meta).tree.image.topics["t"].partitions
        epochs.append(partition.state.leader_epoch)
        meta.close()
    assert epochs == [1, STARTS + 1]


def test_an_unfinished_backup_is_refused(small: Path, tmp_path: Path) -> None:
    (small / archive.LISTING).unlink()
    done = krappy("restore", small, "--data", tmp_path / "elsewhere")
    assert (done.returncode, b"no finished backup" in done.stderr) == (1, True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(small, arcname=".")
    for cut in (len(packed.getvalue()) // 2, 0):
        done = krappy("restore", "-", "--data", tmp_path / "elsewhere", stdin=packed.getvalue()[:cut])
        assert done.returncode == 1, done
        assert not (tmp_path / "elsewhere" / "meta").exists()


def test_a_restore_of_nothing_leaves_a_folder_for_a_broker(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source in ("nowhere", "empty"):
        done = krappy("restore", tmp_path / source, "--data", tmp_path / "data")
        assert done.returncode == 1, done
    with run_broker(tmp_path / "data"):
        pass


def test_names_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo("../outside")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    done = krappy("restore", "-", "--data", tmp_path / "elsewhere", stdin=packed.getvalue())
    assert done.returncode == 1
    assert b"no file called" in done.stderr
    assert not (tmp_path / "outside").exists()


def test_a_folder_in_use_is_left_alone(small: Path, tmp_path: Path) -> None:
    done = krappy("restore", small, "--data", tmp_path / "data")
    assert done.returncode == 1
    assert b"is not empty" in done.stderr
    assert b"If a restore to it was interrupted, it was at its end" in done.stderr
    with run_broker(tmp_path / "data") as broker:
        done = krappy("restore", small, "--data", tmp_path / "data")
        assert done.returncode == 1
        assert b"in use" in done.stderr
        done = krappy("backup", small, "--address", broker.address)
        assert done.returncode == 1
        assert b"not empty" in done.stderr


def test_nobody_works_in_a_backup_as_if_it_were_a_data_folder(small: Path, tmp_path: Path) -> None:
    """Whatever opens it changes it, and then it can't be restored any more."""
    before = {file: file.read_bytes() for file in small.rglob("*") if file.is_file()}
    for command in (
        ["doctor", "--data", small],
        ["doctor", "--data", small, "--repair"],
        ["serve", "--data", small],
        ["user", "list", "--data", small],
        ["restore", small, "--data", small],
    ):
        refused = krappy(*command)
        assert refused.returncode == 1, command
        assert b"is a backup: `krappy restore` makes a data folder of it" in refused.stderr
    assert {file: file.read_bytes() for file in small.rglob("*") if file.is_file()} == before
    assert krappy("doctor", "--backup", small).returncode == 0
    assert krappy("restore", small, "--data", tmp_path / "restored").returncode == 0
    assert krappy("doctor", "--data", tmp_path / "restored").returncode == 0
