"""Damaged files of the views: the broker makes them anew from the logs by itself, and nobody's publishing waits for
that."""

from __future__ import annotations

import errno
import random
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from krappy.broker.broker import LocalBroker
from krappy.broker.partition.partition import Partition
from krappy.broker.upkeep.room import Room
from krappy.entries.entry import entry_offset
from krappy.errors import StorageError
from krappy.store import rocks
from krappy.store.disk import Disk
from krappy.store.meta import Meta
from krappy.store.view_numbers import ViewNumbers
from krappy.store.views import Views
from tests.broker.engine import publish, running, until

KEYS = [b"%05d" % number for number in range(2_000)]


async def filled(broker: LocalBroker, name: str, rounds: int = 3) -> Partition:
    """A topic of these keys, published in `rounds` batches, all of them in the files of the views."""
    topic, _ = await broker.create_topic(name, 1, {})
    partition = topic.led(0)
    for _ in range(rounds):
        await publish(partition, len(KEYS), KEYS)
    await partition.flush_view()
    return partition


def damage(data: Path, chance: random.Random) -> None:
    """Changes a byte in every table file."""
    files = sorted((data / "views").glob("*.sst"))
    assert files
    for path in files:
        content = bytearray(path.read_bytes())
        content[chance.randrange(len(content) // 2)] ^= 1 << chance.randrange(8)
        with path.open("r+b") as file:  # the same file, which RocksDB has open
            file.write(content)


async def looked_up(partition: Partition) -> list[int | None]:
    """The offset of each key's entry, once the view has it, as a client finds it that tries again."""
    with trio.fail_after(60):
        while True:
            try:
                await partition.view_wait(None, 60.0)
                found = partition.look_up_some(KEYS)
                return [None if entry is None else entry_offset(entry) for entry in found]
            except StorageError:
                await trio.sleep(0.01)


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_block_is_folded_anew_while_others_publish(tmp_path: Path, seed: int) -> None:
    said: list[str] = []

    async def main() -> None:
        async with running(tmp_path, lambda event, **_: said.append(event), view_cache_bytes=1 << 20) as broker:
            victim, innocent = await filled(broker, "victim"), await filled(broker, "innocent")
            with trio.fail_after(60):
                while "views_damaged" not in said:
                    damage(tmp_path, random.Random(seed))
                    for partition in (victim, innocent):
                        with suppress(StorageError):
                            partition.look_up_some(KEYS)
                    await publish(innocent, len(KEYS), KEYS)
                    await trio.sleep(0.1)
            await publish(innocent, len(KEYS), KEYS)
            assert await looked_up(victim) == list(range(2 * len(KEYS), 3 * len(KEYS)))
            end = innocent.high_watermark
            assert await looked_up(innocent) == list(range(end - len(KEYS), end))
            await until(lambda: "views_renewed" in said)
            await publish(victim, 1, [KEYS[0]])
            assert (await looked_up(victim))[0] == 3 * len(KEYS)
        async with running(tmp_path, lambda event, **_: said.append(event)) as broker:
            assert (await looked_up(broker.topic("victim").led(0)))[1] == 2 * len(KEYS) + 1
        assert said.count("views_damaged") == 1

    trio.run(main)


def test_publishers_that_wait_for_the_view_wait_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the views anew takes a while; whoever was held back by the old ones goes on, and new ones are not held."""
    said: list[str] = []

    async def main() -> None:
        async with running(tmp_path, lambda event, **_: said.append(event)) as broker:
            partition = await filled(broker, "t", 1)
            old, renewing, go_on = partition.applier, trio.Event(), trio.Event()
            throw_away = broker.views.throw_away

            def slowly() -> None:
                throw_away()
                trio.from_thread.run_sync(renewing.set)
                trio.from_thread.run(go_on.wait)

            monkeypatch.setattr(broker.views, "throw_away", slowly)
            broker.views.damaged = "by this test"
            try:
                with trio.fail_after(60):
                    await renewing.wait()
                    with pytest.raises(StorageError, match="made anew"):
                        partition.look_up(KEYS[0])
                    async with trio.open_nursery() as nursery:
                        await publish(partition, len(KEYS), KEYS)
                        nursery.start_soon(old.within, -1)
                        go_on.set()
            finally:
                go_on.set()
            assert await looked_up(partition) == list(range(len(KEYS), 2 * len(KEYS)))

    trio.run(main)


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.sst", "OPTIONS-*"])
@pytest.mark.parametrize("how", ["gone", "empty", "flipped"])
def test_views_that_cannot_be_opened_or_read_are_made_anew(tmp_path: Path, name: str, how: str) -> None:
    said: list[str] = []

    async def main() -> None:
        async with running(tmp_path) as broker:
            await filled(broker, "t", 1)
        for path in (tmp_path / "views").glob(name):
            content = path.read_bytes()
            path.unlink()
            if how != "gone":
                middle = len(content) // 2
                path.write_bytes(
                    content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :] if how != "empty" else b""
                )
        async with running(tmp_path, lambda event, **_: said.append(event)) as broker:
            assert await looked_up(broker.topic("t").led(0)) == list(range(len(KEYS)))

    trio.run(main)
    assert said.count("views_damaged") <= 1


def test_a_views_folder_of_another_broker_that_runs_is_not_thrown_away(tmp_path: Path) -> None:
    """Only damaged views are."""
    from krappy.broker.tables.view_keeper import open_views
    from krappy.store.views import Views

    views = Views(tmp_path / "views")
    views.apply(1, {b"k": b"v"}, 1)
    with closing(Meta(tmp_path / "meta")) as meta:
        numbers = ViewNumbers(meta)
        with pytest.raises(StorageError):
            open_views(tmp_path / "views", (1 << 20, 1 << 20), numbers)
        assert views.get(1, b"k") == b"v"
        views.close()
        again: Any = open_views(tmp_path / "views", (1 << 20, 1 << 20), numbers)
    assert again[1] == ""
    assert again[0].get(1, b"k") == b"v"
    again[0].close()


def test_numbers_of_views_that_are_there_are_not_given_again(tmp_path: Path) -> None:
    """The meta database was lost. If the next view had such a number, it would show another topic's table."""
    from krappy.broker.tables.view_keeper import open_views

    with closing(Views(tmp_path / "views")) as views:
        views.apply(7, {b"k": b"v"}, 1)
    with closing(Meta(tmp_path / "meta")) as meta:
        numbers = ViewNumbers(meta)
        with closing(open_views(tmp_path / "views", (1 << 20, 1 << 20), numbers)[0]):
            numbers.give(bytes(16), "t", 2)
        assert ViewNumbers(meta).of(bytes(16)) == [8, 9]


class Refusing:
    """A database whose writes fail, as after a compaction that could not read one of its files."""

    def __init__(self, db: Any, file: Path) -> None:
        self._db = db
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def write(self, *given: object) -> None:
        raise Exception(f"IO error: While pread offset 3848 len 420: {self._file}: Input/output error")


@pytest.mark.parametrize("lost", [True, False])
def test_a_file_that_the_disk_does_not_read_is_damage_if_that_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    said: list[str] = []
    file = tmp_path

    def read_through(self: Disk, path: Path) -> None:
        assert path == file
        if lost:
            raise OSError(errno.EIO, "Input/output error")

    async def main() -> None:
        nonlocal file
        async with running(tmp_path, lambda event, **_: said.append(event)) as broker:
            partition = await filled(broker, "t", 1)
            file = min((tmp_path / "views").glob("*.sst"))
            broker.views._open = Refusing(broker.views._open, file)  # type: ignore[assignment]
            await publish(partition, len(KEYS), KEYS)
            assert await looked_up(partition) == list(range(len(KEYS), 2 * len(KEYS)))
            with pytest.raises(StorageError, match="Input/output error"):
                broker.views.write()
            while not {"views_damaged", "views_refused"}.intersection(said):
                await trio.sleep(0.01)
            assert await looked_up(partition) == list(range(len(KEYS), 2 * len(KEYS)))

    monkeypatch.setattr(Disk, "read_through", read_through)
    trio.run(main)
    assert ("views_damaged" in said, "views_refused" in said) == (lost, not lost)


def test_a_start_does_not_need_what_the_disk_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    async def main() -> None:
        async with running(tmp_path, lambda event, **_: said.append(event)) as broker:
            partition = broker.topic("t").led(0) if said else await filled(broker, "t", 1)
            assert await looked_up(partition) == list(range(len(KEYS)))

    trio.run(main)
    file = min((tmp_path / "views").glob("*.sst"))
    refused = [f"IO error: While pread offset 3848 len 420: {file}: Input/output error"]
    get = Views._get

    def unread(self: Views, asked: Any) -> Any:
        if refused:
            raise self._failure("reading a view", Exception(refused.pop()))
        return get(self, asked)

    def read_through(self: Disk, path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Views, "_get", unread)
    monkeypatch.setattr(Disk, "read_through", read_through)
    said.append("again")
    trio.run(main)
    assert "views_damaged" in said


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("folder", ["views", "meta"])
def test_an_open_that_the_disk_refuses_is_damage_if_a_file_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, lost: bool
) -> None:
    """Else views would be thrown away, with entries that are in no log any more, and a backup would take the catalog's
    place."""
    said: list[str] = []

    async def main() -> None:
        async with running(tmp_path, lambda event, **_: said.append(event)) as broker:
            partition = broker.topic("t").led(0) if said else await filled(broker, "t", 1)
            assert await looked_up(partition) == list(range(len(KEYS)))

    trio.run(main)
    files = {file.name for file in (tmp_path / folder).glob("*.sst")}
    real, refused = rocks.Rdict, [f"IO error: While fdatasync: {tmp_path / folder}/MANIFEST-9: Input/output error"]

    def opened(path: str, *given: Any, **more: Any) -> Any:
        if refused and path == str(tmp_path / folder) and not more:
            raise Exception(refused.pop())
        return real(path, *given, **more)

    def read_through(self: Disk, path: Path) -> None:
        if lost and path.parent.name == folder:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(rocks, "Rdict", opened)
    monkeypatch.setattr(Disk, "read_through", read_through)
    said.append("again")
    if lost and folder == "views":
        trio.run(main)
        assert "views_damaged" in said
        return
    with pytest.raises(ExceptionGroup) as failed:
        trio.run(main)
    assert failed.group_contains(StorageError, match="can't be opened: IO error")
    assert failed.group_contains(StorageError, match="Restore a backup") == lost
    assert files == {file.name for file in (tmp_path / folder).glob("*.sst")}
    trio.run(main)
    assert "views_damaged" not in said


@pytest.mark.parametrize("reopened", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        lambda broker: broker.alter_topic("t", None, 3),
        lambda broker: broker.alter_topic("t", {"view.enable": "false"}, None),
        lambda broker: broker.alter_topic("off", {"view.enable": "true"}, None),
        lambda broker: broker.create_topic("new", 2, {}),
    ],
)
def test_a_change_that_needs_the_views_is_refused_as_a_whole_while_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, reopened: bool
) -> None:
    """The change is not in the catalog either, and is made when it is asked for again. Other settings can change."""
    said: list[str] = []
    name, flaw = ("reopen", "stuck") if reopened else ("throw_away", "damaged")

    def known(broker: LocalBroker) -> list[tuple[str, dict[str, str], int]]:
        return [(topic.name, topic.config, len(topic.numbers)) for topic in broker.catalog.list()]

    async def main() -> None:
        async with running(tmp_path, lambda event, **_: said.append(event)) as broker:
            await filled(broker, "t", 1)
            await broker.create_topic("off", 2, {"view.enable": "false"})
            before, away, go_on = known(broker), trio.Event(), trio.Event()
            make = getattr(broker.views, name)

            def slowly() -> None:
                trio.from_thread.run_sync(away.set)
                make()
                trio.from_thread.run(go_on.wait)

            monkeypatch.setattr(broker.views, name, slowly)
            setattr(broker.views, flaw, "by this test")
            with trio.fail_after(60):
                await away.wait()
                try:
                    with pytest.raises(StorageError, match="anew"):
                        await change(broker)
                    assert known(broker) == before
                    await broker.alter_topic("t", {"retention.ms": "-1"}, None)
                finally:
                    go_on.set()
                await until(lambda: "views_reopened" in said or "views_renewed" in said)
                await change(broker)
            assert [len(broker.topic(topic).local) for topic, *_ in known(broker)] == [
                count for *_, count in known(broker)
            ]
        assert "deletion_unfinished" not in said

    trio.run(main)


def test_the_views_are_made_anew_behind_a_change_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    async def main() -> None:
        async with running(tmp_path, lambda event, **_: said.append(event)) as broker:
            partition = await filled(broker, "t", 1)
            under_way, go_on = trio.Event(), trio.Event()
            add = broker.catalog.add_partitions

            async def slowly(topic: str, total: int) -> Any:
                under_way.set()
                await go_on.wait()
                return await add(topic, total)

            monkeypatch.setattr(broker.catalog, "add_partitions", slowly)
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(broker.alter_topic, "t", None, 3)
                    await under_way.wait()
                    broker.views.damaged = "by this test"
                    try:
                        await until(lambda: "views_damaged" in said)
                        assert not partition.applier.stopped
                    finally:
                        go_on.set()
                await until(lambda: "views_renewed" in said)
            assert len(broker.topic("t").local) == 3
            assert await looked_up(partition) == list(range(len(KEYS)))

    trio.run(main)


def test_partitions_that_the_catalog_has_and_could_not_be_made_are_by_asking_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor, refuses = Views.floor, True

    def unread(self: Views, number: int) -> int:
        if refuses and number > 1:
            raise StorageError("a block of the views can't be read")
        return floor(self, number)

    async def main() -> None:
        nonlocal refuses
        async with running(tmp_path) as broker:
            await filled(broker, "t", 1)
            for _ in range(2):
                with pytest.raises(StorageError, match="a block"):
                    await broker.alter_topic("t", None, 3)
            refuses = False
            await broker.alter_topic("t", None, 3)
            topic = broker.topic("t")
            assert (len(topic.local), topic.count) == (3, 3)
            await publish(topic.led(2), 1, [b"k"])
            await topic.led(2).view_wait(None, 60)
            assert topic.led(2).look_up(b"k") is not None

    monkeypatch.setattr(Views, "floor", unread)
    trio.run(main)


@pytest.mark.parametrize("flaw", ["damaged", "stuck", "doubtful"])
def test_views_are_left_while_the_data_folder_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaw: str
) -> None:
    """Another folder stands in its place: everything is missing there, but it can be written to."""
    data, away, said = tmp_path / "data", tmp_path / "away", []
    looks, look = 0, Room.look

    async def counted(self: Room) -> None:
        nonlocal looks
        looks += 1
        await look(self)

    async def main() -> None:
        async with running(data, lambda event, **_: said.append(event)) as broker:
            partition = await filled(broker, "t", 1)
            file = min((data / "views").glob("*.sst"))
            data.rename(away)
            (data / "topics").mkdir(parents=True)
            await until(lambda: "data_folder_away" in said)
            setattr(broker.views, flaw, file if flaw == "doubtful" else "by this test")
            before = looks
            await until(lambda: looks >= before + 6)
            assert [each.name for each in data.rglob("*")] == ["topics"]
            assert getattr(broker.views, flaw)
            assert partition.look_up(KEYS[0]) is not None
            data.rename(tmp_path / "other")
            away.rename(data)
            await until(lambda: not getattr(broker.views, flaw))
            assert await looked_up(partition) == list(range(len(KEYS)))
        assert said.count("views_damaged") == (flaw == "damaged")

    monkeypatch.setattr(Room, "look", counted)
    trio.run(main)
