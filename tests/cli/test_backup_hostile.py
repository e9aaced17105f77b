"""Brokers, folders and archives that mean harm to `krappy backup` and `krappy restore`; and who may read a backup."""

from __future__ import annotations

import base64
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from krappy import blocking
from krappy.broker.upkeep.cluster_backup import TREE
from krappy.cli import backup_files, cluster_backup
from krappy.cli.archive import Counted
from krappy.cli.errors import Failure
from krappy.clients import backups
from krappy.clients.backups import HeldAt
from krappy.errors import KrappyError
from krappy.store import hold
from krappy.store.hold import MANIFEST, HeldFile
from krappy.testing.running import run_broker
from krappy.types import text_id
from tests.process import krappy


def others(path: Path) -> list[str]:
    """Files and folders at or below the path that others than their owner may use."""
    found = [path, *path.rglob("*")]
    return [str(each) for each in found if stat.S_IMODE(each.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO)]


def test_what_is_backed_up_and_restored_is_for_its_owner_alone(tmp_path: Path) -> None:
    def run(*arguments: object) -> None:
        command = [sys.executable, "-m", "krappy", *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, timeout=120, umask=0)

    with run_broker(tmp_path / "data") as broker, blocking.connect(broker.address) as client:
        with client.producer("t") as producer:
            producer.send("1", key="k").result()
        run("backup", tmp_path / "folder", "--address", broker.address)
        run("backup", tmp_path / "one.tar", "--address", broker.address)
        for _ in range(2):
            run("backup", tmp_path / "nightly", "--incremental", "--address", broker.address)
        (tmp_path / "mounted").mkdir(0o755)
        run("backup", tmp_path / "mounted", "--address", broker.address)
    run("restore", tmp_path / "folder", "--data", tmp_path / "restored")
    assert others(tmp_path / "folder") == others(tmp_path / "one.tar") == []
    assert others(tmp_path / "mounted") == [str(tmp_path / "mounted")]  # as the user made it
    nightly = tmp_path / "nightly"
    assert set(others(nightly)) <= {str(nightly / "lock")}  # it tells only a process id
    assert not stat.S_IMODE((tmp_path / "restored").stat().st_mode) & 0o077
    assert others(tmp_path / "restored" / "topics") == []


def link(held: Path, secret: Path) -> None:
    (held / "topics").mkdir(exist_ok=True)
    (held / "topics" / "x").symlink_to(secret)


def linked_folder(held: Path, secret: Path) -> None:
    (held / "topics").mkdir(exist_ok=True)
    (held / "topics" / "t").symlink_to(secret.parent)


def fifo(held: Path, secret: Path) -> None:
    os.mkfifo(held / "views" / "x")


def nothing(held: Path, secret: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (nothing, "../../outside/secret"),
        (nothing, "topics/../../../outside/secret"),
        (nothing, "/etc/hostname"),
        (nothing, "backup.json"),
        (nothing, "meta"),
        (nothing, "topics/a\0b"),
        (link, "topics/x"),
        (linked_folder, "topics/t/secret"),
        (fifo, "views/x"),
    ],
)
def test_a_broker_that_means_harm_gets_nothing_read_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, Path], None], name: str
) -> None:
    secret = tmp_path / "outside" / "secret"
    secret.parent.mkdir()
    secret.write_text("root's")
    finish = hold.finish

    def harmful(folder: Path, facts: dict[str, Any]) -> list[HeldFile]:
        files = [*finish(folder, facts), HeldFile(name, 6)]
        plant(folder, secret)
        told = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).write_text(json.dumps({**told, "files": files}))
        (folder.parent.parent / "outside").mkdir(exist_ok=True)  # where ../.. leads from the held files
        (folder.parent.parent / "outside" / "secret").write_text("theirs")
        return files

    monkeypatch.setattr(hold, "finish", harmful)
    (tmp_path / "all" / "backups").mkdir(parents=True)
    with run_broker(tmp_path / "data") as broker:
        for target in (tmp_path / "all" / "backups" / "monday", tmp_path / "all" / "monday.tar"):
            done = krappy("backup", target, "--address", broker.address)
            assert done.returncode == 1, done
            assert b"no file called" in done.stderr or b"no regular file" in done.stderr, done.stderr
    assert [each.name for each in (tmp_path / "all").rglob("*")] == ["backups"]


@pytest.mark.parametrize(
    "told",
    [
        b"[",
        b"[]",
        b"[" * 100_000,
        b'{"files": [["topics/x", -1]], "taken_ms": 1}',
        b'{"files": [["topics/x", "1"]], "taken_ms": 1}',
        b'{"files": [[["topics/x"], 1]], "taken_ms": 1}',
        b'{"files": [["topics/x", 1], ["topics/x", 1]], "taken_ms": 1}',
        b'{"files": [], "taken_ms": 1e30}',
        b'{"files": [], "taken_ms": 999999999999999999}',
    ],
)
def test_an_invalid_manifest_is_a_clear_error(told: bytes) -> None:
    with pytest.raises(Failure, match=r"the broker|no file called"):
        backup_files.read_manifest(told)


# --- brokers of a cluster

HELD = HeldAt(cast("Any", None), 0, 1, 1, 10)


def serve(monkeypatch: pytest.MonkeyPatch, files: Mapping[str, bytes], extra: int = 0) -> None:
    """Makes brokers hold these files, and send `extra` more bytes than they are asked for."""

    async def read(held: HeldAt, name: str, offset: int, size: int) -> bytes:
        return files[name][offset : offset + size + extra]

    monkeypatch.setattr(backups, "read", read)


def test_a_broker_that_sends_more_than_it_was_asked_for_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"topics/t-0/x": bytes(100)}, extra=5)
    source = Counted(cast("Any", cluster_backup.HeldRemotely(HELD, "topics/t-0/x")), "x", 10, lambda *_: None)
    with pytest.raises(Failure, match="broker 1 sent 15 bytes"):
        source.read()


def test_what_a_client_keeps_of_a_manifest_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_files, "MOST_TOLD", 3 << 20)
    asked = 0

    async def read(held: HeldAt, name: str, offset: int, size: int) -> bytes:
        nonlocal asked
        asked += 1
        assert asked < 10
        return bytes(size)

    monkeypatch.setattr(backups, "read", read)
    with pytest.raises(Failure, match="broker 1 has more than"):
        cluster_backup._with_manifests([HELD], {})


TOPIC = {"version": 3, "topic_id": text_id(b"\1" * 16), "partitions": {"0": [1]}}
TOPIC |= {"adding_replicas": {}, "removing_replicas": {}}


def tree_of(topics: list[str]) -> bytes:
    data = base64.b64encode(json.dumps(TOPIC).encode()).decode()
    return json.dumps({f"/brokers/topics/{name}": data for name in topics}).encode()


@pytest.mark.parametrize(
    ("tree", "change", "error"),
    [
        (tree_of([]), {"files": [["../x", 1]]}, "no file called"),
        (tree_of([]), {"files": []}, "does not hold"),
        (tree_of([]), {"files": [[TREE, 1]]}, "more than 1 bytes"),
        (tree_of([]), {"origins": {}}, "can't be read"),
        (tree_of([]), {"origins": 1}, "can't be read"),
        (tree_of([]), {"partitions": [{}]}, "can't be read"),
        (b"[]", {}, "can't be read"),
        (b"[" * 100_000, {}, "can't be read"),
        (b'{"/brokers/topics/t": 7}', {}, "can't be read"),
        (tree_of([".."]), {}, "can't be named"),
        (tree_of(["a\0b"]), {}, "has only letters"),
    ],
)
def test_what_a_broker_of_a_cluster_tells_is_checked(
    monkeypatch: pytest.MonkeyPatch, tree: bytes, change: Mapping[str, Any], error: str
) -> None:
    told = {"files": [[TREE, len(tree)]], "origins": {TREE: [1, 2]}, "partitions": [], "taken_ms": 1}
    told |= {"version": "0.1.0", "cluster": "c", "directory": "d", **change}
    serve(monkeypatch, {TREE: tree, MANIFEST: json.dumps(told).encode()})
    with pytest.raises((Failure, KrappyError), match=error):
        cluster_backup._with_manifests([HELD], {})


# --- folders and archives


def write_backup(folder: Path, files: Mapping[str, bytes], **listing: object) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    listed = [[name, len(data), zlib.crc32(data)] for name, data in files.items()]
    known = {"format": 2, "version": "0.1.0", "cluster": "c", "taken_ms": 1, "brokers": [1], "ends": []}
    folder.mkdir(exist_ok=True)
    (folder / "backup.json").write_text(json.dumps({**known, "files": listed, "origins": {}, **listing}))
    return folder


@pytest.mark.parametrize(
    ("topic", "ends"),
    [("t", []), ("t", [["t", 0, 0, -5]]), ("a\0b", [["a\0b", 0, 0, 0]]), ("..", [["..", 0, 0, 0]]), ("t", [1])],
)
def test_a_backup_of_a_cluster_that_can_not_be_is_a_clear_error(tmp_path: Path, topic: str, ends: list[Any]) -> None:
    backup = write_backup(tmp_path / "copy", {TREE: tree_of([topic])}, ends=ends)
    done = krappy("restore", backup, "--data", tmp_path / "data")
    assert (done.returncode, b"not a whole backup" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("plant", ["fifo", "link", "socket"])
def test_only_regular_files_are_restored(tmp_path: Path, plant: str) -> None:
    backup = write_backup(tmp_path / "copy", {"meta/x": b"x"}, format=1)
    (backup / "meta" / "x").unlink()
    if plant == "fifo":
        os.mkfifo(backup / "meta" / "x")
    elif plant == "link":
        (tmp_path / "secret").write_bytes(b"x")
        (backup / "meta" / "x").symlink_to(tmp_path / "secret")
    else:
        os.mknod(backup / "meta" / "x", stat.S_IFSOCK | 0o600)
    done = krappy("restore", backup, "--data", tmp_path / "data")
    assert (done.returncode, b"no regular file" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("name", [".", "meta", "meta/../../x", "/meta/x", "etc/x", "meta/\x1b[31m"])
def test_a_member_of_an_archive_that_is_no_file_of_a_backup_is_a_clear_error(tmp_path: Path, name: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    done = krappy("restore", "-", "--data", tmp_path / "data", stdin=packed.getvalue())
    assert (done.returncode, b"no file called" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("text", ['{"format": 1, "taken_ms": 1e400, "files": []}', "[" * 100_000])
def test_an_invalid_listing_is_a_clear_error(tmp_path: Path, text: str) -> None:
    backup = write_backup(tmp_path / "copy", {})
    (backup / "backup.json").write_text(text)
    done = krappy("restore", backup, "--data", tmp_path / "data")
    assert (done.returncode, b"not a whole backup" in done.stderr) == (1, True), done.stderr
