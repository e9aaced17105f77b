"""Some changes of the catalog are in none of its files, though later changes are. RocksDB goes on behind the gap
without a word, and removes the tables that it has forgotten."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from krappy.errors import StorageError
from krappy.store import gap, journal
from krappy.store.meta import Meta
from krappy.store.synced import ACCEPT, NAME, Synced
from tests.broker.engine import as_killed
from tests.process import wait_until

VALUE = os.urandom(100_000)  # five of them fill a write-ahead log, twenty a table
Harm = Callable[[Path], None]


def written(folder: Path, count: int, copied: Path, tables: int = 0) -> Path:
    """A copy of a database as a kill leaves it. The changes are in write-ahead logs, or (with `tables`) in that many
    tables."""
    meta = Meta(folder)
    for number in range(count):
        meta.put(b"k%03d" % number, VALUE)
        if tables and number % (count // tables) == 9:
            meta._db.flush()
    meta.sync()
    wait_until(lambda: not tables or len(logs(folder)) == 1, "RocksDB removes the logs that nobody needs")
    as_killed(folder, copied)
    meta.close()
    return copied


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A killed database with several write-ahead logs."""
    folder = tmp_path_factory.mktemp("made")
    return written(folder / "meta", 17, folder / "killed")


def keys(meta: Meta) -> list[bytes]:
    return [key for key, _ in meta.items(b"k")]


def wanted(count: int) -> list[bytes]:
    return [b"k%03d" % number for number in range(count)]


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.log"))


def empty(file: Path) -> None:
    os.truncate(file, 0)


def cut(file: Path) -> None:
    """Cuts the file behind its second change."""
    os.truncate(file, ends_of(file)[1])


def ends_of(file: Path) -> list[int]:
    """Where each change of a journal ends."""
    content = file.read_bytes()
    return [at + size for at, size in journal._records(content) if content[at + 6] in (1, 4)]


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(("harm", "kept"), [(Path.unlink, 0), (empty, 0), (cut, 2)])
def test_a_log_in_front_of_others_is_missed(killed: Path, tmp_path: Path, number: int, harm: Harm, kept: int) -> None:
    folder = tmp_path / "meta"
    shutil.copytree(killed, folder)
    assert gap.find(folder) is None
    every = logs(folder)
    assert len(every) == 4
    harm(every[number])
    before = {file.name: file.read_bytes() for file in logs(folder)}
    with pytest.raises(StorageError, match=r"and some later ones, but not those between.*accept-loss"):
        Meta(folder)
    assert {file.name: file.read_bytes() for file in logs(folder)} == before
    (folder / ACCEPT).touch()
    meta = Meta(folder)
    found = keys(meta)
    assert found == wanted(len(found))
    assert len(found) == 5 * number + kept
    assert meta.lost == 17 - len(found)
    meta.close()
    Meta(folder).close()


def test_a_manifest_that_has_lost_its_end(tmp_path: Path) -> None:
    made = written(tmp_path / "made", 45, tmp_path / "killed", tables=3)
    manifest = journal.manifest_of(made)
    assert manifest is not None
    assert len(list(made.glob("*.sst"))) == 3
    refused = 0
    for size in ends_of(manifest):
        folder = tmp_path / str(size)
        shutil.copytree(made, folder)
        os.truncate(folder / manifest.name, size)
        before = sorted(file.name for file in folder.glob("*.[sl][so][tg]"))
        try:
            meta = Meta(folder)
        except StorageError as error:
            refused += "but not those between" in str(error)
            assert sorted(file.name for file in folder.glob("*.[sl][so][tg]")) == before
            continue
        assert keys(meta) == wanted(45)
        meta.close()
    assert refused >= 3


def test_what_a_loss_of_power_leaves_out_is_left_out_to_the_end(killed: Path, tmp_path: Path) -> None:
    """What was not synced may be missing anywhere. What is left is a beginning, as it is with one log."""
    folder = tmp_path / "meta"
    shutil.copytree(killed, folder)
    cut(logs(folder)[1])
    note = Synced(folder)
    note.write(5)
    note.close()
    meta = Meta(folder)
    assert keys(meta) == wanted(7)
    assert meta.lost == 0
    meta.close()


def test_it_is_told_where_no_note_says_what_there_was(killed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "meta"
    shutil.copytree(killed, folder)
    (folder / NAME).unlink()
    Meta(folder).close()
    shutil.rmtree(folder)
    shutil.copytree(killed, folder)
    (folder / NAME).unlink()
    logs(folder)[0].unlink()
    with pytest.raises(StorageError, match="accept-loss"):
        Meta(folder)


def test_many_openings_leave_no_gap(tmp_path: Path) -> None:
    for count in range(8):
        meta = Meta(tmp_path)
        meta.write({}, [])
        for number in range(7 * count):
            meta.put(b"k%03d" % number, VALUE)
        meta.delete(b"k001")
        meta.close()
        assert gap.find(tmp_path) is None


def test_a_manifest_of_another_kind_says_nothing(killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "meta"
    shutil.copytree(killed, folder)
    logs(folder)[0].unlink()
    assert gap.find(folder) is not None
    for edit in (b"\x63\x01", b"\x02\xff", b"\x67\x00\x01\x02\x7f"):
        monkeypatch.setattr(journal, "contents", lambda content, edit=edit: iter([edit]))
        assert gap.find(folder) is None
