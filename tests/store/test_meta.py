"""The meta database: order, atomic writes, and what a killed process leaves."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.errors import StorageError
from krappy.store.meta import Meta

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[Meta]:
    opened = Meta(tmp_path / "meta")
    yield opened
    opened.close()


def test_put_get_delete(meta: Meta) -> None:
    assert meta.get(b"k") is None
    meta.put(b"k", b"v")
    assert meta.get(b"k") == b"v"
    meta.put(b"k", b"")
    assert meta.get(b"k") == b""
    meta.delete(b"k")
    meta.delete(b"k")
    assert meta.get(b"k") is None


def test_a_batch_is_written_whole_and_deletes_win(meta: Meta) -> None:
    meta.put(b"old", b"1")
    meta.write({b"a": b"1", b"b": b"2"}, [b"old", b"b"])
    assert [meta.get(key) for key in (b"a", b"b", b"old")] == [b"1", None, None]


def test_items_are_those_of_a_prefix_in_order(meta: Meta) -> None:
    for key in (b"t/b", b"t/a", b"t", b"t/", b"t0", b"s/z", b"\xff\xff", b"\xff"):
        meta.put(key, key)
    assert [key for key, _ in meta.items(b"t/")] == [b"t/", b"t/a", b"t/b"]
    assert [key for key, _ in meta.items(b"\xff")] == [b"\xff", b"\xff\xff"]
    assert list(meta.items(b"x")) == []
    assert len(list(meta.items(b""))) == 8


def test_items_are_as_of_the_first_one(meta: Meta) -> None:
    for key in (b"a", b"b", b"c"):
        meta.put(key, b"old")
    found = meta.items(b"")
    first = next(found)
    meta.write({b"b": b"new", b"d": b"new"}, [b"c"])
    assert [first, *found] == [(b"a", b"old"), (b"b", b"old"), (b"c", b"old")]


def test_it_is_there_when_reopened(tmp_path: Path) -> None:
    meta = Meta(tmp_path / "meta")
    meta.put(b"k", b"v")
    meta.sync()
    meta.close()
    meta.close()
    for use in (lambda: meta.get(b"k"), lambda: meta.put(b"k", b""), lambda: list(meta.items(b"")), meta.sync):
        with pytest.raises(StorageError, match="closed"):
            use()
    meta = Meta(tmp_path / "meta")
    assert list(meta.items(b"")) == [(b"k", b"v")]
    meta.close()


def test_a_second_opening_is_refused(meta: Meta) -> None:
    with pytest.raises(StorageError, match=str(meta.folder)):
        Meta(meta.folder)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_missing_file_is_a_clear_error_and_never_an_empty_catalog(tmp_path: Path, flushed: bool) -> None:
    meta = Meta(tmp_path / "deep" / "meta")
    meta.put(b"k", b"v")
    if flushed:
        meta.close()
    copy = shutil.copytree(meta.folder, tmp_path / "copy")
    meta.close()
    (copy / "CURRENT").unlink()
    with pytest.raises(StorageError, match="CURRENT"):
        Meta(copy)


def write_on(folder: Path) -> None:
    """Writes and deletes without an end and without a sync; prints each step once it is done."""
    meta = Meta(folder)
    index = int(meta.get(b"next") or b"0")
    while True:
        meta.write({b"k%08d" % index: b"%d" % index * 20, b"next": b"%d" % (index + 1)}, [b"k%08d" % (index - 1000)])
        index += 1
        os.write(1, b"%08d\n" % index)


def test_a_write_survives_sigkill_without_a_sync(tmp_path: Path) -> None:
    chance = random.Random()
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.test_meta", str(tmp_path / "meta")], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        said = process.stdout.read(9 * chance.randrange(100, 5000))
        process.send_signal(signal.SIGKILL)
        said += process.stdout.read()
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        done = int(said.rstrip(b"\n").rsplit(b"\n", 1)[-1])
        meta = Meta(tmp_path / "meta")
        following = int(meta.get(b"next") or b"0")
        assert following in (done, done + 1)  # it may die between a write and the line that tells of it
        kept = range(max(0, following - 1000), following)
        assert list(meta.items(b"k")) == [(b"k%08d" % index, b"%d" % index * 20) for index in kept]
        meta.close()


if __name__ == "__main__":
    write_on(Path(sys.argv[1]))
