"""The sums of a cleaned segment: no byte of it is served that the cleaner did not write, whoever reads it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.errors import CorruptBatch, StorageError
from krappy.records import batch
from krappy.store import checkpoint as checkpoints
from krappy.store import sums as module
from krappy.store.disk import OS_DISK, File
from krappy.store.format import SUMS, SUMS_BLOCK
from krappy.store.log import Log
from krappy.store.pool import POOL
from krappy.store.sums import ProvenFile, Summing, Sums
from tests.long import some
from tests.store.compacted import CONFIG, Table
from tests.store.faulty_disk import Chance, Everything, FaultyDisk, Keep, PowerLoss
from tests.store.logs import FOLDER, Row, log_files, opened, rows, unpacked

UNPROTECTED = range(16)  # the bytes of a batch that its checksum does not cover: base offset, length, leader epoch


def cleaned(folder: Path, batches: int = 60, keys: int = 15) -> Table:
    """A table with holes in its first segments, closed."""
    table = Table(folder)
    table.fill(batches, keys)
    table.clean()
    assert any(a.offset + 1 < b.offset for a, b in zip(table.rows, table.rows[1:], strict=False))
    table.log.close()
    return table


def heads(content: bytes) -> Iterator[tuple[int, batch.BatchHeader]]:
    at = 0
    while at < len(content):
        header = batch.read_header(content, at)
        yield at, header
        at += header.size


def problems(log: Log) -> list[str]:
    return [text for _, found in log.scrub() for text in found]


def read_on(log: Log) -> tuple[list[Row], list[batch.BatchHeader], int]:
    """Everything that reads give, around what is refused; and how often a read was refused."""
    found: list[Row] = []
    headers: list[batch.BatchHeader] = []
    at, refused = log.start_offset, 0
    while at < log.end_offset:
        try:
            span = log.read_span(at, 300)
        except CorruptBatch:
            at, refused = at + 1, refused + 1
            continue
        found += [row for row in unpacked(span.data) if row.offset >= at]
        headers += [header for header, _ in batch.split(span.data)]
        at = span.next_offset if span.data else log.end_offset
    return found, headers, refused


def sent(log: Log, offset: int, size: int) -> bytes:
    """What sendfile would send to one of Kafka's consumers."""
    return b"".join(
        file._file.pread(length, position) if isinstance(file, ProvenFile) else file.pread(length, position)
        for file, position, length in log.locate(offset, size)
    )


def test_any_damage_to_the_head_of_any_batch_is_refused(tmp_path: Path) -> None:
    table = cleaned(tmp_path, keys=100)
    true = {row.offset: row for row in table.rows}
    intact = opened(tmp_path, CONFIG)
    before = {header.base_offset: header for header in read_on(intact)[1]}
    whole = sent(intact, 0, 1 << 20)
    file = log_files(tmp_path)[0]
    content, chance = file.read_bytes(), random.Random(1)
    places = [at for at, _ in heads(content)]
    assert len(places) > 3
    for at in places:
        for byte in UNPROTECTED:
            changed = bytearray(content)
            changed[at + byte] ^= 1 << chance.randrange(8)
            file.write_bytes(changed)
            log = opened(tmp_path, CONFIG)
            found, headers, refused = read_on(log)
            assert refused
            assert all(true[row.offset] == row for row in found)
            assert all(before[each.base_offset] == each for each in headers)
            assert any(str(file) in text for text in problems(log))
            with pytest.raises(CorruptBatch):
                sent(log, 0, 1 << 20)
            with pytest.raises(CorruptBatch):
                log.clean(table.survives(), log.segments[-1].base_offset, 0)
            with pytest.raises(CorruptBatch):
                log.rebuild_indexes()
            later = sent(log, log.segments[1].base_offset, 1 << 20)
            assert whole.endswith(later)
            for each in list(log._segments):
                each.release()
    file.write_bytes(content)
    log = opened(tmp_path, CONFIG)
    assert problems(log) == []
    assert rows(log) == table.rows


def test_what_is_whole_around_the_damage_is_served(tmp_path: Path) -> None:
    table = Table(tmp_path, config=CONFIG.__class__(segment_bytes=1 << 20, compact=True, delete=False))
    for number in range(600):
        table.put((b"k%d" % (number % 500), b"x" * 100))
    table.log.roll()
    table.clean()
    table.log.close()
    (file, _) = log_files(tmp_path)
    content = bytearray(file.read_bytes())
    assert len(content) > 15 * SUMS_BLOCK
    at = 10 * SUMS_BLOCK + 5
    content[at] ^= 1
    file.write_bytes(content)
    log = opened(tmp_path, table.log.config)
    found, _, refused = read_on(log)
    lost = [row for row in table.rows if row not in found]
    assert [row for row in table.rows if row not in lost] == found
    assert 0 < sum(len(row.value or b"") for row in lost) < 3 * SUMS_BLOCK
    assert refused == len(lost)
    given = sent(log, 0, 1 << 20)
    assert given == content[: 10 * SUMS_BLOCK]
    last = max(row.offset for row in unpacked(given[: list(whole_batches(given))[-1]]))
    with pytest.raises(CorruptBatch):
        log.locate(last + 1, 1 << 20)
    (_, position, size), *_ = log.locate(lost[-1].offset + 1, 1 << 20)
    assert position > 11 * SUMS_BLOCK
    assert position + size == len(content)


def whole_batches(content: bytes) -> Iterator[int]:
    """Where each batch ends."""
    at = 0
    while at + batch.HEADER_SIZE <= len(content) and (end := at + batch.read_header(content, at).size) <= len(content):
        yield end
        at = end


def test_a_bit_in_a_value_is_refused_too(tmp_path: Path) -> None:
    cleaned(tmp_path)
    file = log_files(tmp_path)[0]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert read_on(opened(tmp_path, CONFIG))[2]


@pytest.mark.parametrize("how", ["missing", "empty", "flipped", "longer", "of another segment"])
def test_damaged_sums_are_named_and_made_anew(tmp_path: Path, how: str) -> None:
    table = cleaned(tmp_path, 200)
    first, second = log_files(tmp_path, ".sums")[:2]
    content = first.read_bytes()
    if how == "missing":
        first.unlink()
    else:
        flipped = bytes([content[0] ^ 1]) + content[1:]
        damaged = {"empty": b"", "flipped": flipped, "longer": content + b"\0" * 4}
        first.write_bytes(damaged.get(how, second.read_bytes()))
    log = opened(tmp_path, CONFIG)
    assert [text.split(":")[0] for text in problems(log)] == [str(first)]
    assert rows(log) == table.rows
    assert first.read_bytes() == content
    assert problems(log) == []


def test_without_its_sums_a_damaged_segment_is_refused(tmp_path: Path) -> None:
    cleaned(tmp_path)
    log_files(tmp_path, ".sums")[0].unlink()
    file = log_files(tmp_path)[0]
    content = bytearray(file.read_bytes())
    content[12] ^= 1
    file.write_bytes(content)
    log = opened(tmp_path, CONFIG)
    for _ in range(2):
        with pytest.raises(CorruptBatch):
            log.read(0, 100)
        with pytest.raises(CorruptBatch):
            log.locate(0, 100)
    assert len(problems(log)) == 2  # it differs from what was written, and a leader epoch is wrong
    assert not log_files(tmp_path, ".sums")[0].name.startswith("0" * 20)


def of_an_older_version(folder: Path) -> None:
    saved = checkpoints.load(OS_DISK, folder).checkpoint
    assert saved.proofs
    checkpoints.save(OS_DISK, folder, saved._replace(proofs=()))


@pytest.mark.parametrize("stale", [False, True], ids=["without", "with sums of other segments"])
def test_a_log_that_an_older_version_cleaned_gets_its_sums_at_its_next_cleaning(tmp_path: Path, stale: bool) -> None:
    """An older version does not know these files: those that are there may be of segments that it has replaced."""
    table = cleaned(tmp_path, 200)
    of_an_older_version(tmp_path)
    for path in log_files(tmp_path, ".sums"):
        if stale:
            path.write_bytes(bytes(len(path.read_bytes())))
        else:
            path.unlink()
    table.log = opened(tmp_path, CONFIG)
    table.check()
    assert problems(table.log) == []
    assert all(segment.proof is None for segment in table.log._segments)
    assert table.clean() == 0
    assert all(segment.proof is not None for segment in table.log._segments.closed)
    assert problems(table.log) == []
    table.reopen()
    assert all(segment.proof is not None for segment in table.log._segments.closed)
    file = log_files(tmp_path)[0]
    file.write_bytes(b"\0" * 7 + b"\1" + file.read_bytes()[8:])
    table.log.close()
    with pytest.raises(CorruptBatch):
        opened(tmp_path, CONFIG).read(0, 100)


def test_a_reader_that_is_late_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens a file of the name that it knows, but a cleaning has put another file in its place meanwhile."""
    table = cleaned(tmp_path)
    segment = next(each for each in table.log._segments if each.proof is not None)
    POOL.discard(segment)
    open_file = segment.disk.open

    def late(path: Path, **how: bool) -> File:
        monkeypatch.undo()
        segment.pin()
        segment.path(SUMS).unlink()
        new = path.with_suffix(".new")
        new.write_bytes(b"another one")
        new.rename(path)
        return open_file(path, **how)

    monkeypatch.setattr(type(segment.disk), "open", staticmethod(late))
    assert segment.handle().file is segment.file
    segment.release()


def test_a_segment_that_goes_takes_its_sums_along(tmp_path: Path) -> None:
    table = cleaned(tmp_path, 200)
    log = opened(tmp_path, CONFIG)
    log.delete_before(log.segments[2].base_offset)
    assert log_files(tmp_path, ".sums")[0].stem == log_files(tmp_path)[0].stem
    log.close()
    stray = tmp_path / f"{0:020d}.sums"
    stray.write_bytes(b"1234")
    log = opened(tmp_path, CONFIG)
    assert not stray.exists()
    assert rows(log) == [row for row in table.rows if row.offset >= log.start_offset]


@pytest.mark.parametrize("keep", some([Everything(), Keep(), *map(Chance, range(6))], 3))
def test_an_honest_log_is_never_accused_after_a_stop_between_any_two_steps(keep: Keep) -> None:
    disk, step, died = FaultyDisk(), 0, True
    table = Table(FOLDER, disk)
    table.fill(40, 8)
    table.clean()
    table.fill(40, 8, seed=2)
    table.log.close()
    while died:
        dying = disk.copy()
        log = Log.open(FOLDER, CONFIG, disk=dying)
        dying.dies_at = dying.operations + step
        try:
            log.clean(table.survives(), log.segments[-1].base_offset, 0)
            log.close()
            dying.dies_at, died = None, False
        except PowerLoss:
            dying.crash(keep)
        for again in range(2):  # the second time, a recovery is cut short as well
            dies_at = dying.operations + step % 7
            dying.dies_at = dies_at if again else None
            try:
                log = Log.open(FOLDER, CONFIG, disk=dying)
            except PowerLoss:
                dying.crash(keep)
                log = Log.open(FOLDER, CONFIG, disk=dying)
            dying.dies_at = None
            assert not log.recovery.damage
            assert [text for text in problems(log) if ".log at" in text or "not what" in text] == []
            assert {row.key: row.offset for row in rows(log)} == table.latest
            assert all(segment.proof is not None for segment in log._segments.closed if not segment.dense)
        step += 1
    assert step > 20


def test_what_was_looked_at_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOW", 2)
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 16 * 10)
    file = OS_DISK.open(path)
    proven = ProvenFile(file, Sums.of(file, 10 * SUMS_BLOCK))
    assert proven.proven(0, SUMS_BLOCK, nowait=True) == SUMS_BLOCK
    with pytest.raises(BlockingIOError):
        proven.proven(0, 10 * SUMS_BLOCK, nowait=True)
    assert proven.proven(100, 9 * SUMS_BLOCK) == 9 * SUMS_BLOCK
    path.write_bytes(bytes(10 * SUMS_BLOCK))
    assert proven.proven(0, 10 * SUMS_BLOCK, nowait=True) == 10 * SUMS_BLOCK
    with pytest.raises(CorruptBatch):
        proven.pread(1, 0)


BLOCK = 16


@given(
    st.binary(min_size=1, max_size=200),
    st.lists(st.integers(0, 10**6), max_size=3),
    st.lists(st.tuples(st.integers(0, 250), st.integers(0, 250)), min_size=1, max_size=20),
    st.integers(0, 200),
)
def test_reads_end_before_damage(content: bytes, flips: list[int], reads: list[tuple[int, int]], cached: int) -> None:
    disk, path = FaultyDisk(), FOLDER / "blocks"
    damaged = bytearray(content)
    for at in flips:
        damaged[at % len(content)] ^= 1
    bad = {at // BLOCK * BLOCK for at in range(len(content)) if damaged[at] != content[at]}
    disk.put(path, content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SUMS_BLOCK", BLOCK)
        patch.setattr(module, "PORTION", 3)
        sums, summing = Sums.of(disk.open(path), len(content)), Summing()
        for at in range(0, len(content), 7):
            summing.add(content[at : at + 7])
        assert summing.sums().pack() == sums.pack()
        disk.put(path, damaged)
        disk.cached = lambda size: min(size, cached)
        file = ProvenFile(disk.open(path), sums)
        assert file.proven(0, len(content)) == min(bad, default=len(content))
        for position, size in reads:
            expected = content[position : min([start for start in bad if start >= position], default=position + size)]
            expected = expected[:size]
            if size and position < len(content) and position // BLOCK * BLOCK in bad:
                with pytest.raises(CorruptBatch):
                    file.pread(size, position)
            else:
                assert file.pread(size, position) == expected
                with suppress(BlockingIOError):
                    some = bytes(file.pread_nowait(size, position))
                    assert expected.startswith(some)
                    assert bool(some) == bool(expected)


def test_a_full_disk_leaves_a_segment_without_sums() -> None:
    disk = FaultyDisk()
    table = Table(FOLDER, disk)
    table.fill(60, 10)
    disk.refuses = lambda name: name.endswith(".sums")
    table.clean()
    assert all(segment.proof is None for segment in table.log._segments)
    disk.refuses = lambda name: False
    table.reopen()
    assert problems(table.log) == []
    table.clean()
    assert all(segment.proof is not None for segment in table.log._segments.closed)


def test_the_scrub_of_a_log_that_lost_both_says_so(tmp_path: Path) -> None:
    cleaned(tmp_path)
    log_files(tmp_path, ".sums")[0].write_bytes(b"")
    file = log_files(tmp_path)[0]
    content = bytearray(file.read_bytes())
    content[15] ^= 1
    file.write_bytes(content)
    found, misfit = problems(opened(tmp_path, CONFIG))
    assert "not what it was made of" in found
    assert "leader epoch" in misfit
    with pytest.raises((CorruptBatch, StorageError)):
        opened(tmp_path, CONFIG).rebuild_indexes()
