"""`krappy doctor` finds each kind of damage, says where, and repairs what can be made anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from krappy.cli import checkup
from krappy.entries.entry import pack_entry
from krappy.errors import StorageError
from krappy.records import batch
from krappy.store.catalog import LocalCatalog
from krappy.store.format import IDENTITY, LOG, PULSE, REACHED, file_name
from krappy.store.log import Log
from krappy.store.meta import Meta
from krappy.store.synced import Synced
from krappy.store.views import Views
from krappy.testing.running import run_broker
from tests.broker.catalogs import CATALOGS_LOST, SyncCatalog, lose_catalog
from tests.broker.engine import as_killed, publish, running
from tests.cli.conftest import Krappy, Result

EVENTS = 3000


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a broker that had two topics with many small segments, tombstones and events without keys."""
    folder = tmp_path_factory.mktemp("doctor") / "data"
    config = {"segment.bytes": 20_000}
    with run_broker(folder, durability="os") as broker, broker.connect() as client:
        client.create_topic("kept", partitions=2, config={**config, "cleanup.policy": "compact"})
        client.create_topic("raw", config={**config, "view.enable": "false"})
        client.create_topic("mixed", config=config)
        for first in range(0, EVENTS, 100):
            rows = range(first, first + 100)
            with client.producer("kept") as producer:
                producer.send_columns([f"k{n % 200}" for n in rows], [None if n % 7 == 0 else f"v{n}" for n in rows])
            with client.producer("mixed") as producer:
                producer.send_columns([None if n % 3 else f"k{n}" for n in rows], [f"v{n}" for n in rows])
            with client.producer("raw", compression="zstd") as producer:
                producer.send_columns(None, [f"v{n}" for n in rows])
        with client.consumer("mixed", group="g") as consumer:
            consumer.ack(next(iter(consumer)))
    return folder


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


@pytest.fixture
def doctor(run: Krappy, data: Path) -> Callable[..., Result]:
    return lambda *options: run("doctor", "--data", str(data), *options)


def closed_segment(data: Path, partition: str) -> Path:
    """One of the log files in the middle."""
    segments = sorted((data / "topics" / partition).glob("*.log"))
    assert len(segments) > 2
    return segments[1]


def problems(found: Result) -> str:
    """All problems, as one text."""
    listed = found.json["problems"] + [text for each in found.json["partitions"] for text in each["problems"]]
    return "\n".join(listed)


def number_of(data: Path, topic: str) -> int:
    meta = Meta(data / "meta")
    try:
        found = LocalCatalog(meta).get(topic)
        assert found is not None
        return found.numbers[0]
    finally:
        meta.close()


def change_view(data: Path, topic: str, change: Callable[[Views, int], None]) -> None:
    number = number_of(data, topic)
    views = Views(data / "views")
    change(views, number)
    views.close()


def test_sound_data_is_sound(doctor: Callable[..., Result]) -> None:
    found = doctor("--json")
    assert found.status == 0
    assert found.json["sound"]
    rows = {(row["topic"], row["partition"]): row for row in found.json["partitions"]}
    assert rows["raw", 0]["end"] == EVENTS
    assert rows["raw", 0]["entries"] is None
    assert rows["mixed", 0]["entries"] == EVENTS // 3
    assert sum(row["entries"] for (topic, _), row in rows.items() if topic == "kept") == 200 - 200 // 7 - 1
    assert all(row["view_lag"] == 0 for row in rows.values())
    assert "all is well" in doctor().out


def test_a_folder_of_another_topic_is_named_and_left_alone(doctor: Callable[..., Result], data: Path) -> None:
    note = data / "topics" / "mixed-0" / "partition.metadata"
    note.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n")
    before = number_of(data, "mixed")
    for arguments in (("--json",), ("--json", "--repair")):
        found = doctor(*arguments)
        assert found.status == 1
        assert "mixed" not in found.json["problems"]
        assert "its folder belongs to another topic or partition; the topic's id is AAAAAAAAAAAAAAAAAAAAAA" in problems(
            found
        )
    assert number_of(data, "mixed") == before


def test_a_damaged_catalog_is_told_and_left_alone(doctor: Callable[..., Result], data: Path) -> None:
    for log in (data / "meta").glob("[0-9]*.log"):
        log.unlink()
    note = data / "meta" / "SYNCED"
    synced = Synced(data / "meta")
    synced.write(synced.read() + 1)
    synced.close()
    whole = note.read_bytes()
    found = doctor()
    assert found.status == 1
    assert "is damaged: of its changes up to" in found.err + found.out
    assert note.read_bytes() == whole


def test_a_flipped_bit_is_named_and_cannot_be_repaired(doctor: Callable[..., Result], data: Path) -> None:
    path = closed_segment(data, "mixed-0")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = doctor("--json")
    assert found.status == 1
    assert path.name in problems(found)
    assert "position" in problems(found)
    repaired = doctor("--repair", "--json")
    assert repaired.status == 1
    assert path.name in problems(repaired)
    assert "something is wrong" in doctor().out


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_wrong_index_is_found_and_rebuilt(doctor: Callable[..., Result], data: Path, suffix: str) -> None:
    path = closed_segment(data, "mixed-0").with_suffix(suffix)
    content = bytearray(path.read_bytes())
    assert content
    content[-1] ^= 1
    path.write_bytes(content)
    found = doctor("--json")
    assert found.status == 1
    assert path.name in problems(found)
    repaired = doctor("--repair", "--json")
    assert (repaired.status, repaired.json["sound"]) == (0, True)
    assert doctor("--json").status == 0


def test_a_missing_segment_is_found(doctor: Callable[..., Result], data: Path) -> None:
    closed_segment(data, "mixed-0").unlink()
    found = doctor("--json")
    assert found.status == 1
    assert "mixed-0" in problems(found)


def test_events_that_a_recovery_found_gone_are_a_problem_for_good(doctor: Callable[..., Result], data: Path) -> None:
    last = sorted((data / "topics" / "mixed-0").glob("*.log"))[-1]
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 1)
    for arguments in ((), ("--repair",), ()):
        found = doctor("--json", *arguments)
        assert found.status == 1
        assert "their events are gone" in problems(found)


def test_a_log_that_can_not_be_left_clean_is_told(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other logs are looked at all the same."""
    close = Log.close

    def refused(log: Log) -> None:
        close(log)
        if log.folder.name == "mixed-0":
            raise StorageError("no space left")

    monkeypatch.setattr(Log, "close", refused)
    found = checkup.check(data, False, lambda *_: None)
    assert {each.name: each.problems for each in found.partitions if each.problems} == {"mixed-0": ["no space left"]}
    assert len(found.partitions) > 2


def test_a_missing_partition_is_found(doctor: Callable[..., Result], data: Path) -> None:
    shutil.rmtree(data / "topics" / "kept-1")
    found = doctor("--json")
    assert found.status == 1
    assert "kept-1" in problems(found)
    assert not (data / "topics" / "kept-1").exists()


def test_a_missing_partition_that_no_view_tells_of_is_found(doctor: Callable[..., Result], data: Path) -> None:
    """As after damage of all views. The partition's log was on this disk."""
    shutil.rmtree(data / "topics" / "mixed-0")
    change_view(data, "mixed", lambda views, number: views.drop(number))
    found = doctor("--json")
    assert found.status == 1
    assert "mixed-0: the partition's folder is missing, and its events with it" in problems(found)


def test_a_topic_that_was_created_when_the_broker_was_killed_is_no_fault(
    doctor: Callable[..., Result], data: Path
) -> None:
    """The catalog knows of it before its folders are made."""
    meta = Meta(data / "meta")
    SyncCatalog(meta).create("new", 2)
    meta.close()
    found = doctor("--json")
    assert found.status == 0
    rows = [row for row in found.json["partitions"] if row["topic"] == "new"]
    assert ["no folder yet" in str(row["notes"]) for row in rows] == [True, True]


def test_a_folder_of_no_topic_is_found(doctor: Callable[..., Result], data: Path) -> None:
    shutil.copytree(data / "topics" / "kept-0", data / "topics" / "stranger-0")
    found = doctor("--json")
    assert found.status == 1
    assert "stranger-0" in problems(found)


def test_what_a_kill_leaves_of_new_partitions_is_no_fault(doctor: Callable[..., Result], data: Path) -> None:
    """They are made before the catalog knows of them, and hold nothing by then."""
    for index in (1, 2):
        folder = data / "topics" / f"mixed-{index}"
        folder.mkdir()
        if index == 1:
            (folder / file_name(0, LOG)).touch()
            shutil.copy(data / "topics" / "mixed-0" / IDENTITY, folder)
    found = doctor("--json")
    assert found.status == 0
    assert found.json["sound"]


CHANGES: list[tuple[str, str, Callable[[Views, int], None]]] = [
    ("a key lost", "k300", lambda views, n: views.apply(n, {}, EVENTS, [b"k300"])),
    ("a value changed", "k300", lambda views, n: views.apply(n, {b"k300": pack_entry(300, 0, b"other")}, EVENTS)),
    ("a value of the past", "k300", lambda views, n: views.apply(n, {b"k300": pack_entry(3, 0, b"v3")}, EVENTS)),
    ("a key too many", "1 entries", lambda views, n: views.apply(n, {b"new": pack_entry(301, 0, b"v")}, EVENTS)),
    ("an entry of the future", "new", lambda views, n: views.apply(n, {b"new": pack_entry(EVENTS, 0, b"v")}, EVENTS)),
    (
        "an entry of nonsense",
        "new",
        lambda views, n: views.apply(n, {b"new": b"\xff no entry, but it is long"}, EVENTS),
    ),
    ("ahead of the log", "3,000", lambda views, n: views.apply(n, {}, EVENTS + 10)),
]


@pytest.mark.parametrize(("named", "change"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_a_view_that_is_not_the_fold_is_found_and_folded_anew(
    doctor: Callable[..., Result], data: Path, named: str, change: Callable[[Views, int], None]
) -> None:
    change_view(data, "mixed", change)
    found = doctor("--json")
    assert found.status == 1
    assert named in problems(found)
    repaired = doctor("--repair", "--json")
    assert (repaired.status, repaired.json["sound"]) == (0, True), problems(repaired)
    [row] = [row for row in repaired.json["partitions"] if row["repaired"]]
    assert (row["topic"], row["entries"]) == ("mixed", EVENTS // 3)
    after = doctor("--json")
    assert (after.status, after.json["partitions"][-1]["entries"]) == (0, None)


def test_a_view_that_is_behind_is_no_fault(doctor: Callable[..., Result], data: Path) -> None:
    def back(views: Views, number: int) -> None:
        views.drop(number)

    change_view(data, "mixed", back)
    found = doctor("--json")
    assert found.status == 0
    [row] = [row for row in found.json["partitions"] if row["topic"] == "mixed"]
    assert row["view_lag"] == EVENTS


def test_what_a_cleaning_took_for_events_that_the_view_has_lost_is_no_fault(
    run: Krappy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill takes the view back to what was flushed, but not the log."""

    async def main() -> None:
        async with running(tmp_path / "data", cleaner_backoff_ms=10**7, retention_check_ms=10**7) as broker:
            config = {"cleanup.policy": "compact", "segment.bytes": 400, "min.cleanable.dirty.ratio": 0}
            partition = (await broker.create_topic("t", 1, config))[0].led(0)
            for _ in range(6):
                await publish(partition, 4, [b"a", b"b", b"c", b"d"])
            await partition.flush_view()
            partition.log.roll()
            await publish(partition, 2, [b"a", b"a"])
            await partition.publish(batch.encode([b"b"], [None], timestamps=1_000)).wait()
            assert await partition.view_wait(None, 60)
            monkeypatch.setattr(partition, "flush_view", lambda _: trio.sleep(0))  # as if these came after the flush
            await broker.housekeeper.clean(partition, broker.now_ms())
            as_killed(tmp_path / "data", tmp_path / "killed")

    trio.run(main)
    assert run("doctor", "--data", str(tmp_path / "data")).status == 0
    found = run("doctor", "--data", str(tmp_path / "killed"), "--json")
    assert problems(found) == ""
    assert found.status == 0
    (row,) = found.json["partitions"]
    assert row["view_lag"] == 3
    change_view(tmp_path / "killed", "t", lambda views, number: views.apply(number, {b"x": pack_entry(21, 1, b"")}, 24))
    assert "1 entries of the view are not in the log" in problems(
        run("doctor", "--data", str(tmp_path / "killed"), "--json")
    )


def test_lost_views_are_folded_anew(doctor: Callable[..., Result], data: Path) -> None:
    shutil.rmtree(data / "views")
    found = doctor("--json")
    assert found.status == 1
    assert "views" in problems(found)
    assert doctor("--repair", "--json").json["sound"]
    assert doctor("--json").json["sound"]


def test_views_that_cannot_be_opened_are_set_aside(doctor: Callable[..., Result], data: Path) -> None:
    for file in (data / "views").glob("MANIFEST-*"):
        file.write_bytes(b"nonsense")
    assert doctor("--json").status == 1
    repaired = doctor("--repair", "--json")
    assert (repaired.status, repaired.json["sound"]) == (0, True)
    assert list(data.glob("views.damaged-*"))


def test_views_with_a_damaged_block_are_set_aside(doctor: Callable[..., Result], data: Path) -> None:
    file = max((data / "views").glob("*.sst"), key=lambda each: each.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 4
    file.write_bytes(content)
    found = doctor("--json")
    assert (found.status, found.json["sound"]) == (1, False)
    assert "Corruption" in problems(found)
    repaired = doctor("--repair", "--json")
    assert (repaired.status, repaired.json["sound"]) == (0, True), problems(repaired)
    assert list(data.glob("views.damaged-*"))
    assert doctor("--json").json["sound"]
    with run_broker(data, durability="os") as broker, broker.connect() as client:
        entry = client.table("mixed").get("k300")
        assert entry is not None


def test_repaired_data_serves(doctor: Callable[..., Result], data: Path) -> None:
    shutil.rmtree(data / "views")
    doctor("--repair")
    with run_broker(data, durability="os") as broker, broker.connect() as client:
        entry = client.table("mixed").get("k300")
        assert entry is not None
        assert (entry.value, entry.offset) == (b"v300", 300)
        assert client.table("kept").get("k7") is not None


def test_a_folder_in_use_is_refused(run: Krappy, tmp_path: Path) -> None:
    with run_broker(tmp_path / "data"):
        found = run("doctor", "--data", str(tmp_path / "data"), "--repair")
    assert found.status == 1
    assert "in use" in found.err
    assert len(found.err.splitlines()) == 1


def test_a_folder_that_is_no_broker_s_is_refused_and_left_alone(run: Krappy, tmp_path: Path) -> None:
    found = run("doctor", "--data", str(tmp_path))
    assert found.status == 1
    assert "not the data folder" in found.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("repair", [[], ["--repair"]])
def test_a_pulse_that_is_none_is_told_and_left_alone(
    doctor: Callable[..., Result], data: Path, repair: list[str]
) -> None:
    for content in (b"odd", bytes(64)):
        (data / PULSE).write_bytes(content)
        found = doctor("--json", *repair)
        assert found.status == 1
        assert f"{data / PULSE}: it has {len(content)} bytes and not 16" in problems(found)
        assert (data / PULSE).read_bytes() == content
    for content in (b"", bytes(8)):  # as a kill leaves it, and as it should be
        (data / PULSE).write_bytes(content)
        assert doctor(*repair).status == 0
        assert (data / PULSE).read_bytes() == content


@pytest.mark.parametrize("left", CATALOGS_LOST)
def test_a_lost_catalog_is_told_and_none_is_made(
    doctor: Callable[..., Result], run: Krappy, data: Path, left: str
) -> None:
    lose_catalog(data / "meta", left)
    before = sorted(data.rglob("*"))
    for found in (doctor(), doctor("--repair", "--json"), run("user", "list", "--data", str(data))):
        assert found.status == 1
        assert f"the catalog in {data / 'meta'} is missing, and {data / 'topics'} holds events" in found.err
        assert "Restore a backup; or, to go on without what is lost, make the file" in found.err
        assert sorted(data.rglob("*")) == before


def test_a_folder_in_place_of_a_file_is_told_with_what_to_do(doctor: Callable[..., Result], data: Path) -> None:
    """RocksDB takes a folder LOG for its file at one opening, and finds it damaged at the next."""
    for name, advice in (
        ("meta/LOG", "is a folder, and the catalog has only files: move it away"),
        ("meta/accept-loss", "is a folder, and the catalog has only files: move it away"),
        ("lock", "move the folder of that name away"),
        (PULSE, "move the folder of that name away"),
        (REACHED, "move the folder of that name away"),
    ):
        place, kept = data / name, data.with_name("kept")
        is_there = place.exists()
        if is_there:
            place.rename(kept)
        place.mkdir()
        for _ in range(2):
            found = doctor()
            assert found.status == 1
            assert f"{place}" in found.err + found.out
            assert advice in found.err + found.out
        if name != PULSE:  # only a broker of a cluster has it
            with pytest.raises(StorageError, match=advice), run_broker(data, durability="os"):
                pass
        place.rmdir()
        if is_there:
            kept.rename(place)
    assert doctor().status == 0


@pytest.mark.parametrize("folder", [".", "meta", "topics", "views"])
def test_nobody_waits_for_a_pipe_in_place_of_a_file(doctor: Callable[..., Result], data: Path, folder: str) -> None:
    """Opening a pipe waits until somebody opens its other end. Some files of partitions are not needed, or not looked
    at: of these nothing is told."""
    (data / PULSE).touch()
    places = [place for place in sorted((data / folder).glob("*" if folder == "." else "**/*")) if place.is_file()]
    kept = data.with_name("kept")
    for place in places:
        if place.name in ("LOG", "LOCK", "lock", "ballast") or not place.exists():  # overwritten; removed by a check
            continue
        place.rename(kept)
        os.mkfifo(place)
        found = doctor()
        assert found.status == 1 or folder == "topics", f"{place}: {found.out}{found.err}"
        place.unlink(missing_ok=True)
        kept.rename(place)


def test_a_folder_of_staged_files_that_cannot_be_read_is_told(doctor: Callable[..., Result], data: Path) -> None:
    (data / "staging").rmdir()
    (data / "staging").symlink_to("staging")
    found = doctor("--json")
    assert found.status == 1
    assert f"{data / 'staging'}: " in problems(found)
