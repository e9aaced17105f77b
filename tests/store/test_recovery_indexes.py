"""Indexes are derived: one that is missing, damaged or too thin is rebuilt from its segment."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from krappy.records import batch
from krappy.settings.topic import TopicConfig
from krappy.store import index
from krappy.store.disk import Disk
from krappy.store.log import Log
from tests.long import some
from tests.store.faulty_disk import Everything, FaultyDisk, Keep
from tests.store.logs import FOLDER, filled, log_files, made, offsets, opened, rows

ONE = TopicConfig(index_interval_bytes=100)  # all in one segment

Spoil = Callable[[bytes], bytes | None]
SPOILT: dict[str, Spoil] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "random": lambda data: random.Random(3).randbytes(len(data)),
    "cut": lambda data: data[: len(data) // 2 + 1],
    "shifted": lambda data: data[1:] + b"\0",
    "backwards": lambda data: b"".join(data[at : at + 4] for at in range(len(data) - 4, -1, -4)),
    "longer": lambda data: data + b"\xff" * 24,
    "other positions": lambda data: b"".join(
        data[at : at + 4] + (int.from_bytes(data[at + 4 : at + 8], "big") + 1).to_bytes(4, "big")
        for at in range(0, len(data) - 7, 8)
    ),
    "other times": lambda data: b"".join(
        (int.from_bytes(data[at : at + 8], "big") - 5).to_bytes(8, "big") + data[at + 8 : at + 12]
        for at in range(0, len(data) - 11, 12)
    ),
    "other offsets": lambda data: b"".join(
        (int.from_bytes(data[at : at + 4], "big") + 1).to_bytes(4, "big") + data[at + 4 : at + 8]
        for at in range(0, len(data) - 7, 8)
    ),
}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("killed", [False, True])
def test_a_bad_index_is_rebuilt(tmp_path: Path, suffix: str, how: str, killed: bool) -> None:
    log = filled(tmp_path, 60)
    infos = log.segments
    if not killed:
        log.close()
    for path in log_files(tmp_path, suffix):
        spoilt = SPOILT[how](path.read_bytes())
        if spoilt is None:
            path.unlink()
        else:
            path.write_bytes(spoilt)
    log = opened(tmp_path)
    assert not log.recovery.damage
    assert not log.recovery.cut_bytes
    for offset in (0, 1, 2, 3, 50, 100, 178, 179):
        assert batch.read_header(log.read(offset, 1)).base_offset == offset // 3 * 3
    assert offsets(rows(log)) == list(range(180))
    for offset in range(180):
        assert log.find_timestamp(1000 + offset) == (offset, 1000 + offset)
    assert [info[:4] for info in log.segments] == [info[:4] for info in infos]
    if not killed:
        rebuilt = f"the indexes of {log_files(tmp_path)[-1].name} were rebuilt"
        assert log.recovery.notes == ([] if how == "longer" else [rebuilt])


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("killed", [False, True])
def test_an_index_whose_bytes_the_disk_has_lost_is_rebuilt(tmp_path: Path, suffix: str, killed: bool) -> None:
    """As if each were on a bad sector, until a new file takes its place."""
    log = filled(tmp_path, 60)
    if not killed:
        log.close()
    bad = {path.stat().st_ino for path in log_files(tmp_path, suffix)}

    class BadSectors(Disk):
        def read_file(self, path: Path) -> bytes:
            if path.exists() and path.stat().st_ino in bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return super().read_file(path)

    log = opened(tmp_path, disk=BadSectors())
    assert not log.recovery.damage
    assert offsets(rows(log)) == list(range(180))
    for offset in range(180):
        assert log.find_timestamp(1000 + offset) == (offset, 1000 + offset)
    assert not log.damage
    closed = log_files(tmp_path, suffix)[:-1]
    assert closed
    assert not bad & {path.stat().st_ino for path in closed}


def thinned(folder: Path, records: int, suffix: str, *cuts: slice) -> Iterator[Log]:
    """For each cut, a log whose closed segment has only this part of its index; afterwards the index must be whole
    again."""
    config = TopicConfig(index_interval_bytes=100)
    log = filled(folder, records, config=config)
    log.roll()
    log.close()
    path = log_files(folder, suffix)[0]
    whole = path.read_bytes()
    for cut in cuts:
        path.write_bytes(whole[cut])
        log = opened(folder, config)
        yield log
        assert path.read_bytes() == whole
        log.close()


def test_an_index_that_is_too_thin_is_rebuilt(tmp_path: Path) -> None:
    """Such an index is not wrong, but every read would walk through the whole segment."""
    for log in thinned(tmp_path, 3000, ".index", slice(0), slice(80)):
        assert batch.read_header(log.read(8000, 1)).base_offset == 7998


def test_a_time_index_that_is_too_thin_is_rebuilt(tmp_path: Path) -> None:
    for log in thinned(tmp_path, 1000, ".timeindex", slice(0), slice(12), slice(-12)):
        assert log.find_timestamp(3500) == (2500, 3500)


SECTOR = 512  # bytes that a disk writes together, or not at all
COARSE = 200  # bytes between index entries, before the topic's setting was changed


@pytest.mark.parametrize("seed", some(range(10), 3))
@pytest.mark.parametrize("disorder", [False, True])
def test_no_index_of_which_a_rebuild_left_parts_is_believed(
    tmp_path: Path, seed: int, disorder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older version left them so, as it wrote over the files in place: any sectors of what was there before (here
    with another interval), of what was written, or of neither; and any length."""
    monkeypatch.setattr(index, "_LOOKS", 2)  # as few as there are for each sector in an index of a full segment
    random_ = random.Random(seed)
    times = list(range(1000, 2500))
    if disorder:
        random_.shuffle(times)

    def indexes(folder: Path, interval: int) -> list[tuple[Path, bytes]]:
        log = opened(folder, TopicConfig(index_interval_bytes=interval))
        for number, time in enumerate(times):
            log.append([made(b"%04d" % number, at=time)], 0, 10_000)
        log.roll()
        log.close()
        return [
            (path, path.read_bytes()) for suffix in (".index", ".timeindex") for path in log_files(folder, suffix)[:1]
        ]

    folder = tmp_path / "after"
    torn = []
    for (_, old), (path, new) in zip(indexes(tmp_path / "before", COARSE), indexes(folder, 100), strict=True):
        sectors = [random_.choice([old, new, new, b""])[at : at + SECTOR] for at in range(0, len(new), SECTOR)]
        data = b"".join(each.ljust(SECTOR, b"\0") for each in sectors)[: len(new)]
        whole = random_.random() < 0.8  # else it is seen at once to be no index, and is made anew
        data = data[: -4 * SECTOR] + new[-4 * SECTOR :] if whole else data[: random_.randrange(len(new))]
        torn.append((path, data))

    def log_then() -> Log:
        for path, data in torn:
            path.write_bytes(data)
        return opened(folder, TopicConfig(index_interval_bytes=100))

    seams = [at // 12 * 12 for at in range(SECTOR, len(torn[1][1]), SECTOR)]  # entries that lie in two sectors
    asked = [int.from_bytes(torn[1][1][at : at + 8], "big") + 1 for at in seams]
    for time in [each for each in asked if each < 3000] + random_.sample(range(900, 2510), 20):
        first = next(((at, when) for at, when in enumerate(times) if when >= time), None)
        assert log_then().find_timestamp(time) == first, time
    for offset in random_.sample(range(len(times)), 20):
        assert rows(log_then(), offset, limit=offset + 1)[0].offset == offset
    assert offsets(rows(log_then())) == list(range(len(times)))


def test_an_index_that_goes_wrong_in_memory_is_rebuilt(tmp_path: Path) -> None:
    log = filled(tmp_path, 30, config=ONE)
    indexer = log._active.indexer
    assert indexer is not None
    before = indexer.offsets.positions.tolist()
    for number in range(len(before)):
        indexer.offsets.positions[number] += 1
    with pytest.raises(BlockingIOError):
        log.read(50, 100, nowait=True)
    assert rows(log, 50)[0].offset == 50
    assert log._active.indexer is not indexer
    assert offsets(rows(log)) == list(range(90))
    log.append([made(b"a")], 0, 1)
    log.close()
    log = opened(tmp_path, ONE)
    assert log.recovery.clean
    assert [text for _, found in log.scrub() for text in found] == []


@pytest.mark.parametrize("checkpoint", [False, True])
def test_indexes_made_by_a_recovery_are_on_disk_once_it_is_over(checkpoint: bool) -> None:
    """The indexes of closed segments and that of the active one: no reader has to make them anew."""
    disk = FaultyDisk()
    filled(FOLDER, 60, disk=disk)
    for name in disk.names(FOLDER):
        if name.endswith("index") or (name.startswith("checkpoint") and not checkpoint):
            disk.unlink(FOLDER / name)
    disk.crash(Everything())
    opened(FOLDER, disk=disk)
    disk.crash(Names())
    log = opened(FOLDER, disk=disk)
    assert len(log.segments) > 3
    assert [problem for _, problems in log.scrub() for problem in problems] == []


class Names(Keep):
    """Keeps nothing that was not synced, but the names of files."""

    def name(self) -> bool:
        return True


def test_a_rebuild_leaves_the_files_that_a_backup_holds(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", 60)
    held = {}
    for path in [*log_files(tmp_path / "log", ".index"), *log_files(tmp_path / "log", ".timeindex")]:
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
        held[path] = tmp_path / path.name
        held[path].hardlink_to(path)
    before = {path: link.read_bytes() for path, link in held.items()}
    log.rebuild_indexes()
    closed = [path for path in held if int(path.stem) < log.segments[-1].base_offset]
    assert len(closed) > 3
    assert all(path.read_bytes() != before[path] for path in closed)
    assert {path: link.read_bytes() for path, link in held.items()} == before
