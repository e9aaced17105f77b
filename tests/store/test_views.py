"""Views: one partition beside another, scans, drops, and what happens to a damaged folder."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.entries.entry import entry_offset, is_tombstone, pack_columns, pack_entry
from krappy.errors import StorageError
from krappy.store import rocks
from krappy.store.keys import MAX_NUMBER, after_prefix, key_range, view_end, view_prefix
from krappy.store.unwritten import HELD, MOST_FOLDED, OF_VIEW
from krappy.store.view_snapshot import CHANGES
from krappy.store.views import MOST_UNFLUSHED, Views
from tests.process import wait_until
from tests.store.files import open_files
from tests.store.view_model import read_all


@pytest.fixture
def views(tmp_path: Path) -> Iterator[Views]:
    opened = Views(tmp_path / "views", cache_bytes=4 << 20, memtable_bytes=1 << 20)
    yield opened
    opened.close()


def entries(*keys: bytes, offset: int = 0, value: bytes | None = b"v") -> dict[bytes, bytes]:
    return {key: pack_entry(offset + index, 5, value) for index, key in enumerate(keys)}


def test_a_fresh_view_knows_nothing(views: Views) -> None:
    assert views.applied(1) == 0
    assert views.get(1, b"k") is None
    assert views.get_many(1, [b"k", b"l"]) == [None, None]
    assert views.get_many(1, []) == []
    snapshot = views.snapshot()
    assert snapshot.applied(1) == 0
    assert snapshot.rows(1) == ([], [], None)


def test_what_is_applied_is_found(views: Views) -> None:
    held = pack_columns(range(3), [5, 5, 5], [b"a", b"", b"a"], [b"1", None, b"3"])
    views.apply(1, held, 3)
    assert views.applied(1) == 3
    assert views.get(1, b"a") == pack_entry(2, 5, b"3")
    assert views.get(1, b"") == pack_entry(1, 5, None)
    assert views.get_many(1, [b"", b"b", b"a", b"a"]) == [held[b""], None, held[b"a"], held[b"a"]]
    assert views.get_some(1, [b"", b"b", b"a", b"a"], 1 << 20) == [held[b""], None, held[b"a"], held[b"a"]]
    assert views.get_some(1, [b"b", b"a", b""], 1) == [None, held[b"a"]]


def test_what_is_read_of_large_entries_is_bounded_in_bytes(views: Views) -> None:
    """A thousand entries of a megabyte used to be looked up at once, to know their offsets."""
    keys = [b"k%02d" % number for number in range(40)]
    for offset, key in enumerate(keys):
        views.apply(1, entries(key, offset=offset, value=bytes(1_000_000) if offset % 2 else None), offset + 1)
    tracemalloc.start()
    try:
        heads = views.heads(1, [*keys, b"unknown"])
        some, following = views.entries(1, None, 1000, 3_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [head and entry_offset(head) for head in heads] == [*range(40), None]
    assert [head is not None and is_tombstone(head) for head in heads] == [True, False] * 20 + [False]
    assert [entry_offset(entry) for entry in some] == list(range(6))
    assert peak < 12 << 20
    rest, following = views.entries(1, following, 1000)
    assert [entry_offset(entry) for entry in rest] == list(range(6, 40))
    assert following is None


def test_an_apply_without_entries_moves_the_offset(views: Views) -> None:
    views.apply(1, {}, 2**63 - 1)
    assert views.applied(1) == 2**63 - 1


def test_deletes_leave_nothing(views: Views) -> None:
    views.apply(1, entries(b"a", b"b"), 2)
    views.apply(1, {}, 2, [b"a", b"unknown"])
    assert views.get(1, b"a") is None
    assert views.get(1, b"b") is not None


def test_partitions_are_apart(views: Views) -> None:
    numbers = [1, 2, 255, 256, 0x01000000, MAX_NUMBER]
    for number in numbers:
        views.apply(number, entries(b"", b"k", b"\xff" * 9, offset=number), number + 3)
    views.drop(255)
    snapshot = views.snapshot()
    for number in numbers:
        held = {} if number == 255 else entries(b"", b"k", b"\xff" * 9, offset=number)
        assert read_all(snapshot, number) == held
        assert views.applied(number) == (0 if number == 255 else number + 3)
        assert views.get(number, b"k") == held.get(b"k")


@pytest.mark.parametrize("number", [0, -1, MAX_NUMBER + 1])
def test_numbers_that_no_partition_has(views: Views, number: int) -> None:
    with pytest.raises(ValueError, match=str(number)):
        views.apply(number, {}, 1)


def test_a_snapshot_stays_as_it_was(views: Views) -> None:
    views.apply(1, entries(b"a", b"b", b"c"), 3)
    snapshot = views.snapshot()
    first = snapshot.rows(1, max_entries=1)
    views.apply(1, entries(b"aa", b"b", b"z", offset=3), 6)
    views.apply(1, entries(b"b", b"c", offset=6, value=None), 8)
    views.flush()
    views.reclaim(1)
    assert snapshot.applied(1) == 3
    assert snapshot.get(1, b"b") == pack_entry(1, 5, b"v")
    assert snapshot.get(1, b"aa") is None
    assert read_all(snapshot, 1) == entries(b"a", b"b", b"c")
    assert snapshot.rows(1, start=first.following).keys == [b"b", b"c"]
    later = views.snapshot()
    assert later.applied(1) == 8
    assert list(read_all(later, 1)) == [b"a", b"aa", b"z"]
    later.close()
    later.close()
    for use in (lambda: later.rows(1), lambda: later.get(1, b"a"), lambda: later.applied(9)):
        with pytest.raises(StorageError, match="closed"):
            use()


def test_a_snapshot_keeps_what_is_taken_out_of_the_view(views: Views) -> None:
    views.apply(1, entries(b"a", b"b" * 300, b"c", b"d"), 4)
    views.apply(1, entries(b"d", offset=4, value=None), 5)
    snapshot = views.snapshot()
    views.apply(1, entries(b"a", b"b" * 300, offset=5, value=None), 7)
    views.apply(1, {}, 7, [b"a", b"b" * 300, b"d"])
    assert list(read_all(views.snapshot(), 1, tombstones=True)) == [b"c"]
    for page in (1, 2, 100):
        assert read_all(snapshot, 1, page) == entries(b"a", b"b" * 300, b"c")
        assert read_all(snapshot, 1, page, max_bytes=1) == entries(b"a", b"b" * 300, b"c")
        assert list(read_all(snapshot, 1, page, prefix=b"b")) == [b"b" * 300]
        assert list(read_all(snapshot, 1, page, start=b"aa", end=b"c")) == [b"b" * 300]
        assert list(read_all(snapshot, 1, page, log_start=1)) == [b"b" * 300, b"c"]


def test_a_page_looks_up_only_so_many_changes(views: Views) -> None:
    views.apply(1, entries(b"a", b"z"), 2)
    snapshot = views.snapshot()
    keys = [b"m%06d" % index for index in range(2 * CHANGES + 10)]
    views.apply(1, entries(*keys, offset=2), 2 + len(keys))
    views.write()
    first = snapshot.rows(1)
    assert first.keys == [b"a"]
    assert first.following == keys[CHANGES]
    assert read_all(snapshot, 1) == entries(b"a", b"z")


def test_a_dropped_view_is_not_read_on(views: Views) -> None:
    views.apply(1, entries(b"a", b"b"), 2)
    views.apply(2, entries(b"a"), 1)
    snapshot = views.snapshot()
    views.drop(1)
    views.apply(1, entries(b"a"), 1)
    with pytest.raises(StorageError, match="dropped"):
        snapshot.rows(1)
    assert read_all(snapshot, 2) == entries(b"a")
    assert read_all(views.snapshot(), 1) == entries(b"a")


def test_a_snapshot_pins_no_memory(views: Views) -> None:
    held = []
    for offset in range(0, 4000, 100):
        values = {b"%d" % key: pack_entry(offset + key, 5, os.urandom(1000)) for key in range(100)}
        views.apply(1, values, offset + 100)
        held.append(views.snapshot())
    views.flush()
    assert views.stats()["pinned_memtable_bytes"] < 100_000  # of 4 MB written
    assert [snapshot.applied(1) for snapshot in held] == list(range(100, 4100, 100))
    assert [entry_offset(snapshot.rows(1, max_entries=1).entries[0]) for snapshot in held] == list(range(0, 4000, 100))


@pytest.mark.parametrize(
    ("chosen", "keys"),
    [
        ({}, [b"", b"a", b"a\0", b"ab", b"b", b"b\xff", b"b\xff\xff", b"c"]),
        ({"prefix": b"a"}, [b"a", b"a\0", b"ab"]),
        ({"prefix": b"b\xff"}, [b"b\xff", b"b\xff\xff"]),
        ({"prefix": b""}, [b"", b"a", b"a\0", b"ab", b"b", b"b\xff", b"b\xff\xff", b"c"]),
        ({"prefix": b"x"}, []),
        ({"start": b"ab"}, [b"ab", b"b", b"b\xff", b"b\xff\xff", b"c"]),
        ({"end": b"ab"}, [b"", b"a", b"a\0"]),
        ({"start": b"a\0", "end": b"b"}, [b"a\0", b"ab"]),
        ({"start": b"c", "end": b"a"}, []),
        ({"end": b""}, []),
        ({"prefix": b"a", "start": b"a\0"}, [b"a\0", b"ab"]),
        ({"prefix": b"a", "end": b"ab"}, [b"a", b"a\0"]),
        ({"prefix": b"a", "start": b"b"}, []),
    ],
)
@pytest.mark.parametrize("page", [1, 3, 100])
def test_ranges(views: Views, chosen: dict[str, bytes], keys: list[bytes], page: int) -> None:
    views.apply(2, entries(b"", b"a", b"a\0", b"ab", b"b", b"b\xff", b"b\xff\xff", b"c"), 8)
    views.apply(1, entries(b"b", b"zz"), 2)
    views.apply(3, entries(b"", b"b"), 2)
    assert list(read_all(views.snapshot(), 2, page, **chosen)) == keys


def test_tombstones_and_expired_entries_are_left_out(views: Views) -> None:
    views.apply(1, entries(b"a", b"b", b"c", b"d"), 4)
    views.apply(1, entries(b"b", b"e", offset=4, value=None), 6)
    snapshot = views.snapshot()
    assert list(read_all(snapshot, 1)) == [b"a", b"c", b"d"]
    assert list(read_all(snapshot, 1, tombstones=True)) == [b"a", b"b", b"c", b"d", b"e"]
    assert list(read_all(snapshot, 1, log_start=3)) == [b"d"]
    assert list(read_all(snapshot, 1, log_start=5, tombstones=True)) == [b"e"]
    assert list(read_all(snapshot, 1, page=1, log_start=3)) == [b"d"]


def test_keys_of_every_length_are_packed_as_bins(views: Views) -> None:
    keys = [bytes([97]) * length for length in (0, 1, 200, 250, 251, 252, 253, 255, 256, 257, 300, 65535, 65536, 70000)]
    views.apply(1, entries(*keys), len(keys))
    assert list(read_all(views.snapshot(), 1)) == sorted(keys)


def test_a_page_ends_at_its_bytes_but_holds_at_least_one(views: Views) -> None:
    views.apply(1, entries(b"a", b"b", b"c", value=b"x" * 1000), 3)
    snapshot = views.snapshot()
    assert [len(snapshot.rows(1, max_bytes=size).keys) for size in (1, 1010, 1100, 2100)] == [1, 1, 2, 3]
    last = snapshot.rows(1, max_bytes=1, start=b"bb")
    assert (last.keys, last.following) == ([b"c"], None)


def test_a_page_that_meets_only_what_it_leaves_out_ends(views: Views) -> None:
    keys = [b"%06d" % index for index in range(500)]
    views.apply(1, entries(*keys, value=None), len(keys))
    views.apply(1, entries(b"z", offset=len(keys)), len(keys) + 1)
    snapshot = views.snapshot()
    assert snapshot.rows(1, max_entries=10) == ([], [], keys[9] + b"\0")
    assert list(read_all(snapshot, 1)) == [b"z"]


def test_values_of_a_dropped_view_do_not_come_back(views: Views, tmp_path: Path) -> None:
    views.apply(1, entries(b"a", b"b"), 2)
    views.flush()
    views.drop(1)
    assert (views.applied(1), views.get(1, b"a"), views.get_many(1, [b"b"])) == (0, None, [None])
    views.apply(1, entries(b"b", offset=7), 8)
    views.reclaim(1)
    views.close()
    again = Views(tmp_path / "views")
    assert again.applied(1) == 8
    assert read_all(again.snapshot(), 1) == entries(b"b", offset=7)
    again.close()


def test_a_closed_view_is_there_when_reopened(tmp_path: Path) -> None:
    views = Views(tmp_path / "views")
    views.apply(1, entries(b"a"), 1)
    views.close()
    views.close()
    for use in (lambda: views.get(1, b"a"), lambda: views.apply(1, {}, 2), views.snapshot, views.flush, views.stats):
        with pytest.raises(StorageError, match="closed"):
            use()
    views = Views(tmp_path / "views")
    assert (views.applied(1), views.get(1, b"a")) == (1, entries(b"a")[b"a"])
    views.close()


def test_closing_lets_every_file_go_even_with_a_snapshot_held(tmp_path: Path) -> None:
    before = open_files(tmp_path)
    for _ in range(3):
        views = Views(tmp_path / "views")
        views.apply(1, entries(b"a"), 1)
        snapshot = views.snapshot()
        views.close()
        with pytest.raises(StorageError):
            snapshot.rows(1)
    gc.collect()
    assert open_files(tmp_path) <= before
    assert len(list((tmp_path / "views").glob("LOG*"))) <= 3


def test_the_options_of_the_last_opening_do_not_stay(tmp_path: Path) -> None:
    for memtable in (32 << 20, 64 << 20):
        Views(tmp_path / "views", memtable_bytes=memtable).close()
        newest = max((tmp_path / "views").glob("OPTIONS-*"), key=lambda path: int(path.name[8:]))
        assert f"max_bytes_for_level_base={2 * memtable}\n" in newest.read_text()


def test_a_checkpoint_is_a_copy_of_the_moment(views: Views, tmp_path: Path) -> None:
    views.apply(1, entries(b"a", b"b"), 2)
    views.checkpoint(tmp_path / "copy")
    views.apply(1, entries(b"a", offset=2), 3)
    with pytest.raises(StorageError):
        views.checkpoint(tmp_path / "copy")
    copy = Views(tmp_path / "copy")
    assert copy.applied(1) == 2
    assert read_all(copy.snapshot(), 1) == entries(b"a", b"b")
    copy.close()


def test_a_write_that_would_stall_waits_and_is_not_lost(tmp_path: Path) -> None:
    views = Views(tmp_path / "views", memtable_bytes=256 << 10)
    busy = 0
    for offset in range(0, 3000, 3):
        views.apply(1, entries(b"%d" % (offset % 700), b"x", b"y", offset=offset, value=b"x" * 20_000), offset + 3)
        busy += views.busy()
    found = read_all(views.snapshot(), 1)
    plain: dict[bytes, bytes] = {}
    for offset in range(0, 3000, 3):
        plain |= entries(b"%d" % (offset % 700), b"x", b"y", offset=offset, value=b"x" * 20_000)
    views.close()
    assert found == plain
    assert busy  # 60 MB in memtables of 64 KiB: at some time the flushes must have been behind


def test_a_stalled_write_says_so_and_writes_nothing(tmp_path: Path) -> None:
    db = rocks.open_db(tmp_path / "db", cache_bytes=1 << 20, memtable_bytes=256 << 10)
    options = rocks.write_options(wal=False, no_slowdown=True)
    written, stalled = 0, None
    while stalled is None and written < 100_000:
        batch = rocks.batch()
        batch.put(written.to_bytes(8, "big"), bytes(60_000))
        try:
            db.write(batch, options)
            written += 1
        except Exception as error:
            stalled = rocks.failure("writing", error)
    assert isinstance(stalled, rocks.Stalled)
    assert db.get(written.to_bytes(8, "big")) is None
    assert db.get((written - 1).to_bytes(8, "big")) == bytes(60_000)
    db.close()


# --- damage --------------------------------------------------------------------------------------------------


def made(folder: Path) -> Path:
    """Closed views with one table file."""
    views = Views(folder)
    views.apply(1, entries(*(b"%05d" % index for index in range(5000)), value=os.urandom(20)), 5000)
    views.close()
    return folder


def test_a_missing_folder_is_made_anew(tmp_path: Path) -> None:
    shutil.rmtree(made(tmp_path / "views"))
    views = Views(tmp_path / "views")
    assert views.applied(1) == 0
    views.close()


def test_a_first_opening_cut_short_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "views").mkdir()
    for name in ("LOG", "LOCK", "IDENTITY", "rocksdict-config.json"):
        (tmp_path / "views" / name).touch()
    Views(tmp_path / "views").close()


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_missing_file_is_a_clear_error(tmp_path: Path, pattern: str) -> None:
    (victim,) = made(tmp_path / "views").glob(pattern)
    victim.unlink()
    with pytest.raises(StorageError, match=str(tmp_path)):
        Views(tmp_path / "views")


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*"])
@pytest.mark.parametrize("damage", [b"", b"\0" * 100, b"not what it was\n"])
def test_a_damaged_file_is_a_clear_error(tmp_path: Path, pattern: str, damage: bytes) -> None:
    (victim,) = made(tmp_path / "views").glob(pattern)
    victim.write_bytes(damage)
    with pytest.raises(StorageError, match=str(tmp_path)):
        Views(tmp_path / "views")


def test_a_folder_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "views").touch()
    with pytest.raises(StorageError, match=str(tmp_path)):
        Views(tmp_path / "views")


def test_a_second_opening_is_refused(tmp_path: Path) -> None:
    views = Views(tmp_path / "views")
    with pytest.raises(StorageError, match=str(tmp_path)):
        Views(tmp_path / "views")
    views.close()


def test_a_flipped_bit_is_an_error_and_never_silence(tmp_path: Path) -> None:
    (victim,) = made(tmp_path / "views").glob("*.sst")
    damaged = bytearray(victim.read_bytes())
    damaged[len(damaged) // 3] ^= 1
    victim.write_bytes(damaged)
    views = Views(tmp_path / "views")
    keys = [b"%05d" % index for index in range(5000)]
    wrong = 0
    for key in keys:
        try:
            found = views.get(1, key)
        except StorageError:
            wrong += 1
        else:
            assert found is not None
            assert entry_offset(found) == int(key)
    assert wrong
    with pytest.raises(StorageError):
        views.get_many(1, keys)
    with pytest.raises(StorageError):
        read_all(views.snapshot(), 1, page=1000)
    views.close()


# --- keys ----------------------------------------------------------------------------------------------------


def test_the_first_key_after_a_prefix() -> None:
    assert after_prefix(b"a") == b"b"
    assert after_prefix(b"a\xff\xff") == b"b"
    assert after_prefix(view_prefix(MAX_NUMBER)) == view_end(MAX_NUMBER)


def test_a_range_stays_in_its_view() -> None:
    assert key_range(1) == (view_prefix(1), view_prefix(2))
    assert key_range(1, prefix=b"\xff\xff") == (view_prefix(1) + b"\xff\xff", view_prefix(2))
    assert key_range(1, start=b"b", end=b"a") == (view_prefix(1) + b"b",) * 2


def test_a_damaged_block_is_an_error_and_never_the_end_of_the_data(tmp_path: Path) -> None:
    views = Views(tmp_path / "views")
    keys = [b"%06d" % number for number in range(20_000)]
    views.apply(1, entries(*keys, value=b"x" * 50), len(keys))
    views.close()
    [table] = (tmp_path / "views").glob("*.sst")
    data = bytearray(table.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 8000] = os.urandom(8000)
    table.write_bytes(data)
    views = Views(tmp_path / "views")
    snapshot = views.snapshot()
    for page in (500, 100_000):
        with pytest.raises(StorageError):
            read_all(snapshot, 1, page, max_bytes=100 << 20)
    snapshot.close()
    views.close()


@pytest.mark.parametrize("others", [0, 3, 50, 5_000])
def test_keys_that_another_view_has_are_found(views: Views, others: int) -> None:
    """However many keys it has beside them. Keys that were taken out of that view since then are found, too."""
    keys = [b"k%04d" % number for number in range(0, 1000, 10)]
    views.apply(1, entries(*keys), 1000)
    views.apply(2, entries(*keys[::7], *(b"k%04d.%d" % (number % 1000, number) for number in range(others))), 6000)
    snapshot = views.snapshot()
    snapshot.keep_all()
    views.apply(2, {}, 6000, deletes=keys[:8])
    found = snapshot.shared(2, keys)
    assert set(keys[::7]) <= set(found) <= set(keys)
    if others < len(keys):
        assert found == keys[::7]
    assert [key for key in found if snapshot.get(2, key)] == keys[::7]
    assert snapshot.shared(3, keys) == []


def test_what_is_unwritten_is_found(views: Views) -> None:
    views.apply(1, entries(b"a", b"b"), 2, strays=(3, True))
    views.apply(2, entries(b"a", offset=9), 10)
    assert not rocks.number_of(views._db, "num-entries-active-mem-table")
    assert (views.applied(1), views.applied(2), views.strays(1)) == (2, 10, (3, True))
    assert views.get_many(1, [b"a", b"b", b"c"]) == [*entries(b"a", b"b").values(), None]
    assert views.get(2, b"a") == entries(b"a", offset=9)[b"a"]
    views.write()
    views.apply(1, entries(b"b", b"c", offset=5, value=b"w"), 7)
    newest = {**entries(b"a"), **entries(b"b", b"c", offset=5, value=b"w")}
    assert views.get_many(1, list(newest)) == list(newest.values())
    assert views.get_some(1, list(newest), 1 << 20) == list(newest.values())
    assert views.unflushed() >= 5
    assert read_all(views.snapshot(), 1) == newest


def test_keys_that_change_again_are_written_once(views: Views) -> None:
    """However often they change, until so many events are folded that a start after a crash would take long."""
    hot = [b"%d" % number for number in range(100)]
    for offset in range(0, MOST_FOLDED, 100):
        views.apply(1, entries(*hot, offset=offset), offset + 100)
    assert not rocks.number_of(views._db, "num-entries-active-mem-table")
    views.apply(1, entries(b"x", offset=MOST_FOLDED), MOST_FOLDED + 1)
    views.apply(1, entries(b"y", offset=MOST_FOLDED + 1), MOST_FOLDED + 2)
    assert views.unflushed() < 300
    assert rocks.number_of(views._db, "num-entries-active-mem-table") + views.unflushed() > 100
    assert views.applied(1) == MOST_FOLDED + 2


def test_keys_that_fit_stay_however_often_they_change(tmp_path: Path) -> None:
    """They stay up to three quarters of the room: what is replaced is free again."""
    views = Views(tmp_path / "views", memtable_bytes=16 << 20)
    room = rocks.most_gathered(16 << 20)
    hot = [b"%06d" % number for number in range(room * 7 // 10 // 300)]
    for offset in range(0, 20 * len(hot), len(hot)):
        views.apply(1, entries(*hot, offset=offset, value=b"x" * (300 - 150 - 6 - 22)), offset + len(hot))
    assert not rocks.number_of(views._db, "num-entries-imm-mem-tables")
    assert views.unflushed() == len(hot)
    views.close()


def test_new_keys_take_memory_after_those_that_changed_often(tmp_path: Path) -> None:
    views = Views(tmp_path / "views", memtable_bytes=16 << 20)
    room, offset = rocks.most_gathered(16 << 20), 0
    while not rocks.number_of(views._db, "num-entries-imm-mem-tables"):
        held = views._unwritten.of(1)
        assert HELD * len(held) + sum(map(len, held.values())) < 1.3 * room
        first = 0 if offset * 300 < 2 * room else offset
        keys = [b"%06d" % key for key in range(first, first + 20)]
        views.apply(1, entries(*keys, offset=offset, value=b"x" * 122), offset + 20)
        offset += 20
    views.close()


def test_views_with_few_entries_take_memory(tmp_path: Path) -> None:
    views = Views(tmp_path / "views", memtable_bytes=16 << 20)
    most = rocks.most_gathered(16 << 20) // OF_VIEW
    for number in range(1, most + 1):
        views.apply(number, entries(b"a"), 1)
    assert len(views._unwritten) < most
    views.close()


def test_few_keys_come_to_files_too(views: Views) -> None:
    """They are written after so many events, however few entries these make: else a start after a crash would fold them
    for minutes."""
    for offset in range(0, MOST_UNFLUSHED + 2 * MOST_FOLDED, 1000):
        views.apply(1, entries(b"hot", offset=offset), offset + 1000, events=1000)
    wait_until(lambda: bool(views.files()), "a flush")


def test_a_memtable_ends_with_a_small_write(tmp_path: Path) -> None:
    """However many views there are: each lookup and each page of a scan would have to sort a list that is
    incomplete."""
    views = Views(tmp_path / "views", memtable_bytes=16 << 20)
    for number in range(1, 1001):
        views.apply(number, entries(b"a", b"b", b"c", value=b"x" * 20), 3, strays=(1000, False))
    assert not rocks.number_of(views._db, "num-entries-active-mem-table")
    views.write()
    assert rocks.number_of(views._db, "num-entries-imm-mem-tables") == 5000
    assert rocks.number_of(views._db, "num-entries-active-mem-table") == 2
    assert views.applied(1) == views.applied(1000) == 3
    assert views.strays(1) == views.strays(1000) == (1000, False)
    views.close()


def test_no_write_is_very_large(tmp_path: Path) -> None:
    """A very large write would stop the event loop for a second."""
    views = Views(tmp_path / "views", memtable_bytes=1 << 30)
    for offset in range(100):
        views.apply(1, entries(b"%d" % offset, offset=offset, value=b"x" * 100_000), offset + 1)
        assert sum(map(len, views._unwritten.of(1).values())) <= rocks.MOST_GATHERED + 100_050
    assert rocks.number_of(views._db, "num-entries-imm-mem-tables")
    views.close()


def test_long_keys_take_memory(views: Views) -> None:
    """As much as long values take."""
    room = rocks.most_gathered(1 << 20)
    for offset in range(100):
        views.apply(1, entries(b"%060000d" % offset, offset=offset), offset + 1)
        assert sum(map(len, views._unwritten.of(1))) <= room + 60_010
    assert rocks.number_of(views._db, "num-entries-imm-mem-tables")


def test_small_files_that_pile_up_slow_the_fold(views: Views) -> None:
    """Scans have small amounts written at a time, so what is unwritten is never full then."""
    views._db.set_options({"disable_auto_compactions": "true"})
    for offset in range(rocks.LEVEL0_LIMIT):
        assert not views.busy()
        views.apply(1, entries(b"%d" % offset, offset=offset), offset + 1)
        views.flush()
    assert views.busy()
    views._db.set_options({"disable_auto_compactions": "false"})
    views.apply(1, entries(b"last", offset=99), 100)
    views.flush()
    wait_until(lambda: not views.busy(), "a compaction")


def test_memtables_that_pile_up_slow_the_fold(views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold slows down before there is no memtable left: else a scan would wait for one, and the event
    loop with it."""
    views.apply(1, entries(b"a"), 1)
    assert not views.busy()
    piled = {"num-immutable-mem-table": rocks.LISTS - rocks.LISTS_MERGED}
    monkeypatch.setattr(rocks, "number_of", lambda db, name: piled[name])
    assert views.busy()


def test_many_keys_are_written_when_they_take_too_much_memory(tmp_path: Path) -> None:
    views = Views(tmp_path / "views", memtable_bytes=1 << 20)
    room, offset = rocks.most_gathered(1 << 20), 0
    while not rocks.number_of(views._db, "num-entries-imm-mem-tables"):
        assert offset * 100 < 2 * room
        views.apply(1, entries(b"%d" % offset, offset=offset, value=b"x" * 100), offset + 1)
        offset += 1
    assert views.get(1, b"0") == entries(b"0", offset=0, value=b"x" * 100)[b"0"]
    views.close()


def test_a_failed_write_keeps_what_is_unwritten(views: Views) -> None:
    views.apply(1, entries(b"a"), 1)
    opened = views._db

    class Full:
        def __getattr__(self, name: str) -> object:
            return getattr(opened, name)

        def write(self, *given: object) -> None:
            raise Exception("IO error: No space left on device")

    views._open = Full()  # type: ignore[assignment]
    for use in (views.write, views.flush, lambda: views.entries(1, None, 9)):
        with pytest.raises(StorageError, match="No space left"):
            use()
    assert views.get(1, b"a") == entries(b"a")[b"a"]
    assert read_all(views.snapshot(), 1) == entries(b"a")
    assert views.keys(view_prefix(1), view_end(1), 9) == ([view_prefix(1) + b"a"], None)
    views.apply(1, entries(b"b", offset=1), 2)
    views._open = opened
    assert read_all(views.snapshot(), 1) == {**entries(b"a"), **entries(b"b", offset=1)}
    assert views.applied(1) == 2


def test_threads_read_while_one_writes(views: Views) -> None:
    """No reader ever sees an older entry than it saw before, or none."""
    keys = [b"%d" % number for number in range(50)]
    views.apply(1, entries(*keys), 50)
    over = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        seen = dict.fromkeys(keys, 0)
        while not over.is_set():
            for key, entry in zip(keys, views.get_many(1, keys), strict=True):
                offset = -1 if entry is None else entry_offset(entry)
                if offset < seen[key]:
                    wrong.append((key, seen[key], offset))
                seen[key] = offset

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for offset in range(50, 50_000, 50):
        views.apply(1, entries(*keys, offset=offset), offset + 50)
        if offset % 350 == 0:
            views.write()
    over.set()
    for reader in readers:
        reader.join()
    assert not wrong
