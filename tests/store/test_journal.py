"""Damaged journals of RocksDB: what RocksDB would read for ever, or take for an older database, is reported before it
opens them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest
from crc32c import crc32c

from krappy.errors import StorageError
from krappy.store import journal, rocks
from krappy.store.meta import LOST, Meta
from krappy.store.synced import ACCEPT, NAME
from tests.broker.catalogs import SyncCatalog

BLOCK = 32 << 10
TYPE = 6  # where a record's type stands in its head
RECYCLABLE = 5


def record(content: bytes, kind: int = 1) -> bytes:
    crc = crc32c(bytes([kind]) + content)
    return pack("<IHB", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF, len(content), kind) + content


def database_with(folder: Path, manifest: bytes) -> Path:
    """A folder with this MANIFEST; it is no database that could be opened."""
    folder.mkdir(exist_ok=True)
    (folder / "CURRENT").write_text("MANIFEST-000007\n")
    file = folder / "MANIFEST-000007"
    file.write_bytes(manifest)
    return file


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed database of six files."""
    folder = tmp_path_factory.mktemp("made") / "db"
    db = rocks.open_db(folder, cache_bytes=1 << 20, memtable_bytes=1 << 20)
    for number in range(6):
        db[b"k%d" % number] = b"v" * 50
        db.flush()
    db.close()
    return folder


def manifest_of(folder: Path) -> Path:
    return folder / (folder / "CURRENT").read_text().strip()


def test_a_real_manifest_is_whole(database: Path) -> None:
    assert manifest_of(database).stat().st_size > 500
    assert journal.manifest_flaw(database) == ""


def test_each_flipped_bit_of_a_real_manifest_is_told(database: Path, tmp_path: Path) -> None:
    whole = manifest_of(database).read_bytes()
    at_the_end = 0
    for position in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[position] ^= 1 << bit
            file = database_with(tmp_path / "db", bytes(changed))
            found = journal.manifest_flaw(tmp_path / "db")
            if not found:
                at_the_end += 1  # the length of the last record: it can't be told from a torn record
            else:
                assert f"{file} is damaged at byte" in found
    assert at_the_end <= 16


def test_a_manifest_torn_anywhere_is_left_to_rocksdb(database: Path, tmp_path: Path) -> None:
    whole = manifest_of(database).read_bytes()
    for size in range(len(whole)):
        for tail in (b"", bytes(100)):
            database_with(tmp_path / "db", whole[:size] + tail)
            assert journal.manifest_flaw(tmp_path / "db") == ""


def test_records_fill_blocks_up_to_their_ends(tmp_path: Path) -> None:
    for left in range(9):  # bytes behind the first block's last record: too few for a head, one without content, one
        first = record(b"x" * (BLOCK - 7 - left))
        filler = {7: record(b""), 8: record(b"y")}.get(left, bytes(left))
        whole = first + filler + record(b"z" * 100, 2) + record(b"last", 4)
        database_with(tmp_path / "db", whole)
        assert journal.manifest_flaw(tmp_path / "db") == ""
        for position in (TYPE, BLOCK + TYPE, len(whole) - 1):
            changed = bytearray(whole)
            changed[position] ^= RECYCLABLE - 1
            database_with(tmp_path / "db", bytes(changed))
            assert "damaged at byte" in journal.manifest_flaw(tmp_path / "db"), (left, position)


@pytest.mark.parametrize("current", ["", "MANIFEST-000009\n", "../MANIFEST-1\n", "LOCK\n", "\xff"])
def test_a_damaged_current_is_left_to_rocksdb(tmp_path: Path, current: str) -> None:
    database_with(tmp_path, record(b"x"))
    (tmp_path / "CURRENT").write_text(current)
    assert journal.manifest_flaw(tmp_path) == ""


def flip_type(file: Path, position: int = 0) -> None:
    content = bytearray(file.read_bytes())
    assert content[position + TYPE] == 1
    content[position + TYPE] = RECYCLABLE
    file.write_bytes(content)


def shorten_view(file: Path) -> None:
    """Changes the length of the first record, so that it ends beyond the file."""
    content = bytearray(file.read_bytes())
    content[5] |= 0x40
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [flip_type, shorten_view])
def test_a_damaged_database_is_not_opened(database: Path, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    folder = tmp_path / "db"
    shutil.copytree(database, folder)
    harm(manifest_of(folder))
    before = sorted(file.name for file in folder.iterdir())
    with pytest.raises(rocks.Damaged, match="damaged at byte 0"):
        rocks.open_db(folder, cache_bytes=1 << 20, memtable_bytes=1 << 20)
    assert rocks.last_change(folder) is None
    assert sorted(file.name for file in folder.iterdir()) == before


def catalog(folder: Path, copied: Path) -> Path:
    """A copy of a catalog that was not closed: its changes are in the write-ahead log."""
    meta = Meta(folder)
    for number in range(10):
        meta.put(b"k%d" % number, b"v" * 50)
        meta.sync()
    shutil.copytree(folder, copied)
    meta.close()
    return copied


def test_a_catalog_with_a_damaged_manifest_says_what_to_do(tmp_path: Path) -> None:
    folder = catalog(tmp_path / "meta", tmp_path / "copied")
    flip_type(manifest_of(folder))
    with pytest.raises(StorageError, match=r"the catalog is damaged: .*MANIFEST-\d+ is damaged at byte 0. Restore"):
        Meta(folder)


def write_ahead_log(folder: Path) -> Path:
    (file,) = (file for file in folder.glob("*.log") if file.stat().st_size)
    return file


def test_a_log_that_rocksdb_reads_for_ever_is_refused_until_the_loss_is_accepted(tmp_path: Path) -> None:
    folder = catalog(tmp_path / "meta", tmp_path / "copied")
    file = write_ahead_log(folder)
    whole = file.read_bytes()
    size = 7 + int.from_bytes(whole[4:6], "little")
    flip_type(file, 3 * size)
    with pytest.raises(StorageError, match=f"damaged at byte {3 * size}.*{ACCEPT}"):
        Meta(folder)
    assert len(file.read_bytes()) == len(whole)
    (folder / ACCEPT).touch()
    meta = Meta(folder)
    assert [key for key, _ in meta.items(b"k")] == [b"k0", b"k1", b"k2"]
    assert meta.lost == 7
    meta.put(b"new", b"")
    meta.close()
    assert not (folder / ACCEPT).exists()
    Meta(folder).close()


def test_the_loss_is_told_where_no_note_says_what_there_was(tmp_path: Path) -> None:
    folder = catalog(tmp_path / "meta", tmp_path / "copied")
    (folder / NAME).unlink()
    flip_type(write_ahead_log(folder))
    with pytest.raises(StorageError, match="damaged at byte 0"):
        Meta(folder)
    (folder / ACCEPT).touch()
    meta = Meta(folder)
    assert meta.lost
    meta.close()
    assert not (folder / ACCEPT).exists()


def test_an_accepted_loss_counts_until_somebody_has_passed_over_it(tmp_path: Path) -> None:
    """A start that was cut short, or a look into the folder, must not make the loss forgotten."""
    folder = catalog(tmp_path / "meta", tmp_path / "copied")
    flip_type(write_ahead_log(folder))
    (folder / ACCEPT).touch()
    Meta(folder).close()
    assert not (folder / ACCEPT).exists()
    meta = Meta(folder)
    assert meta.lost == 10
    found = SyncCatalog(meta)
    first = found.next_producer_id()
    found.pass_over(meta.lost)
    assert meta.get(LOST) is None
    assert found.next_producer_id() - first >= 10_000
    found.register(0)
    meta.close()


def test_a_consent_to_no_loss_is_used_up(tmp_path: Path) -> None:
    Meta(tmp_path).close()
    (tmp_path / ACCEPT).touch()
    meta = Meta(tmp_path)
    assert meta.lost == 1
    meta.close()
    assert not (tmp_path / ACCEPT).exists()
