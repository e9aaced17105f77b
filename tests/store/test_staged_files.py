"""Staged files on a disk that loses power at every step, fills up, and lies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from krappy.errors import CorruptBatch, StorageError
from krappy.records import batch
from krappy.store.staging import StagedFiles, framed
from tests.store.faulty_disk import Chance, Everything, FaultyDisk, Keep, PowerLoss

FOLDER = Path("/data/staging")
Frame = tuple[int, bytes]  # partition, batch


class Attempts:
    """Attempts that stage at the same time, and which of them are sealed."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.files = StagedFiles(FOLDER, disk)
        self.files.open(set())
        self.frames: dict[str, list[Frame]] = {}
        self.sizes: dict[str, int] = {}
        self.sealed: set[str] = set()

    def stage(self, id: str, partition: int, data: bytes) -> None:
        parts = framed(partition, data)
        size = self.sizes.get(id, 0)
        self.files.append(id, size, parts)
        self.sizes[id] = size + sum(map(len, parts))
        self.frames.setdefault(id, []).append((partition, data))

    def run(self, seed: int = 1) -> None:
        """Runs some attempts; most of them are sealed, and one of those is removed again."""
        chance = Random(seed)
        for step in range(12):
            id = f"a{chance.randrange(4)}"
            if id not in self.sealed:
                values = [b"%d" % step * chance.randrange(1, 200)] * chance.randrange(1, 5)
                self.stage(id, chance.randrange(3), batch.encode(None, values, timestamps=1))
        for id in ("a0", "a1", "a2"):
            if id in self.frames:
                self.files.sync(id, self.sizes[id])
                self.sealed.add(id)
        if "a1" in self.sealed:
            self.sealed.discard("a1")  # its record is removed first
            self.files.remove("a1")
        self.stage("last", 0, batch.encode(None, [b"x"], timestamps=1))

    def read(self, id: str) -> list[Frame]:
        found: Iterator[Frame] = (
            (partition, bytes(view)) for some in self.files.read(id, self.sizes[id]) for partition, _, view in some
        )
        return list(found)

    def check(self, disk: FaultyDisk) -> None:
        """After a start: what was sealed is there to the last byte, and nothing else is there."""
        self.files = StagedFiles(FOLDER, disk)
        self.files.open(self.sealed)
        assert {name.removesuffix(".staged") for name in disk.names(FOLDER)} == self.sealed
        for id in self.sealed:
            assert self.read(id) == self.frames[id]


@pytest.mark.parametrize("keep", [Keep(), Everything(), Chance(1), Chance(2), Chance(3)])
def test_power_goes_at_every_step(keep: Keep) -> None:
    disk = FaultyDisk()
    Attempts(disk).run()
    steps = len(disk.log)
    assert steps > 15
    for step in range(steps):
        disk = FaultyDisk()
        attempts = Attempts(disk)
        disk.dies_at = disk.operations + step
        with pytest.raises(PowerLoss):
            attempts.run()
        disk.crash(keep)
        attempts.check(disk)


def test_a_disk_that_refuses_any_step_leaves_whole_frames() -> None:
    disk = FaultyDisk()
    Attempts(disk).run()
    for step in range(len(disk.log)):
        disk = FaultyDisk()
        attempts = Attempts(disk)
        count = iter(range(10**6))
        disk.refuses = lambda name, count=count, step=step: next(count) == step  # type: ignore[misc]
        with suppress(StorageError):
            attempts.run()
        disk.refuses = lambda name: False
        for id in attempts.frames:
            if id in attempts.sizes and f"{id}.staged" in disk.names(FOLDER):
                assert attempts.read(id) == attempts.frames[id]
        attempts.check(disk)


def test_a_full_disk_takes_the_half_frame_back() -> None:
    disk = FaultyDisk()
    attempts = Attempts(disk)
    data = batch.encode(None, [b"x" * 500], timestamps=1)
    attempts.stage("a", 0, data)
    disk.room = 300
    with pytest.raises(StorageError, match="No space left"):
        attempts.stage("a", 0, data)
    disk.room = None
    assert disk.names(FOLDER)["a.staged"][0] == attempts.sizes["a"]
    attempts.stage("a", 1, data)
    assert attempts.read("a") == [(0, data), (1, data)]


def test_what_the_disk_has_lost_is_told() -> None:
    disk = FaultyDisk()
    attempts = Attempts(disk)
    attempts.stage("a", 0, batch.encode(None, [b"x" * 500], timestamps=1))
    with pytest.raises(CorruptBatch, match="cut short"):
        list(attempts.files.read("a", attempts.sizes["a"] + 1))
    with pytest.raises(CorruptBatch, match="is lost"):
        list(attempts.files.read("b", 1))
