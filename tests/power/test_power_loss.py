"""After a loss of power a broker still has all that it promised to keep (promises 1, 2 and 4), and so have backups.

A broker under load is recorded: every change of its files, and of the backups that are made meanwhile. For some moments
of the record, the test makes the files as a loss of power at that moment may have left them (tests/power/disk.py has
the rules) and starts a broker on them. It must have all that its clients had been told by then.

The record differs from run to run; a seed decides which moments are tried, and what is lost. The files of a failure are
kept, and its message says how to make them again (tests/power/replay.py). KRAPPY_LONG=1 tries more moments.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random

import pytest

from krappy.errors import KrappyError
from tests.long import LONG
from tests.power.disk import MOODS, Disk
from tests.power.promises import Window, check_backups, check_broker
from tests.power.record import Entry, Kind, Record
from tests.power.replay import PLACE, how_to, keep, replay
from tests.power.workload import BACKUPS, NEVER, Workload
from tests.process import PATIENCE, BrokerProcess, Launcher

MEMORY = Path("/dev/shm")  # for the files that a loss leaves: a disk needs long for thousands of small files


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 1 << 30  # containers may have little of it
    with tempfile.TemporaryDirectory(prefix="krappy-power-", dir=MEMORY if roomy else None) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workload]:
    with recorded(tmp_path_factory.mktemp("power"), "fsync") as made:
        yield made


@contextmanager
def recorded(folder: Path, durability: str, backups: Sequence[str] = BACKUPS) -> Iterator[Workload]:
    """Runs a workload, and gives it. Its files are deleted at the end."""
    (folder / "disk").mkdir()
    with Record(folder / "disk") as record:
        workload = Workload(record, seeded(), durability, backups)
        workload.run()
        yield workload
    shutil.rmtree(folder)


def seeded() -> Random:
    seed = int(os.environ.get("SEED") or (Random().getrandbits(32) if LONG else 1))
    print(f"seed {seed}")  # noqa: T201
    return Random(seed)


class Losses:
    """Losses of power in a workload, each checked by a broker of its own."""

    def __init__(self, workload: Workload, launch: Launcher, scratch: Path, random: Random) -> None:
        self.workload = workload
        self.launch = launch
        self.random = random
        self._roots = (scratch / f"{number}" for number in count())

    def look(self, disk: Disk, moment: int, mood: float | None = None) -> None:
        """Raises AssertionError if something is lost that was promised at that moment of the workload's record."""
        random = self.random
        seed, mood = random.getrandbits(32), random.choice(MOODS) if mood is None else mood
        root = next(self._roots)
        disk.write(root, mood, Random(seed))
        try:
            there = check_backups(self.workload, moment, root)
            self._check(root / "data", Window(moment, moment))
            if there and random.random() < 0.3:
                backup = random.choice(there)
                self._restore(root / backup.path, root / "restored")
                self._check(root / "restored", Window(backup.asked, backup.done))
        except BaseException as error:
            error.add_note(f"power was lost at byte {moment} of the record, with mood {mood} and seed {seed}")
            error.add_note(how_to(keep(disk, mood, seed)))
            raise
        finally:
            shutil.rmtree(root)

    def _check(self, data: Path, window: Window) -> None:
        settings = self.workload.settings
        with BrokerProcess(data, launch=self.launch, **settings) as broker:  # type: ignore[arg-type]
            check_broker(self.workload, window, broker, self.random)

    def _restore(self, source: Path, data: Path) -> None:
        with open(os.devnull, "r+") as nothing:
            fd = nothing.fileno()
            assert self.launch(["restore", str(source), "--data", str(data)], fd, fd, fd).wait(PATIENCE) == 0


@pytest.fixture
def losses(workload: Workload, launch: Launcher, scratch: Path) -> Losses:
    return Losses(workload, launch, scratch, seeded())


def some(entries: list[Entry], number: int, random: Random) -> set[int]:
    """Random moments right after entries. All kinds are equally likely, though most entries are of a few kinds."""
    kinds: dict[Kind, list[int]] = {}
    for entry in entries:
        kinds.setdefault(entry.kind, []).append(entry.end)
    return {random.choice(random.choice(list(kinds.values()))) for _ in range(number)}


def test_the_record_tells_all(workload: Workload, scratch: Path) -> None:
    disk = Disk.of(workload.record.root)
    for entry in workload.record.entries():
        disk.play(entry)
    disk.write(scratch / "again", 1, Random(0))
    assert contents(scratch / "again") == contents(workload.record.root)
    shutil.rmtree(scratch / "again")


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}


def try_some(losses: Losses, number: int) -> None:
    workload = losses.workload
    entries = list(workload.record.entries())
    moments = some([entry for entry in entries if entry.end > workload.began], number, losses.random)
    disk = Disk.of(workload.record.root)
    for entry in entries:
        disk.play(entry)
        if entry.end in moments:
            losses.look(disk, entry.end)


def test_what_was_promised_is_there(losses: Losses) -> None:
    try_some(losses, 300 if LONG else 8)


def test_power_is_lost_again_while_the_broker_recovers(workload: Workload, losses: Losses, tmp_path: Path) -> None:
    """The files that the first loss left are on disk for good; changes that recovery makes to them may be lost."""
    entries = list(workload.record.entries())
    for _ in range(10 if LONG else 1):
        first = losses.random.choice([entry.end for entry in entries if entry.end > workload.began])
        disk = Disk.of(workload.record.root)
        for entry in entries:
            if entry.end <= first:
                disk.play(entry)
        (root := tmp_path / f"{first}").mkdir()
        disk.write(root / "disk", losses.random.choice(MOODS), losses.random)
        with Record(root / "disk") as record, Launcher(record.environ()) as launch:
            again = Disk.of(record.root)
            again.load(record.root)
            settings = losses.workload.settings
            with BrokerProcess(record.root / "data", launch=launch, log=root / "log", **settings) as broker:
                assert broker.stop() == 0
            moments = some(list(record.entries()), 3, losses.random)
            for entry in record.entries():
                again.play(entry)
                if entry.end in moments:
                    losses.look(again, first)
        shutil.rmtree(root)


def test_what_is_left_is_right_where_nothing_was_promised(launch: Launcher, scratch: Path, tmp_path: Path) -> None:
    """With durability "os" a loss of power may take acknowledged events. But the log that is left must be right, and
    the table must be its fold."""
    (tmp_path / "os").mkdir()
    with recorded(tmp_path / "os", "os", ["tar"]) as workload:
        try_some(Losses(workload, launch, scratch, seeded()), 150 if LONG else 3)


class Lying(Disk):
    """A disk that ignores syncs of certain files, or of folders."""

    def __init__(self, root: int, lies: str) -> None:
        super().__init__(root)
        self._lies = re.compile(lies)
        self._names: dict[int, str] = {}

    def play(self, entry: Entry) -> None:
        if entry.kind is Kind.MADE_FILE:
            self._names[entry.other] = entry.data.decode()
        if entry.kind is not Kind.SYNCED or not self._lies.fullmatch(self._names.get(entry.inode, "folder")):
            super().play(entry)


@pytest.mark.parametrize("lies", [r"\d{20}\.log", r"\d{6}\.log", r"\d{6}\.sst", r"MANIFEST-\d+", r".*\.tar", "folder"])
def test_a_sync_that_is_missing_is_noticed(
    lies: str, workload: Workload, losses: Losses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that these tests can fail, and that the files of a failure can be made again. Right after a transaction,
    each sync is needed for something, except a backup's; that one is missed at the end of the record."""
    monkeypatch.setenv(PLACE, str(tmp_path))
    entries = list(workload.record.entries())
    moments = [each.answered for each in workload.transactions.made if each.answered != NEVER][-5:]
    moments.append(entries[-1].end)
    disk = Lying(workload.record.root.stat().st_ino, lies)
    noticed: Exception | None = None
    for entry in entries:
        disk.play(entry)
        if entry.end >= moments[0]:
            del moments[0]
            try:
                losses.look(disk, entry.end, 0)
            except (AssertionError, KrappyError) as error:
                noticed = error
                break
    assert noticed, "nobody noticed"
    [kept] = tmp_path.iterdir()
    assert how_to(kept) in noticed.__notes__
    replay(kept, tmp_path / "again")
    assert (tmp_path / "again").is_dir()
