"""Compaction, compared with a dict; and its swap with a crash at each of its steps."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from krappy.errors import CorruptBatch, StorageError
from krappy.records import batch
from krappy.settings.topic import TopicConfig
from krappy.store.cleaner import Candidate
from krappy.store.pool import Pool
from tests.long import some
from tests.store.compacted import CONFIG, Table
from tests.store.faulty_disk import Chance, Everything, FaultyDisk, Keep, PowerLoss
from tests.store.logs import FOLDER, Row, log_files, made, offsets, opened, rows


def test_only_the_latest_of_each_key_stays(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.fill(200, 15)
    size = table.log.size
    assert table.clean() > 300
    assert table.log.size < size / 3
    assert table.log.clean_upto == table.log.segments[-1].base_offset
    assert table.clean() == 0
    table.reopen()
    table.fill(50, 15, seed=2)
    assert table.clean() > 50
    table.reopen()


def test_offsets_are_found_across_the_holes(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.fill(200, 15)
    table.clean()
    kept = [row.offset for row in table.rows]
    for _ in range(2):
        for offset in range(table.log.end_offset):
            expected = next((kept_one for kept_one in kept if kept_one >= offset), None)
            found = offsets(rows(table.log, offset))
            assert (found[0] if found else None) == expected
        table.reopen()


def test_find_timestamp_after_a_clean(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.fill(200, 15)
    table.clean()
    for _ in range(2):
        for wanted in range(990, 1210):
            expected = next(((row.offset, row.timestamp) for row in table.rows if row.timestamp >= wanted), None)
            assert table.log.find_timestamp(wanted) == expected
        table.reopen()


def test_small_neighbours_become_one_segment(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.fill(300, 3)
    before = len(table.log.segments)
    for _ in range(4):
        table.clean()
    assert len(table.log.segments) == 2 < before / 5
    assert len(log_files(tmp_path)) == 2
    assert {path.suffix for path in tmp_path.iterdir()} == {".log", ".index", ".timeindex", ".sums", "", ".copy"}


def test_nothing_to_remove_changes_no_file(tmp_path: Path) -> None:
    table = Table(tmp_path)
    for number in range(40):
        table.put((b"%d" % number, b"x" * 50))
    before = {path: path.stat().st_ino for path in log_files(tmp_path)}
    assert table.clean() == 0
    assert table.clean() == 0
    assert {path: path.stat().st_ino for path in log_files(tmp_path)} == before


def test_a_change_late_in_a_segment_keeps_what_came_before(tmp_path: Path) -> None:
    table = Table(tmp_path)
    for number in range(8):
        table.put((b"%d" % number, b"x" * 50))
    table.put((b"6", b"y"))
    table.log.roll()
    assert len(table.log.segments) == 3
    assert table.clean() == 1
    table.reopen()


def test_tombstones_stay_for_their_time(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.put((b"a", b"1"), at=1000)
    table.put((b"b", b"1"), at=1000)
    table.put((b"a", None), at=2000)
    table.log.roll()
    assert table.clean(now=2100, kept_ms=500) == 1
    assert table.clean(now=2599, kept_ms=0) == 0  # what the first cleaning promised still holds
    table.reopen()
    assert offsets(table.rows) == [1, 2]
    assert table.clean(now=2600, kept_ms=500) == 1
    assert offsets(table.rows) == [1]
    table.reopen()


@pytest.mark.parametrize("at", [0, 1, 2**62, -1, -(2**63)])
def test_the_timestamp_of_a_tombstone_does_not_matter(tmp_path: Path, at: int) -> None:
    """A reader has time to learn of a deletion from when the deleted events began to go, whatever timestamp a producer
    gave."""
    table = Table(tmp_path)
    table.put((b"a", b"1"), at=at)
    table.put((b"b", b"2"), (b"a", None), at=at)
    table.log.roll()
    assert table.clean(now=5000, kept_ms=500) == 1
    assert table.clean(now=5499, kept_ms=500) == 0
    assert offsets(table.rows) == [1, 2]
    absurd = at < 500 - 2**63  # no horizon can be set then, and the tombstone is kept
    assert offsets(rows(table.log)) == [1, 2]
    if not absurd:
        assert table.clean(now=5500, kept_ms=500) == 1
        assert offsets(table.rows) == [1]


def test_horizons_do_not_make_a_segment_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path)
    for number in range(8):
        table.put((b"%d" % number, None))
    table.log.roll()
    size = table.log.size
    monkeypatch.setattr("krappy.store.cleaner.MAX_SPAN", size + 12)  # room for the horizons of some batches
    table.log.clean(table.survives(), table.log.end_offset, 10**6)
    assert size < table.log.size <= size + 12
    marked = [header.delete_horizon is not None for header, _ in batch.split(table.log.read(0, 10_000))]
    assert 0 < marked.count(True) < 8
    table.check()
    table.reopen()


def test_only_whole_segments_before_the_given_offset(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.fill(100, 2)
    infos = table.log.segments
    table.clean(infos[3].next_offset - 1)
    assert table.log.segments[-len(infos[3:]) :] == infos[3:]
    assert table.log.clean_upto == infos[2].next_offset
    assert table.log.clean(table.survives(), 0, 0).records_removed == 0


def test_a_whole_log_of_overtaken_events(tmp_path: Path) -> None:
    table = Table(tmp_path)
    for _ in range(100):
        table.put((b"k", b"x" * 30))
    table.clean()
    assert table.log.end_offset == 100
    assert table.log.segments[0].base_offset == 0
    batches = list(batch.split(table.log.read(0, 10_000)))
    assert batches[0][0].count == 0  # the header shows that there were offsets
    table.reopen()


def test_the_log_start_may_lie_in_a_hole(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.fill(200, 15)
    table.clean()
    table.log.delete_before(table.rows[0].offset + 1)
    table.rows = table.rows[1:]
    table.check()
    table.reopen()


def test_a_producers_last_batch_keeps_its_header(tmp_path: Path) -> None:
    log = opened(tmp_path, CONFIG)
    for sequence in range(3):
        log.append([made(b"v", producer=5, sequence=sequence)], 0, 1)
    log.append([made(b"w")], 0, 1)
    log.roll()
    log.clean(lambda some: [offset == 3 for _, offset, *_ in some], 4, 0)
    assert [(header.base_offset, header.count) for header, _ in batch.split(log.read(0, 9999))] == [(2, 0), (3, 1)]
    log.close()
    (tmp_path / "checkpoint").unlink()
    log = opened(tmp_path, CONFIG)
    assert log.producers.check(made(b"v", producer=5, sequence=2)[0]) == 2


def test_a_clean_ends_where_it_meets_damage(tmp_path: Path) -> None:
    """Behind the damage there may be tombstones of what is in it."""
    table = Table(tmp_path)
    table.fill(100, 2)
    table.log.close()
    files = log_files(tmp_path)
    data = bytearray(files[1].read_bytes())
    data[-1] ^= 1
    files[1].write_bytes(data)
    log = opened(tmp_path, CONFIG)
    infos = log.segments
    for _ in range(2):
        with pytest.raises(CorruptBatch) as caught:
            log.clean(table.survives(), infos[-1].base_offset, 0)
        assert caught.value.details["file"] == str(files[1])
        assert files[1].read_bytes() == data
        assert log.segments[0].size < infos[0].size
        assert log.segments[1:] == infos[1:]
        assert log.clean_upto == 0
        assert not list(tmp_path.glob("*.cleaned"))
    with pytest.raises(CorruptBatch):
        log.read(infos[1].next_offset - 1, 1000)
    assert offsets(rows(log, infos[-1].base_offset)) == list(range(infos[-1].base_offset, log.end_offset))


def test_a_verdict_too_few_is_an_error(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.fill(100, 2)
    with pytest.raises(ValueError, match="verdicts"):
        table.log.clean(lambda some: [True] * (len(some) - 1), 10**9, 0)
    table.check()
    assert not list(tmp_path.glob("*.cleaned"))
    table.clean()


@pytest.mark.parametrize("open_files", [1, 500])
def test_readers_and_writers_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_files: int) -> None:
    """Readers stand anywhere in the log while it is compacted over and over: they see ascending offsets and the right
    rows."""
    monkeypatch.setattr("krappy.store.segment.POOL", Pool(max_files=open_files))
    table = Table(tmp_path)
    table.fill(400, 20)
    everything = {row.offset: row for row in table.rows}
    stop, problems = threading.Event(), []

    def follow(seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not stop.is_set():
                position = chance.randrange(table.log.end_offset)
                for _ in range(20):
                    before = position
                    span = table.log.read_span(position, 300)
                    for header, one in batch.split(span.data):
                        columns = batch.decode(one)
                        for row in map(Row, columns.offsets, columns.timestamps, columns.keys, columns.values):
                            assert row == everything[row.offset]
                        assert header.next_offset > before
                        before = header.next_offset
                    position = span.next_offset
                    time.sleep(0.0005)
                table.log.locate(position, 300)
                table.log.find_timestamp(chance.randrange(1000, 1400))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=follow, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(12):
            table.put(*[(b"k%d" % key, b"%d" % number) for key in range(20)])
            everything.update({row.offset: row for row in table.rows})
            table.log.roll()
            table.clean()
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert problems == []


def test_retention_may_overtake_a_clean(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.fill(200, 5)
    decide = table.survives()
    infos = table.log.segments

    def slow(candidates: list[Candidate]) -> list[bool]:
        table.log.delete_before(infos[3].base_offset)
        return decide(candidates)

    table.log.clean(slow, infos[-1].base_offset, 0)
    assert table.log.start_offset == infos[3].base_offset
    assert not list(tmp_path.glob("*.cleaned"))
    found = rows(table.log)
    assert found[0].offset >= infos[3].base_offset
    assert {row.key: row.offset for row in found if row.key} == {
        key: offset for key, offset in table.latest.items() if offset >= infos[3].base_offset
    }


# ---------------------------------------------------------------- crashes


def built(disk: FaultyDisk) -> Table:
    """A table whose segments are so small that neighbours are merged: a second cleaning after a first."""
    table = Table(FOLDER, disk)
    table.fill(60, 4)
    table.clean()
    table.fill(20, 4, seed=2)
    table.log.checkpoint()
    return table


@pytest.mark.parametrize("keep", some([Keep(), Everything(), Chance(1), Chance(2), Chance(3)], 2))
def test_power_goes_at_every_step_of_a_clean(keep: Keep) -> None:
    """Whenever the power goes: no event that counts is lost, none comes back to life, and the next cleaning does the
    rest."""
    disk = FaultyDisk()
    table = built(disk)
    disk.operations, disk.log = 0, []
    table.clean()
    steps = list(disk.log)
    assert sum(name.startswith("rename") and name.endswith(".log") for name in steps) > 1
    assert sum(name.startswith("unlink") for name in steps) > 3
    end = table.log.end_offset
    for step in range(len(steps)):
        disk = FaultyDisk()
        table = built(disk)
        before = {row.offset: row for row in table.rows}
        disk.operations, disk.dies_at = 0, step
        with pytest.raises(PowerLoss):
            table.clean()
        disk.crash(keep)
        table.log = opened(FOLDER, CONFIG, disk)
        assert not table.log.recovery.damage, str(table.log.recovery)
        assert (table.log.recovery.cut_bytes, table.log.recovery.lost_offsets) == (0, 0)
        found = rows(table.log)
        assert (table.log.start_offset, table.log.end_offset) == (0, end)
        assert all(before[row.offset] == row for row in found)
        assert {row.key: row.offset for row in found} == table.latest
        for offset in range(0, end, 5):
            batch.split(table.log.read(offset, 100))
        table.rows = found
        table.clean()
        table.reopen()


def test_a_disk_that_fails_at_every_step_of_a_clean() -> None:
    """The log stays readable as it was, or as it is to be; the next start finishes what was decided."""
    disk = FaultyDisk()
    table = built(disk)
    disk.log = []
    table.clean()
    steps = len(disk.log)
    for step in range(steps):
        disk = FaultyDisk()
        table = built(disk)
        before = {row.offset: row for row in table.rows}
        count = iter(range(10**6))
        disk.refuses = lambda name, count=count, step=step: next(count) == step  # type: ignore[misc]
        with suppress(StorageError):
            table.log.clean(table.survives(), table.log.segments[-1].base_offset, 0)
        disk.refuses = lambda name: False
        for _ in range(2):
            found = rows(table.log)
            assert all(before[row.offset] == row for row in found)
            assert {row.key: row.offset for row in found} == table.latest
            with suppress(StorageError):
                table.log.checkpoint()
            disk.crash()
            table.log = opened(FOLDER, CONFIG, disk)
            assert not table.log.recovery.damage
        table.rows = rows(table.log)
        table.clean()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 6), st.one_of(st.none(), st.binary(max_size=80))),
            st.tuples(st.just("clean"), st.integers(0, 100), st.just(None)),
            st.tuples(st.just("reopen"), st.just(0), st.just(None)),
            st.tuples(st.just("roll"), st.just(0), st.just(None)),
        ),
        max_size=80,
    ),
    st.integers(0, 4),
)
def test_any_history_is_as_the_dict_has_it(steps: list[tuple[str, int, bytes | None]], codec: int) -> None:
    disk = FaultyDisk()
    table = Table(FOLDER, disk, TopicConfig(segment_bytes=300, index_interval_bytes=100, compact=True, delete=False))
    for now, (what, number, value) in enumerate(steps):
        if what == "put":
            table.put((b"%d" % number, value), (b"%d" % (number // 2), b"twice"), at=now, codec=codec)
        elif what == "clean":
            table.clean(table.log.end_offset * number // 100, now=now, kept_ms=10)
        elif what == "roll":
            table.log.roll()
        else:
            table.reopen()
    table.check()
    live = {
        row.key: row.value for row in table.rows if row.value is not None and table.latest[row.key or b""] == row.offset
    }
    expected: dict[bytes | None, bytes | None] = {}
    for what, number, value in steps:
        if what == "put":
            expected[b"%d" % number] = value
            expected[b"%d" % (number // 2)] = b"twice"
    assert live == {key: value for key, value in expected.items() if value is not None}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_whose_sync_failed_is_made_anew(suffix: str) -> None:
    """The kernel gives up what it could not write: the file may have zeros, or what it had before."""
    disk = FaultyDisk()
    table = Table(disk=disk)
    table.fill(40, 3)
    table.log.checkpoint()
    disk.refuses = lambda name: name == f"fdatasync {0:020}{suffix}"
    table.log.clean(table.survives(), table.log.segments[-1].base_offset, 0)
    disk.refuses = lambda name: False
    assert "00000000000000000000.log" in disk.names(table.log.folder)
    assert f"00000000000000000000{suffix}" not in disk.names(table.log.folder)
    assert {(row.offset, row.key) for row in rows(table.log)} >= {(at, key) for key, at in table.latest.items()}
