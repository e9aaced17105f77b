"""Whose a folder is: a topic never takes up what another has left, and nobody deletes what no topic claims."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from trio.testing import trio_test

from krappy.broker.replication.replica_logs import ReplicaLogs
from krappy.cli import checkup
from krappy.errors import StorageError
from krappy.store import identity
from krappy.store.format import IDENTITY
from krappy.store.local_replicas import LocalReplicas
from krappy.store.meta import Meta
from krappy.store.reached import ReachedFile
from krappy.store.synced import ACCEPT, NAME
from krappy.types import text_id
from tests.broker.catalogs import CATALOGS_LOST, lose_catalog
from tests.broker.engine import as_killed, publish, read_all, running


@trio_test
async def test_a_folder_names_its_topic_as_kafka_has_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 2, {})
        told = [f"version: 0\ntopic_id: {text_id(topic.id)}\npartition: {index}\n" for index in range(2)]
        for index in range(2):
            assert (tmp_path / "topics" / f"t-{index}" / IDENTITY).read_text() == told[index]
        await publish(topic.led(0), 3)
    (tmp_path / "topics" / "t-0" / IDENTITY).unlink()  # as a version before it left the folder
    (tmp_path / "topics" / "t-1" / IDENTITY).write_bytes(b"\0" * 40)  # as a loss of power may
    async with running(tmp_path) as broker:
        assert len(await read_all(broker.topic("t").led(0))) == 3
        for index in range(2):
            assert (tmp_path / "topics" / f"t-{index}" / IDENTITY).read_text() == told[index]


@trio_test
async def test_events_that_nobody_claims_are_neither_taken_up_nor_deleted(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []

    def report(event: str, **facts: Any) -> None:
        said.append({"event": event, **facts})

    async with running(tmp_path / "other") as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 5)
        id = text_id(topic.id)
    async with running(tmp_path / "data"):
        pass
    left = tmp_path / "data" / "topics" / "t-0"
    shutil.copytree(tmp_path / "other" / "topics" / "t-0", left)
    shutil.copytree(left, left.with_name("grown-1"))
    async with running(tmp_path / "data", report) as broker:
        assert [(each["folder"], each["topic_id"]) for each in said if each["event"] == "folder_unclaimed"] == [
            (str(left.with_name("grown-1")), f"{id}, partition 0"),
            (str(left), id),
        ]
        with pytest.raises(StorageError, match=r"t-0 holds events that belong to no topic"):
            await broker.create_topic("t", 1, {})
        grown, _ = await broker.create_topic("grown", 1, {})
        with pytest.raises(StorageError, match=r"grown-1 holds events"):
            await broker.alter_topic("grown", None, 3)
        assert len(grown.local) == 1
        assert not left.with_name("grown-2").exists()
        assert identity.holds_events(left)
        shutil.rmtree(left)
        await broker.create_topic("t", 1, {})
    async with running(tmp_path / "data") as broker:
        assert broker.topic("t").led(0).high_watermark == 0


@trio_test
async def test_an_old_copy_of_a_partitions_folder(tmp_path: Path) -> None:
    """There is no other replica, so the broker reports it and goes on with what it has."""
    data, old = tmp_path / "data", tmp_path / "old"
    said: list[dict[str, Any]] = []
    async with running(data, durability="fsync") as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 5, [b"a"] * 5)
        shutil.copytree(data / "topics" / "t-0", old)
        await publish(topic.led(0), 7, [b"b"] * 7)
        as_killed(data, tmp_path / "killed")
    data = tmp_path / "killed"
    shutil.rmtree(data / "topics" / "t-0")
    shutil.copytree(old, data / "topics" / "t-0")
    shutil.copytree(data, tmp_path / "checked")
    async with running(data, lambda event, **facts: said.append({"event": event, **facts})) as broker:
        [told] = [each for each in said if each["event"] == "events_lost"]
        assert "offsets 5 to 11 " in told["lost"][0]
        assert "old copy" in told["lost"][0]
        partition = broker.topic("t").led(0)
        assert await publish(partition, 1) == 12, "no offset is given twice"
        assert len(await read_all(partition)) == 6
    said.clear()
    async with running(data, lambda event, **facts: said.append({"event": event, **facts})):
        assert not [each for each in said if each["event"] == "events_lost"]
    for folder in (data, tmp_path / "checked"):
        [found] = checkup.check(folder, False, lambda name, count: None).partitions
        assert [each for each in found.problems if "old copy" in each], f"{folder}: {found.problems}"


@trio_test
async def test_folders_that_are_no_old_copies(tmp_path: Path) -> None:
    said: list[str] = []

    def report(event: str, **facts: Any) -> None:
        said.append(event)

    async with running(tmp_path / "data", report, durability="fsync") as broker:
        topic, _ = await broker.create_topic("t", 2, {"segment.bytes": 100})
        await publish(topic.led(0), 5)
        await broker.delete_topic("t")
        topic, _ = await broker.create_topic("t", 2, {"segment.bytes": 100})
        for _ in range(3):
            await publish(topic.led(0), 2)
        await topic.led(0).delete_records(5)
    (tmp_path / "data").rename(tmp_path / "moved")
    async with running(tmp_path / "moved", report, durability="fsync") as broker:
        assert broker.topic("t").led(0).high_watermark == 6
        await publish(broker.topic("t").led(1), 5)
        as_killed(tmp_path / "moved", tmp_path / "killed")
    (tmp_path / "killed" / "reached").unlink()  # as of an earlier version
    async with running(tmp_path / "killed", report, durability="fsync") as broker:
        assert broker.topic("t").led(1).high_watermark == 5
    assert "events_lost" not in said


def test_a_replica_that_comes_back(tmp_path: Path) -> None:
    """An earlier version, which does not write the file `reached`, removed the replica in between."""
    reached = ReachedFile(tmp_path / "reached")
    for id in (b"a" * 16, b"b" * 16):
        reached.of(id, 0).note(9, 1)
    others = SimpleNamespace(replicas=(1, 2))
    topic = SimpleNamespace(name="t", id=b"a" * 16, image=SimpleNamespace(partitions=[others]))
    runtime = SimpleNamespace(reached=reached, folder_of=lambda name, index: tmp_path / "topics" / f"{name}-{index}")
    meta = Meta(tmp_path / "meta")
    replicas = LocalReplicas(meta)
    ReplicaLogs(cast("Any", runtime), replicas)._note([(cast("Any", topic), 0, 1)])
    assert (b"a" * 16, 0) in replicas
    found = ReachedFile(tmp_path / "reached")
    assert [found.of(id, 0).offset for id in (b"a" * 16, b"b" * 16)] == [0, 9]
    meta.close()


@trio_test
async def test_what_is_left_without_events_makes_way(tmp_path: Path) -> None:
    """As a crash may leave it while partitions were added. Else the offsets of the new partition would not begin
    at 0."""
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 5)
        await topic.led(0).delete_records(5)
    shutil.copytree(tmp_path / "topics" / "t-0", tmp_path / "topics" / "u-0")
    async with running(tmp_path) as broker:
        assert broker.topic("t").led(0).start_offset == 5
        made, _ = await broker.create_topic("u", 1, {})
        assert (made.led(0).start_offset, made.led(0).high_watermark) == (0, 0)
        assert identity.owner(tmp_path / "topics" / "u-0") == text_id(made.id)


@trio_test
async def test_a_topic_does_not_open_anothers_folder(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        for name in ("a", "b"):
            topic, _ = await broker.create_topic(name, 1, {})
            await publish(topic.led(0), 2)
    a, b = (tmp_path / "topics" / f"{name}-0" for name in ("a", "b"))
    a.rename(a.with_name("x"))
    b.rename(a)
    said: list[dict[str, Any]] = []
    async with running(tmp_path, lambda event, **facts: said.append({"event": event, **facts})) as broker:
        why = {each["partition"]: each["error"] for each in said if each["event"] == "partition_offline"}
        assert sorted(why) == ["a-0", "b-0"]
        assert "a-0 belongs to another topic" in why["a-0"]
        assert "b-0 is missing" in why["b-0"]
        with pytest.raises(StorageError, match="belongs to another topic"):
            await publish(broker.topic("a").led(0), 1)
        await broker.delete_topic("a")
        await broker.changes.finish_deletions()
        assert not broker.catalog.deleting()
    assert identity.holds_events(a)


@trio_test
async def test_a_partition_does_not_open_anothers_folder(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 2, {})
        for index in range(2):
            await publish(topic.led(index), 2)
        id = text_id(topic.id)
    a, b = (tmp_path / "topics" / f"t-{index}" for index in range(2))
    (b / IDENTITY).write_text(f"version: 0\ntopic_id: {id}\n")  # as of an earlier version; the next start adds a line
    async with running(tmp_path) as broker:
        await publish(broker.topic("t").led(1), 1)
    a.rename(a.with_name("x"))
    b.rename(a)
    a.with_name("x").rename(b)
    async with running(tmp_path) as broker:
        for index in range(2):
            with pytest.raises(StorageError, match=f"{id}, partition {1 - index}, and not {id}"):
                await publish(broker.topic("t").led(index), 1)
    assert identity.holds_events(a)
    assert identity.holds_events(b)


@trio_test
async def test_finishing_a_deletion_leaves_anothers_folder(tmp_path: Path) -> None:
    """The topic has the same name, and was made since."""
    async with running(tmp_path / "data") as broker:
        await broker.create_topic("t", 1, {})
        stored = await broker.catalog.delete("t")
        as_killed(tmp_path / "data", tmp_path / "killed")
    folder = tmp_path / "killed" / "topics" / "t-0"
    folder.mkdir(exist_ok=True)
    (folder / IDENTITY).write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n")
    (folder / "00000000000000000000.log").write_bytes(b"not ours")
    async with running(tmp_path / "killed") as broker:
        assert stored.id not in [dead.id for dead in broker.catalog.deleting()]
        assert identity.holds_events(folder)


def flip(folder: Path, what: bytes) -> None:
    """Flips one bit, at the place where the catalog's write-ahead log has these bytes."""
    wal = max(folder.glob("[0-9]*.log"))
    data = bytearray(wal.read_bytes())
    data[data.index(what) + 2] ^= 1
    wal.write_bytes(data)


@trio_test
async def test_a_damaged_catalog_is_refused_and_goes_on_when_that_is_wanted(tmp_path: Path) -> None:
    killed, topics = tmp_path / "killed", tmp_path / "killed" / "topics"
    async with running(tmp_path / "data", durability="fsync") as broker:
        for name in ("alpha", "beta", "gamma"):
            topic, _ = await broker.create_topic(name, 1, {})
            await publish(topic.led(0), 5, [b"k"] * 5)
            await topic.led(0).flush_view()
            last = await broker.new_producer_id()
            numbers = [partition.number for partition in topic.local.values()]
        as_killed(tmp_path / "data", killed)
    flip(killed / "meta", b"/brokers/topics/beta")
    before = {path.name: path.read_bytes() for path in (killed / "meta").glob("[0-9]*.log")}
    for _ in range(2):
        with pytest.raises(ExceptionGroup) as failed:
            async with running(killed):
                pass
        assert failed.group_contains(StorageError, match=r"is damaged: of its changes .* Restore a backup; or")
        assert {path.name: path.read_bytes() for path in (killed / "meta").glob("[0-9]*.log")} == before
    (killed / "meta" / ACCEPT).touch()
    said: list[str] = []
    async with running(killed, lambda event, **facts: said.append(event), durability="fsync") as broker:
        assert said.count("folder_unclaimed") == 2
        assert said.count("catalog_lost") == 1
        assert list(broker.topics) == ["alpha"]
        for name in ("beta", "gamma"):
            with pytest.raises(StorageError, match="belong to no topic"):
                await broker.create_topic(name, 1, {})
            assert identity.holds_events(topics / f"{name}-0")
        made, _ = await broker.create_topic("delta", 1, {})
        assert made.led(0).number > max(numbers)
        assert broker.topic("alpha").led(0).epoch > 1
        assert await broker.new_producer_id() > last
    async with running(killed) as broker:  # and it is whole again
        assert sorted(broker.topics) == ["alpha", "delta"]


@pytest.mark.parametrize("left", CATALOGS_LOST)
@trio_test
async def test_a_lost_catalog_is_refused_and_begun_anew_when_that_is_wanted(tmp_path: Path, left: str) -> None:
    data, meta = tmp_path / "data", tmp_path / "data" / "meta"
    async with running(data, durability="fsync") as broker:
        topic, _ = await broker.create_topic("alpha", 1, {})
        await publish(topic.led(0), 5, [b"k"] * 5)
        last = await broker.new_producer_id()
    lose_catalog(meta, left)
    before = sorted(data.rglob("*"))
    for _ in range(2):
        with pytest.raises(ExceptionGroup) as failed:
            async with running(data):
                pass
        assert failed.group_contains(StorageError, match=r"meta is missing, and .*topics holds events.* Restore a ba")
        assert sorted(data.rglob("*")) == before
    meta.mkdir(exist_ok=True)
    (meta / ACCEPT).touch()
    said: list[str] = []
    async with running(data, lambda event, **facts: said.append(event), durability="fsync") as broker:
        assert said.count("folder_unclaimed") == 1
        assert said.count("catalog_lost") == 1
        with pytest.raises(StorageError, match="belong to no topic"):
            await broker.create_topic("alpha", 1, {})
        assert await broker.new_producer_id() > last + 1_000_000
    async with running(data, lambda event, **facts: said.append(event)):
        assert said.count("catalog_lost") == 1


@trio_test
async def test_any_bit_of_the_write_ahead_log_that_is_flipped_is_noticed(tmp_path: Path) -> None:
    """Whatever the bit does to the log, what was synced is there, or the broker says that it is not."""
    async with running(tmp_path / "data", durability="fsync") as broker:
        for name in ("alpha", "beta"):
            await broker.create_topic(name, 1, {})
        as_killed(tmp_path / "data", tmp_path / "killed")
    wal = max((tmp_path / "killed" / "meta").glob("[0-9]*.log"))
    for at in range(3, wal.stat().st_size, 23):
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "killed", folder)
        data = bytearray(wal.read_bytes())
        data[at] ^= 4
        (folder / "meta" / wal.name).write_bytes(data)
        with pytest.raises(ExceptionGroup) as failed:
            async with running(folder):
                pass
        assert failed.group_contains(StorageError, match="is damaged")
        shutil.rmtree(folder)


@trio_test
async def test_a_note_that_is_behind_or_damaged_stops_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, durability="fsync") as broker:
        await broker.create_topic("t", 1, {})
    note = tmp_path / "meta" / NAME
    whole = note.read_bytes()
    for data in (b"", whole[:7], whole[:-1] + bytes([whole[-1] ^ 1]), bytes(len(whole))):
        note.write_bytes(data)
        async with running(tmp_path) as broker:
            assert list(broker.topics) == ["t"]
        assert note.read_bytes() >= whole
