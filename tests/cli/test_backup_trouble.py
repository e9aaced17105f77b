"""`krappy backup` and `krappy restore` when something goes wrong meanwhile, or simply goes on."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from krappy import blocking
from krappy.cli import archive, checkup
from krappy.cli.spawn import spawn_broker
from krappy.clients import admin
from krappy.core.transactions import MAX_EPOCH, Transaction, TxnStage
from krappy.errors import StorageError
from krappy.handlers.native import backup as handler
from krappy.store import hold
from krappy.store.hold import _files as held_files
from krappy.store.meta import Meta
from krappy.store.transactions import TransactionStore, key_of, packed, unpacked
from krappy.testing.running import run_broker
from tests.broker.catalogs import SyncCatalog
from tests.cli.test_backup import contents
from tests.process import child, krappy

PARTITIONS = 24


class Transactions:
    """Runs transactions one after the other until it is stopped; each writes its number to every partition."""

    def __init__(self, address: str) -> None:
        self._producer = transactional(address)
        self._producer.init_transactions(60)
        self._stop = threading.Event()
        self._done = threading.Condition()
        self.count = 0
        self._thread = threading.Thread(target=self._run, name="transactions")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.begin_transaction()
            for partition in range(PARTITIONS):
                self._producer.produce("t", b"%d" % self.count, partition=partition)
            self._producer.commit_transaction(60)
            with self._done:
                self.count += 1
                self._done.notify_all()

    def wait_for(self, count: int) -> None:
        with self._done:
            assert self._done.wait_for(lambda: self.count >= count, 120)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def transactional(address: str) -> Producer:
    return Producer({"bootstrap.servers": address, "transactional.id": "whole", "linger.ms": 0})


def copy(client: blocking.Client, target: Path) -> None:
    with client.hold_backup() as held:
        folder = Path(held.folder)
        manifest = json.loads((folder / "manifest.json").read_bytes())
        archive.write(archive.FolderSink(target), folder, manifest, lambda *_: None)


def slow_files(folder: Path) -> Iterator[Path]:
    """Takes its time between logs, in which transactions could go on if the backup let them."""
    for path in held_files(folder):
        time.sleep(0.02 if path.suffix == ".log" else 0)
        yield path


def test_no_half_of_a_transaction_is_in_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "_files", slow_files)
    copies = [tmp_path / f"copy{number}" for number in range(2)]
    known: list[int] = []
    with (
        run_broker(tmp_path / "data", listen_kafka="127.0.0.1:0") as broker,
        blocking.connect(broker.address) as client,
    ):
        client.create_topic("t", partitions=PARTITIONS)
        load = Transactions(broker.kafka_address)
        try:
            for target in copies:
                load.wait_for(load.count + 3)
                known.append(load.count)
                copy(client, target)
        finally:
            load.stop()
    for target, least in zip(copies, known, strict=True):
        data = tmp_path / "elsewhere" / target.name
        assert krappy("restore", target, "--data", data).returncode == 0
        with run_broker(data, listen_kafka="127.0.0.1:0") as broker:
            transactional(broker.kafka_address).init_transactions(60)  # aborts a transaction that was open
            found = contents(broker.address, "t")
        assert len(found) == PARTITIONS
        numbers = {tuple(values) for values in found.values()}
        assert len(numbers) == 1, "a transaction is in some partitions, and not in others"
        assert numbers.pop()[:least] == tuple(b"%d" % number for number in range(least))
        assert checkup.check(data, repair=False, tell=lambda *_: None).sound


def test_a_transaction_does_not_go_on_after_a_restore(tmp_path: Path) -> None:
    """What the transaction has written since the backup is lost. If it went on, only half of it would be committed."""
    with (
        run_broker(tmp_path / "data", listen_kafka="127.0.0.1:0") as broker,
        blocking.connect(broker.address) as client,
    ):
        client.create_topic("t")
        producer = transactional(broker.kafka_address)
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("t", b"1")
        assert producer.flush(60) == 0
        other = Producer({"bootstrap.servers": broker.kafka_address, "transactional.id": "other"})
        other.init_transactions(60)
        copy(client, tmp_path / "copy")
    assert krappy("restore", tmp_path / "copy", "--data", tmp_path / "restored").returncode == 0
    meta = Meta(tmp_path / "restored" / "meta")
    found = TransactionStore(meta).load_all()
    meta.close()
    assert (found["whole"].stage, found["whole"].epoch) == (TxnStage.PREPARE_ABORT, 1)
    assert (found["other"].stage, found["other"].epoch) == (TxnStage.EMPTY, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"epoch": MAX_EPOCH + 2},
        {"epoch": MAX_EPOCH + 1, "stage": TxnStage.ONGOING},
        {"epoch": -1},
        {"producer_id": 2**63},
        {"producer_id": -1},
        {"next_id": 2**63},
    ],
)
def test_ids_and_epochs_that_no_producer_has_are_a_clear_error(fields: dict[str, Any]) -> None:
    """As in a damaged or crafted catalog: no marker can be written for them."""
    good = Transaction("x", 2**63 - 1, MAX_EPOCH + 1, 1)
    assert unpacked(key_of("x"), packed(good)) == good
    with pytest.raises(StorageError, match="can't be read"):
        unpacked(key_of("x"), packed(good._replace(**fields)))


def test_a_broker_that_is_killed_beside_a_backup_leaves_nothing_of_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with spawn_broker(data) as broker, blocking.connect(broker.address) as client:
        with client.producer("t") as producer:
            producer.send("1", key="k").result()
        with client.hold_backup() as held:
            assert (Path(held.folder) / "manifest.json").exists()
            broker.process.kill()
            broker.process.wait()
    assert list((data / "backup").iterdir())
    with spawn_broker(data) as broker:
        assert not (data / "backup").exists()
        assert contents(broker.address, "t") == {0: [b"1"]}


def test_compaction_goes_on_beside_a_backup(tmp_path: Path) -> None:
    settings = {"cleaner_backoff_ms": 10}
    config: dict[str, str | int | float | None] = {
        "cleanup.policy": "compact",
        "segment.bytes": 5_000,
        "min.cleanable.dirty.ratio": 0.01,
    }
    with run_broker(tmp_path / "data", **settings) as broker, blocking.connect(broker.address) as client:
        with client.hold_backup() as empty:
            assert empty.files > 0
        client.create_topic("t", config={**config, "min.compaction.lag.ms": 3_600_000})
        with client.producer("t") as producer:
            for number in range(40):
                producer.send_columns([b"k%d" % (row % 7) for row in range(100)], [b"%d" % number] * 100)
        with client.hold_backup() as held:
            folder = Path(held.folder)
            manifest = json.loads((folder / "manifest.json").read_bytes())
            client.alter_topic("t", {"min.compaction.lag.ms": 0})
            until(lambda: len(contents(broker.address, "t")[0]) < 2_000)  # it has been compacted
            archive.write(archive.FolderSink(tmp_path / "copy"), folder, manifest, lambda *_: None)
    assert krappy("restore", tmp_path / "copy", "--data", tmp_path / "elsewhere").returncode == 0
    assert checkup.check(tmp_path / "elsewhere", repair=False, tell=lambda *_: None).sound
    with run_broker(tmp_path / "elsewhere", cleaner_backoff_ms=3_600_000) as broker:
        assert len(contents(broker.address, "t")[0]) == 4_000
        with blocking.connect(broker.address) as client:
            assert [entry.value for entry in client.table("t").scan()] == [b"39"] * 7


@pytest.mark.parametrize("form", ["-", "a.tar"])
def test_a_disk_that_fills_up_is_one_line_on_stderr(tmp_path: Path, form: str) -> None:
    """`/dev/full` takes nothing; a limit of the size of files stands for a disk that others fill meanwhile."""
    with run_broker(tmp_path / "data") as broker, blocking.connect(broker.address) as client:
        with client.producer("t") as producer:
            producer.send_columns(None, [b"x" * 100_000] * 10)
        limited = 'ulimit -f 64; trap "" XFSZ; exec "$0" -m krappy backup "$1" --address "$2" > /dev/full'
        done = subprocess.run(
            ["bash", "-c", limited, sys.executable, form, broker.address],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "a.tar").exists()


def until(true: object, seconds: float = 120) -> None:
    """Waits for what another thread brings about."""
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A finished backup of some 100 KB of events."""
    with run_broker(tmp_path / "data") as broker, blocking.connect(broker.address) as client:
        with client.producer("t") as producer:
            producer.send_columns([b"k%d" % row for row in range(1_000)], [b"x" * 100] * 1_000)
        copy(client, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_disk_that_is_full_ends_a_backup(tmp_path: Path) -> None:
    """No file may grow beyond 64 KB here, as if there were no room."""

    limited = ["sh", "-c", 'ulimit -f 128; exec "$@"', "sh"]  # blocks of 512 bytes
    with run_broker(tmp_path / "data") as broker:
        with blocking.connect(broker.address) as client, client.producer("t") as producer:
            producer.send_columns(None, [b"x" * 100] * 1_000)
        for target in (tmp_path / "copy", tmp_path / "copy.tar"):
            command = [sys.executable, "-B", "-m", "krappy", "backup", str(target), "--address", broker.address]
            done = subprocess.run([*limited, *command], capture_output=True, timeout=120, check=False)
            assert done.returncode == 1
            assert b"File too large: what was written has been removed" in done.stderr, done.stderr
            assert not target.exists()
        until(lambda: not list((tmp_path / "data" / "backup").iterdir()))  # the broker has released the files
        assert len(contents(broker.address, "t")[0]) == 1_000


def test_what_a_broker_s_disk_refuses_is_told_before_a_backup_could_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take minutes to link the files, but as long nobody waits for a disk that is full."""
    monkeypatch.setattr(admin, "HOLDING", 30.0)
    with run_broker(tmp_path / "data") as broker, blocking.connect(broker.address, timeout=0.5) as client:
        (tmp_path / "data" / "backup").write_bytes(b"in the way")
        began = time.monotonic()
        with pytest.raises(StorageError, match="data/backup"), client.hold_backup():
            pass
        assert time.monotonic() - began < 20


def test_a_disk_that_has_too_little_room_is_told_of_before_anything_is_written(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        with run_broker(tmp_path / "data") as broker:
            with blocking.connect(broker.address) as client, client.producer("t") as producer:
                producer.send_columns(None, [b"x" * 100] * 20_000)
            copy_all = ("--address", broker.address)
            for target in (small / "copy", small / "copy.tar"):
                done = krappy("backup", target, *copy_all)
                assert done.returncode == 1
                assert b"are needed: nothing was written" in done.stderr, done.stderr
            assert krappy("backup", tmp_path / "copy", *copy_all).returncode == 0
        done = krappy("restore", tmp_path / "copy", "--data", small / "data")
        assert done.returncode == 1
        assert b"are needed: nothing was written" in done.stderr, done.stderr
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("form", ["folder", "mounted", "tar", "incremental"])
def test_a_backup_that_is_stopped_leaves_nothing(tmp_path: Path, form: str, number: signal.Signals) -> None:
    """Stopped in its middle: once a log has been begun."""
    target = tmp_path / ("copy.tar" if form == "tar" else "copy")
    if form == "mounted":
        target.mkdir()
    with run_broker(tmp_path / "data") as broker:
        with blocking.connect(broker.address) as client, client.producer("t") as producer:
            producer.send_columns(None, [b"x" * 100] * 1_000)
        program = [sys.executable, "-c", HALTED, "backup", str(target), "--address", broker.address]
        more = ["--incremental"] if form == "incremental" else []
        with child([*program, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"half\n"
            process.send_signal(number)
            status = process.wait(60)
        assert status == 128 + number
        if form == "mounted":
            assert not list(target.iterdir())
        elif form == "incremental":
            assert [each.name for each in target.iterdir()] == ["lock"]
        else:
            assert not target.exists()
        until(lambda: not list((tmp_path / "data" / "backup").iterdir()))  # the broker has released the files


def test_a_backup_that_is_killed_is_let_go_at_once(tmp_path: Path) -> None:
    with run_broker(tmp_path / "data") as broker:
        with blocking.connect(broker.address) as client, client.producer("t") as producer:
            producer.send("1").result()
        program = [sys.executable, "-c", HALTED, "backup", str(tmp_path / "copy"), "--address", broker.address]
        with child(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"half\n"
            process.kill()
            until(lambda: not list((tmp_path / "data" / "backup").iterdir()), 10)


def test_a_backup_whose_machine_is_gone_is_let_go_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells the broker that the machine is gone: here the process stands still. A backup that pings keeps what
    it holds."""
    monkeypatch.setattr(handler, "PATIENCE", 8.0)  # much longer than a busy machine makes a ping wait
    with run_broker(tmp_path / "data") as broker, blocking.connect(broker.address, keepalive=0.3) as client:
        with client.producer("t") as producer:
            producer.send("1").result()
        program = [sys.executable, "-c", HALTED, "backup", str(tmp_path / "copy"), "--address", broker.address]
        with client.hold_backup() as held, child(program, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"half\n"
            process.send_signal(signal.SIGSTOP)
            until(lambda: [str(each) for each in (tmp_path / "data" / "backup").iterdir()] == [held.folder], 30)
            assert (Path(held.folder) / "manifest.json").exists()


# `krappy`, halting in the middle of what it copies until a signal ends it.
HALTED = """
import sys, time
from krappy.cli import archive, main

class Halting(archive.Counted):
    def read(self, size=-1):
        data = super().read(size)
        if self._name.endswith(".log"):
            print("half", flush=True)
            while True:
                time.sleep(0.05)
        return data

archive.Counted = Halting
sys.exit(main.run(sys.argv[1:]))
"""


def test_a_restore_that_is_killed_is_begun_again(backup: Path, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(backup, arcname=".")  # as people pack a folder
    data = tmp_path / "elsewhere"
    command = [sys.executable, "-m", "krappy", "restore", "-", "--data", str(data)]
    with child(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(packed.getvalue()[: len(packed.getvalue()) // 2])
        process.stdin.flush()
        until(lambda: (data / "restoring").exists())
        process.kill()
    with pytest.raises(StorageError, match="not restored to its end"), run_broker(data):
        pass
    (data / "restoring" / "topics").mkdir(exist_ok=True)
    (data / "restoring" / "topics").rename(data / "topics")  # as if it had begun to put parts into their places
    done = krappy("restore", "-", "--data", data, stdin=packed.getvalue())
    assert done.returncode == 0, done.stderr
    assert checkup.check(data, repair=False, tell=lambda *_: None).sound
    with run_broker(data) as broker:
        assert len(contents(broker.address, "t")[0]) == 1_000


def test_a_restore_that_the_disk_refuses_names_the_file_and_leaves_nothing(backup: Path, tmp_path: Path) -> None:
    """No file may grow beyond 64 KB, as if there were no room; or a part of the data can't get to its place."""
    data = tmp_path / "elsewhere"
    moving = """
import sys
from pathlib import Path
from krappy.cli import main

rename = Path.rename

def refuse(self, target):
    if self.name == "views":
        raise PermissionError(13, "Permission denied", str(self))
    return rename(self, target)

Path.rename = refuse
sys.exit(main.run(sys.argv[1:]))
"""
    for program, said in (
        ('ulimit -f 128; exec "$0" -m krappy', r"restoring/\S+\.(log|sst): File too large"),
        ('exec "$0" -c "$PROGRAM"', "restoring/views: Permission denied"),
    ):
        done = subprocess.run(
            ["sh", "-c", f'{program} restore "$1" --data "$2"', sys.executable, backup, data],
            env={**os.environ, "PROGRAM": moving},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 1
        assert re.fullmatch(f"krappy: {data}/{said}\n", done.stderr), done.stderr
        assert [path.name for path in data.iterdir()] == ["lock"]
    assert krappy("restore", backup, "--data", data).returncode == 0


def test_producer_ids_of_a_restored_broker_are_new(backup: Path, tmp_path: Path) -> None:
    def next_id(data: Path) -> int:
        meta = Meta(data / "meta")
        try:
            return SyncCatalog(meta).next_producer_id()
        finally:
            meta.close()

    assert krappy("restore", backup, "--data", tmp_path / "elsewhere").returncode == 0
    assert next_id(tmp_path / "elsewhere") >= next_id(tmp_path / "data") + 500_000


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1, "files": [[1]]}', '{"format": 2, "files": []}'])
def test_a_damaged_list_of_files_is_refused(backup: Path, tmp_path: Path, text: str) -> None:
    (backup / archive.LISTING).write_text(text)
    done = krappy("restore", backup, "--data", tmp_path / "elsewhere")
    assert done.returncode == 1
    assert b"this is not a whole backup" in done.stderr or b"has format 2" in done.stderr
    assert not (tmp_path / "elsewhere" / "meta").exists()


def test_a_compressed_archive_that_was_cut_is_refused(backup: Path, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(backup, arcname=".")
    data = gzip.compress(packed.getvalue())
    for cut in (len(data) // 2, 5):
        done = krappy("restore", "-", "--data", tmp_path / "elsewhere", stdin=data[:cut])
        assert done.returncode == 1, done.stdout
        assert b"a mistake in krappy" not in done.stderr, done.stderr
    done = krappy("restore", "-", "--data", tmp_path / "elsewhere", stdin=data)
    assert done.returncode == 0, done.stderr


def test_strange_files_are_refused(backup: Path, tmp_path: Path) -> None:
    (backup / "lock").write_text("1")
    done = krappy("restore", backup, "--data", tmp_path / "elsewhere")
    assert done.returncode == 1
    assert b"no file called 'lock'" in done.stderr
