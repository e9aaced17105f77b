"""The rules of tests/power/disk.py, tested with files that a process really changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.power.disk import MOODS, SECTOR, Disk
from tests.power.record import Record
from tests.power.replay import PLACE, how_to, keep, replay
from tests.process import ROOT

PRELUDE = """
import os
def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
def write(path, data, position=0):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, data, position)
    os.close(fd)
"""


class Run:
    def __init__(self, record: Record, tmp_path: Path) -> None:
        self.record = record
        self._places = (tmp_path / f"left-{number}" for number in range(10_000))

    def do(self, script: str) -> None:
        """Runs a script in the folder, with the recorder."""
        env = self.record.environ()
        subprocess.run([sys.executable, "-c", PRELUDE + script], check=True, cwd=self.record.root, env=env)

    def disk(self) -> Disk:
        """The disk at the end of the record so far."""
        disk = Disk.of(self.record.root)
        for entry in self.record.entries():
            disk.play(entry)
        return disk

    def left(self, mood: float, seed: int = 0) -> dict[str, bytes]:
        """The files that a loss of power leaves now."""
        self.disk().write(place := next(self._places), mood, Random(seed))
        return files(place)

    def ever_left(self) -> list[dict[str, bytes]]:
        """The files that many losses of power leave, one dict for each."""
        return [self.left(mood, seed) for mood in MOODS for seed in range(30)]


def files(place: Path) -> dict[str, bytes]:
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "disk").mkdir()
    with Record(tmp_path / "disk") as record:
        yield Run(record, tmp_path)


def test_what_was_synced_is_there_and_nothing_else_is_sure(run: Run) -> None:
    run.do("write('a', b'1'); write('b', b'2'); sync('a'); sync('.')")
    assert run.left(0) == {"a": b"1", "b": b""}
    assert run.left(1) == {"a": b"1", "b": b"2"}
    assert all(left["a"] == b"1" for left in run.ever_left())


def test_a_synced_file_may_have_lost_its_name(run: Run) -> None:
    run.do("os.mkdir('folder'); write('folder/a', b'1'); sync('folder/a'); sync('folder')")
    assert run.left(0) == {}
    run.do("sync('.')")
    assert run.left(0) == {"folder/a": b"1"}


def test_a_rename_is_one_step(run: Run) -> None:
    run.do("write('a', b'old'); write('tmp', b'new'); sync('a'); sync('tmp'); sync('.'); os.rename('tmp', 'a')")
    before, after = {"a": b"old", "tmp": b"new"}, {"a": b"new"}
    found = run.ever_left()
    assert before in found
    assert after in found
    assert all(left in (before, after) for left in found)


def test_names_come_and_go_in_no_order(run: Run) -> None:
    run.do("write('a', b''); sync('.'); os.unlink('a'); write('b', b''); write('c', b'')")
    found = {frozenset(left) for left in run.ever_left()}
    assert {frozenset("a"), frozenset("ac"), frozenset("b"), frozenset("bc"), frozenset()} <= found


def test_what_was_written_may_be_torn_between_sectors(run: Run) -> None:
    size = 4 * SECTOR
    run.do(f"write('a', b'o' * {size}); sync('a'); sync('.'); write('a', b'n' * {size + 10})")
    found = {left["a"] for left in run.ever_left()}
    for data in found:
        sectors = [data[at : at + SECTOR] for at in range(0, len(data), SECTOR)]
        assert all(len(set(sector)) == 1 for sector in sectors)
        assert len(data) >= size
        assert set(data[:size]) <= set(b"on")
        assert set(data[size:]) <= set(b"n\0")
    assert b"o" * size in found
    assert b"n" * (size + 10) in found
    assert any(b"on" in data for data in found)
    assert any(data.endswith(b"\0") for data in found)


def test_one_file_under_two_names_is_one_file(run: Run) -> None:
    run.do("write('a', b'1'); os.link('a', 'b'); sync('.'); write('a', b'2')")
    assert all(left["a"] == left["b"] for left in run.ever_left())


def test_a_sync_does_not_vouch_for_what_comes_after_it(run: Run) -> None:
    run.do("write('a', b'1'); sync('a'); sync('.'); write('a', b'2', 1); os.truncate('a', 0)")
    assert run.left(0) == {"a": b"1"}
    assert {left["a"] for left in run.ever_left()} >= {b"1", b""}


def test_a_way_to_write_that_has_no_rule_is_refused(run: Run) -> None:
    run.do("import mmap; write('a', b'1'); fd = os.open('a', os.O_RDWR); mmap.mmap(fd, 1)[0] = 50")
    with pytest.raises(NotImplementedError, match="mmap"):
        run.left(1)


def test_a_name_that_goes_to_another_folder_may_be_in_both_or_in_neither(run: Run) -> None:
    run.do("os.mkdir('a'); write('a/x', b'1'); sync('a/x'); sync('a'); sync('.'); os.rename('a/x', 'x')")
    assert {frozenset(left) for left in run.ever_left()} == {
        frozenset(names) for names in ([], ["a/x"], ["x"], ["a/x", "x"])
    }
    run.do("sync('.')")
    assert {frozenset(left) for left in run.ever_left()} == {frozenset(["x"]), frozenset(["a/x", "x"])}
    run.do("os.mkdir('b'); write('b/y', b'2'); sync('b/y'); sync('b'); os.rename('b', 'a/c'); sync('a')")
    run.do("write('a/c/z', b'3')")  # a/c is the folder that was b
    assert all(left["a/c/y"] == b"2" for left in run.ever_left())
    assert {left.get("a/c/z") for left in run.ever_left()} == {None, b"", b"\0", b"3"}


def test_where_rocksdb_has_renamed_current_the_names_before_it_are_there(run: Run) -> None:
    run.do("write('CURRENT', b'1'); sync('CURRENT'); sync('.')")
    run.do("write('a', b'a'); write('new', b'2'); sync('new'); os.rename('new', 'CURRENT'); write('b', b'b')")
    found = {(left["CURRENT"], "a" in left, "b" in left) for left in run.ever_left()}
    old = {(b"1", a, b) for a in (False, True) for b in (False, True)}
    assert found == old | {(b"2", True, False), (b"2", True, True)}


@pytest.mark.parametrize("before", [False, True])
def test_a_loss_that_was_kept_is_made_again(
    run: Run, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes the same files from the kept file alone, even if the record has changed since."""
    monkeypatch.setenv(PLACE, str(tmp_path / "kept"))
    run.do("os.mkdir('f'); write('f/old', bytes(range(256)) * 20); os.link('f/old', 'same'); sync('f/old')")
    disk = run.disk()
    if before:
        disk = Disk.of(run.record.root)
        disk.load(run.record.root)
        run.record.path.write_bytes(b"")
    run.do("write('f/old', b'new' * 1000, 100); write('other', b'o' * 3000); os.rename('same', 'f/moved')")
    for entry in run.record.entries():
        if before or entry not in disk.played:
            disk.play(entry)
    told = {}
    for seed in range(20):
        disk.write(place := tmp_path / f"seen-{seed}", 0.5, Random(seed))
        told[keep(disk, 0.5, seed)] = files(place)
    assert len({str(each) for each in told.values()}) > 5, "the losses differ"
    run.do("import shutil; shutil.rmtree('f')")
    for number, (kept, seen) in enumerate(told.items()):
        replay(kept, again := tmp_path / f"again-{number}")
        assert files(again) == seen
    assert f"tests.power.replay {kept} TARGET" in how_to(kept)
    command = [sys.executable, "-m", "tests.power.replay", str(kept), str(tmp_path / "by-hand")]
    subprocess.run(command, check=True, cwd=ROOT)
    assert files(tmp_path / "by-hand") == seen
