"""Leader epochs of a log, compared with a list of all its batches, over closes, kills, lost checkpoints and
retention."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from krappy.core.epochs import FAR, LAST, Epochs, is_far
from krappy.errors import CorruptBatch
from krappy.records import batch
from krappy.store import checkpoint as checkpoints
from krappy.store.disk import OS_DISK
from krappy.store.format import CHECKPOINT, CHECKPOINT_COPY
from krappy.store.log import Log
from tests.store.logs import log_files, made, opened, rows


def test_what_kafka_answers() -> None:
    """As KIP-320 and Kafka's LeaderEpochFileCache say."""
    epochs = Epochs([(2, 5), (4, 9)])
    assert epochs.end_of(1, 20) == (1, 5)
    assert epochs.end_of(2, 20) == epochs.end_of(3, 20) == (2, 9)
    assert epochs.end_of(4, 20) == (4, 20)
    assert epochs.end_of(5, 20) is None
    assert epochs.end_of(3, 7) == (2, 7)  # no more than has been decided
    assert [epochs.at(offset) for offset in (4, 5, 8, 9, 99)] == [-1, 2, 2, 4, 4]
    assert Epochs().end_of(0, 3) is None
    assert Epochs().at(3) == -1


def test_where_a_follower_parts() -> None:
    epochs = Epochs([(2, 5), (4, 9), (6, 15)])
    for epoch, offset in ((2, 6), (2, 9), (4, 10), (6, 16), (6, 20)):
        assert epochs.diverging(epoch, offset, 20) is None, (epoch, offset)
    assert epochs.diverging(6, 5, 20) is None  # it has no events of an epoch that is known here
    assert epochs.diverging(3, 8, 20) == epochs.diverging(5, 8, 20) == (2, 9)
    assert epochs.diverging(2, 10, 20) == (2, 9)
    assert epochs.diverging(6, 21, 20) == epochs.diverging(7, 16, 20) == (6, 20)
    # One of the two logs has damage, so this one begins those epochs later.
    assert epochs.diverging(6, 12, 20) == epochs.diverging(6, 15, 20) == (4, 15)
    assert epochs.diverging(4, 8, 20) == epochs.diverging(6, 8, 20) == (2, 9)


def test_an_epoch_without_events_is_followed_by_the_next() -> None:
    epochs = Epochs([(0, 0)])
    for epoch in range(1, 100):
        epochs.lead(epoch, 7)
    assert epochs.kept(0, 100) == ((0, 0), (99, 7))
    assert epochs.kept(0, 7) == ((0, 0),)  # epochs without events are not kept
    epochs.note(3, 8)
    assert epochs.at(8) == 99


class Cut(Epochs):
    """Epochs of a log that another thread cuts after each look at the pairs."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == "_known":
            self._known = found[:-1]
        return found


def test_they_are_read_while_the_log_is_cut() -> None:
    pairs = [(0, 0), (2, 5)]
    assert Cut(pairs).at(7) == 2
    assert Cut(pairs).misfit(3) == Cut(pairs).mismatch(2, 7) == ""
    assert Cut(pairs).start_of(2) == 5
    assert Cut(pairs).end_of(2, 9) == (2, 9)
    assert Cut(pairs).end_of(1, 9) == (0, 5)
    assert Cut(pairs).diverging(2, 9, 9) is None
    assert Cut(pairs).common((1, 7), 9) == 5


def test_a_cut_forgets_the_epochs_behind_it() -> None:
    epochs = Epochs([(0, 0), (1, 10), (3, 20)])
    epochs.note(-1, 25)  # -1 says nothing
    epochs.cut(20)
    assert epochs.kept(0, 99) == ((0, 0), (1, 10))
    epochs.note(2, 20)
    assert [epochs.at(offset) for offset in (9, 19, 20)] == [0, 1, 2]
    epochs.cut(0)
    assert epochs.at(5) == -1
    epochs.note(-1, 0)
    assert epochs.kept(0, 99) == ()


def test_what_is_kept_begins_with_the_epoch_of_the_first_event() -> None:
    epochs = Epochs([(0, 0), (1, 10), (3, 20)])
    assert [epochs.kept(start, 30)[0] for start in (0, 9, 10, 19, 20, 29)] == [
        *((0, 0), (0, 0), (1, 10), (1, 10), (3, 20), (3, 20))
    ]


class Model:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = Random(seed)
        self.epoch = 0
        self.events: list[int] = []  # the epoch of each event, from offset 0 on
        self.log = opened(folder)
        self.log.epochs.lead(0, 0)

    def append(self) -> None:
        batches = [made(*[b"%050d" % self.random.getrandbits(90)] * self.random.randint(1, 3)) for _ in range(2)]
        self.log.append(batches, self.epoch, 1000)
        self.events += [self.epoch] * sum(header.last_offset_delta + 1 for header, _ in batches)

    def start(self, *, clean: bool, lost: bool) -> None:
        """The broker is closed or killed, and then leads in its next epoch."""
        if clean:
            self.log.close()
        if lost:
            for name in (CHECKPOINT, CHECKPOINT_COPY):
                (self.folder / name).unlink(missing_ok=True)
        self.log = opened(self.folder)
        self.epoch += self.random.randint(1, 3)
        self.log.epochs.lead(self.epoch, self.log.end_offset)

    def shorten(self) -> None:
        if self.log.end_offset > self.log.start_offset:
            self.log.sync()
            self.log.delete_before(self.random.randint(self.log.start_offset, self.log.end_offset))

    def check(self) -> None:
        epochs, end, start = self.log.epochs, self.log.end_offset, self.log.start_offset
        for offset in range(start, end):
            assert epochs.at(offset) == self.events[offset]
        for epoch in range(self.epoch + 1):
            found = epochs.end_of(epoch, end)
            higher = next((at for at in range(end) if self.events[at] > epoch), end)
            assert found is not None
            assert (max(found[1], start), found[0] <= epoch) == (max(higher, start), True)
        assert epochs.end_of(self.epoch + 1, end) is None


@pytest.mark.parametrize("seed", range(30))
def test_over_starts(tmp_path: Path, seed: int) -> None:
    model = Model(tmp_path, seed)
    for _ in range(25):
        match model.random.choice(["append", "append", "close", "kill", "lose", "shorten", "checkpoint"]):
            case "append":
                model.append()
            case "shorten":
                model.shorten()
            case "checkpoint":
                model.log.checkpoint()
            case "close":
                model.start(clean=True, lost=False)
            case "kill":
                model.start(clean=False, lost=False)
            case "lose" if model.log.start_offset == 0:  # else it would start with its first file again
                model.start(clean=False, lost=True)
        model.check()
    model.log.close()


def test_a_folder_of_a_version_before_is_of_epoch_0(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([made(b"a", b"b")], 0, 1000)
    log.close()
    saved = checkpoints.load(OS_DISK, tmp_path).checkpoint
    checkpoints.save(OS_DISK, tmp_path, saved._replace(epochs=None))
    log = Log.open(tmp_path, log.config)
    log.epochs.lead(1, log.end_offset)
    assert log.epochs.end_of(0, log.end_offset) == (0, 2)
    log.close()


def test_a_start_without_new_events_writes_no_checkpoint(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([made(b"a")], 0, 1000)
    log.close()
    before = (tmp_path / CHECKPOINT).stat().st_ino
    log = opened(tmp_path)
    log.epochs.lead(1, log.end_offset)
    log.close()
    assert (tmp_path / CHECKPOINT).stat().st_ino == before


# --- damaged ones: no checksum covers them


def test_which_epochs_can_be() -> None:
    epochs = Epochs([(2, 5), (4, 9)])
    assert [epochs.misfit(epoch) == "" for epoch in (-1, 4, 5, 4 + FAR)] == [True] * 4
    assert [epochs.misfit(epoch) == "" for epoch in (-2, 0, 3, 5 + FAR, LAST)] == [False] * 5
    assert Epochs().misfit(LAST) == ""  # no epoch is known
    assert [epochs.mismatch(epoch, 8) == "" for epoch in (-1, 2, 0, 3, 4)] == [True, True, False, False, False]
    assert epochs.mismatch(7, 3) == ""
    assert is_far(LAST + 1, LAST)
    assert not is_far(LAST, LAST - 1)


def set_epoch(file: Path, number: int, epoch: int) -> None:
    """Writes a leader epoch into a batch of this file."""
    data, at = bytearray(file.read_bytes()), 0
    for _ in range(number):
        at += batch.read_header(data, at).size
    data[at + 12 : at + 16] = epoch.to_bytes(4, "big", signed=True)
    file.write_bytes(data)


@pytest.mark.parametrize("epoch", [LAST, FAR + 10, 0, -7])
def test_a_recovery_believes_no_epoch_that_cant_be(tmp_path: Path, epoch: int) -> None:
    log = opened(tmp_path)
    log.append([made(b"a")], 3, 1000)
    log.checkpoint()
    log.append([made(b"b")], 4, 1000)
    log.append([made(b"c")], 5, 1000)
    log.sync()
    set_epoch(log_files(tmp_path)[-1], 1, epoch)
    log = opened(tmp_path)  # as after a kill
    assert [log.epochs.at(offset) for offset in range(4)] == [3, 3, 5, 5]
    [damage] = log.recovery.damage
    assert f"leader epoch is {epoch}" in damage
    assert [row.value for row in rows(log)] == [b"a", b"b", b"c"]  # nothing is cut
    log.close()


def test_behind_an_epoch_that_is_too_high_all_are_too_low(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(5):
        log.append([made(b"%d" % number)], 1, 1000)
    log.sync()
    set_epoch(log_files(tmp_path)[-1], 1, 9)
    log = opened(tmp_path)
    assert len(log.recovery.damage) == 1
    assert [row.value for row in rows(log)] == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("epoch", [1 << 24, 0, 2])
def test_a_leader_finds_its_damaged_epoch(tmp_path: Path, epoch: int) -> None:
    log = opened(tmp_path)
    for number in range(3):
        log.append([made(b"%d" % number)], 1 + number, 1000)
    log.verify_epoch(log.read(1, 1), log.cuts)
    set_epoch(log_files(tmp_path)[0], 0, epoch)
    with pytest.raises(CorruptBatch, match=f"its leader epoch is {epoch}, and it was written in 1"):
        log.verify_epoch(log.read(0, 1), log.cuts)
    assert log.damage
    assert [text for _, found in log.scrub() for text in found] == [
        f"{log_files(tmp_path)[0]} at position 0: its leader epoch is {epoch}, and it was written in 1"
    ]
    log.damage = ""
    log.verify_epoch(log.read(0, 1), log.cuts - 1)  # the log was cut since, so the batch may be another one now
    assert not log.damage
