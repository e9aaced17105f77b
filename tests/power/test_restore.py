"""A loss of power during a restore: the folder is as it was before, or is refused as a half restore, or is whole. The
restore can be run again on the files that are left."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from random import Random

import pytest

from krappy.cli import checkup
from krappy.errors import StorageError
from krappy.store.hold import check_whole
from krappy.testing.running import run_broker
from tests.long import LONG
from tests.power.disk import MOODS, Disk
from tests.power.record import Kind, Record
from tests.power.replay import how_to, keep
from tests.process import PATIENCE, Launcher

BEFORE, HALF, WHOLE = "before", "half", "whole"
VALUES = [b"%d" % number for number in range(300)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a topic with two partitions and some segments, a table, a group and a sealed staged job."""
    folder = tmp_path_factory.mktemp("backed-up")
    with run_broker(folder / "data") as broker, broker.connect() as client, Launcher() as launch:
        client.create_topic("t", 2, {"segment.bytes": 2000})
        with client.producer("t") as producer:
            producer.send_columns([b"%d" % (number % 20) for number in range(len(VALUES))], VALUES)
        with client.consumer("t", group="g", max_records=10) as consumer:
            consumer.ack(next(iter(consumer)))
        with client.stage("t", job="j", task=0, attempt=0) as stage:
            stage.send("staged", key="s")
            stage.seal()
        assert run(launch, "backup", folder / "copy", "--address", broker.address) == 0
    return folder / "copy"


def run(launch: Launcher, *arguments: object) -> int | None:
    with open(os.devnull, "r+") as nothing:
        fd = nothing.fileno()
        return launch(list(map(str, arguments)), fd, fd, fd).wait(PATIENCE)


@pytest.fixture
def random() -> Random:
    seed = int(os.environ.get("SEED") or Random().getrandbits(32))
    print(f"seed {seed}")  # noqa: T201
    return Random(seed)


def check_started(data: Path) -> None:
    """Starts a broker on this folder, and checks that it has all that was backed up."""
    with run_broker(data) as broker, broker.connect() as client:
        with client.consumer("t", start="earliest", end="now") as consumer:
            assert sorted(event.value or b"" for event in consumer) == sorted(VALUES)
        assert len(list(client.table("t").scan())) == 20
        assert [each.group for each in client.groups()] == ["g"]
        assert [each.job for each in client.staged_jobs()] == ["j"]
    found = checkup.check(data, repair=False, tell=lambda *_: None)
    assert found.sound, found


def state(data: Path) -> str:
    """What a broker takes the folder for: BEFORE, HALF or WHOLE."""
    names = {path.name for path in data.iterdir()} - {"lock"} if data.is_dir() else set()
    if not names:
        return BEFORE
    try:
        check_whole(data)
    except StorageError:
        return HALF
    return WHOLE


class Restores:
    """Records restores, and checks what losses of power leave of them."""

    def __init__(self, source: Path, launch: Launcher, place: Path, random: Random) -> None:
        self.source = source
        self.launch = launch
        self.random = random
        self.seen: dict[str, int] = {}
        self._places = (place / f"{number}" for number in count())

    def record(self, before: Path | None = None) -> tuple[Disk, Record]:
        """Records a restore without a loss of power, to a new folder or to one that a loss has left. Returns (the disk
        before the restore, the record)."""
        (root := next(self._places)).mkdir()
        top = root / "disk"
        if before is None:
            top.mkdir()
        else:
            before.rename(top)
        with Record(top) as record, Launcher(record.environ()) as recorded:
            disk = Disk.of(top)
            disk.load(top)
            assert run(recorded, "restore", self.source, "--data", top / "data") == 0
        return disk, record

    def look(self, disk: Disk, mood: float, *, thoroughly: bool) -> str:
        """Makes a loss of power now; returns the state of the folder. Raises AssertionError if it is taken for whole
        but is not."""
        seed = self.random.getrandbits(32)
        left = next(self._places)
        disk.write(left, mood, Random(seed))
        try:
            found = state(left / "data")
            if found == WHOLE:
                check_started(left / "data")
            elif thoroughly:
                if found == HALF:
                    with pytest.raises(StorageError, match="run `krappy restore` again"), run_broker(left / "data"):
                        pass
                    with pytest.raises(StorageError, match="run `krappy restore` again"):
                        checkup.check(left / "data", repair=False, tell=lambda *_: None)
                assert run(self.launch, "restore", self.source, "--data", left / "data") == 0
                check_started(left / "data")
        except BaseException as error:
            error.add_note(how_to(keep(disk, mood, seed)))
            raise
        self.seen[found] = self.seen.get(found, 0) + 1
        return found

    def look_at_all(self, disk: Disk, record: Record, *, begun: bool) -> None:
        """Makes losses at each moment; checks a few of them thoroughly. `begun`: the folder is a half restore from the
        first moment on."""
        entries = list(record.entries())
        some = {entry.end for entry in self.random.sample(entries, 30 if LONG else 3)}
        for entry in entries:
            begun = begun or (entry.kind is Kind.MADE_FILE and entry.data != b"lock")
            disk.play(entry)
            for mood in MOODS if LONG else [0, self.random.choice(MOODS)]:
                found = self.look(disk, mood, thoroughly=entry.end in some)
                assert found != BEFORE or not begun, "nothing tells that a restore was under way"
        assert self.look(disk, 0, thoroughly=True) == WHOLE, "it was said to be done"


@pytest.fixture
def restores(source: Path, launch: Launcher, tmp_path: Path, random: Random) -> Restores:
    return Restores(source, launch, tmp_path, random)


def test_no_half_of_a_backup_is_taken_for_a_whole(restores: Restores) -> None:
    disk, record = restores.record()
    restores.look_at_all(disk, record, begun=False)
    assert restores.seen.keys() == {BEFORE, HALF, WHOLE}


def test_no_half_is_taken_for_a_whole_where_a_restore_is_begun_again(restores: Restores, tmp_path: Path) -> None:
    """The second restore goes to a folder that a loss of power has left of the first. Some parts are in place
    already."""
    disk, record = restores.record()
    entries = list(record.entries())
    moved = [number for number, entry in enumerate(entries) if entry.kind is Kind.RENAMED and b"topics" in entry.data]
    for entry in entries[: moved[-1] + 1]:
        disk.play(entry)
    disk.write(left := tmp_path / "left", 1, Random(0))
    assert (left / "data" / "topics").is_dir()
    assert state(left / "data") == HALF
    again, second = restores.record(left)
    restores.look_at_all(again, second, begun=True)
    assert BEFORE not in restores.seen


def test_a_marker_that_is_not_on_disk_is_noticed(restores: Restores) -> None:
    """Shows that these tests can fail: without syncs of folders, a half restore is taken for a whole one."""
    disk, record = restores.record()
    for entry in record.entries():
        if entry.kind is not Kind.SYNCED:
            disk.play(entry)
    found = {state_of(restores, disk, mood, seed) for mood in (0.1, 0.5, 0.9) for seed in range(30)}
    assert found == {BEFORE, HALF, WHOLE}


def state_of(restores: Restores, disk: Disk, mood: float, seed: int) -> str:
    left = next(restores._places)
    disk.write(left, mood, Random(seed))
    return state(left / "data")
