"""Lookups let others have their turn, and meanwhile the view that they look into goes, or is begun anew.

If they can't know about a key any more, they do not call it absent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy import arrow_layout
from krappy.broker.broker import LocalBroker
from krappy.broker.partition.viewed import Viewed
from krappy.core.security.operations import Grant
from krappy.errors import KrappyError, RecordTooLarge, UnknownTopic, ViewDisabled
from krappy.handlers.native import columns, table
from krappy.partitioner import partition_for
from krappy.records import batch, codecs
from krappy.store.view_snapshot import ViewSnapshot
from krappy.store.views import Views
from krappy.types import ABSENT
from krappy.wire import messages as m
from krappy.wire.messages import Answer
from tests.broker.engine import publish, running

COUNT = 3000
KEYS = [b"%06d" % number for number in range(COUNT)]
Change = Callable[[LocalBroker], Awaitable[None]]


async def delete(broker: LocalBroker) -> None:
    await broker.delete_topic("t")


async def make_anew(broker: LocalBroker) -> None:
    await broker.delete_topic("t")
    await broker.create_topic("t", 2, {})


async def turn_off(broker: LocalBroker) -> None:
    await broker.alter_topic("t", {"view.enable": "false"}, None)


async def turn_off_and_on(broker: LocalBroker) -> None:
    await turn_off(broker)
    await broker.alter_topic("t", {"view.enable": "true"}, None)


CHANGES: dict[Change, type[KrappyError] | None] = {
    delete: UnknownTopic,
    make_anew: UnknownTopic,
    turn_off: ViewDisabled,
    turn_off_and_on: None,
}


class Session:
    """What a handler sees of a session. When the handler waits for the first time, `change` happens."""

    def __init__(self, broker: LocalBroker, change: Change | None) -> None:
        self.broker = broker
        self.access = broker.access()
        self.ready = False
        self.answer_bytes = 16 << 20
        self._change = change

    async def pause(self) -> None:
        change, self._change = self._change, None
        if change is not None:
            await change(self.broker)

    async def writable(self) -> None:
        await self.pause()

    def reading(self, limit: int) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def standing_on(self, grants: Sequence[Grant]) -> AbstractContextManager[None]:
        return nullcontext()

    @asynccontextmanager
    async def answering(self, limit: int) -> AsyncIterator[int]:
        yield limit


@asynccontextmanager
async def filled(data: Path, *, scattered: bool) -> AsyncIterator[LocalBroker]:
    async with running(data) as broker:
        topic, _ = await broker.create_topic("t", 2, {})
        for partition in topic.all_led():
            some = [key for key in KEYS if (partition_for(key, 2) == partition.index) is not scattered]
            await publish(partition, len(some), some)
            assert await partition.view_wait(None, 30)
        assert topic.scattered is scattered
        broker.views.write()  # so that lookups are RocksDB's
        yield broker


async def answered(found: Any) -> Any:
    return found if isinstance(found, Answer) else await found


async def get(session: Any) -> list[bool]:
    partition = session.broker.topic("t").led(0)
    await publish(partition, 1, [b"another"])  # the view does not have it yet
    home = next(key for key in KEYS if partition_for(key, 2) == 0)
    answer = await answered(table.get(session, m.Get("t", home)))
    return [answer.entry != [table.NIL]]


async def multi_get(session: Any) -> list[bool]:
    answer = await answered(table.multi_get(session, m.MultiGet("t", KEYS)))
    return [entry != table.NIL for entry in answer.entries]


async def get_columns(session: Any) -> list[bool]:
    held = arrow_layout.binary(KEYS)
    answer = await columns.get_columns(session, m.GetColumns("t", held.offsets, held.data))
    return [answer.found is None] * COUNT


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("look_up", [get, multi_get, get_columns])
@trio_test
async def test_what_goes_in_the_middle_is_not_absent(
    tmp_path: Path, look_up: Callable[[Any], Awaitable[list[bool]]], scattered: bool, change: Change
) -> None:
    async with filled(tmp_path, scattered=scattered) as broker:
        session = Session(broker, change)
        expected = CHANGES[change]
        if expected is None:
            assert all(await look_up(session))
        else:
            with pytest.raises(expected):
                await look_up(session)


@pytest.mark.parametrize("scattered", [False, True])
@trio_test
async def test_a_key_is_looked_up_in_one_partition_unless_keys_are_scattered(
    tmp_path: Path, scattered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table whose keys all stand where the partitioner puts them costs no look into other partitions."""
    looked, crossed = list[int](), list[int]()

    def counting(views: Views, asked: bytes | list[bytes]) -> Any:
        looked.append(len(asked) if isinstance(asked, list) else 1)
        return look(views, asked)

    def crossing(snapshot: ViewSnapshot, number: int, keys: Sequence[bytes]) -> Any:
        crossed.append(len(keys))
        return across(snapshot, number, keys)

    each = 2 if scattered else 1
    held = arrow_layout.binary(KEYS)
    async with filled(tmp_path, scattered=scattered) as broker:
        session: Any = Session(broker, None)
        look, across = Views._get, ViewSnapshot.shared
        monkeypatch.setattr(Views, "_get", counting)
        monkeypatch.setattr(ViewSnapshot, "shared", crossing)
        for count, ask in (
            (1, lambda: table.get(session, m.Get("t", KEYS[0]))),
            (COUNT, lambda: table.multi_get(session, m.MultiGet("t", KEYS))),
            (COUNT, lambda: columns.get_columns(session, m.GetColumns("t", held.offsets, held.data))),
        ):
            await answered(ask())
            assert sum(looked) == each * count
            looked.clear()
        scan = broker.scan(broker.topic("t").all_led(), None, None, None, tombstones=False, whole=True)
        while not (await scan.page(COUNT, 1 << 20)).last:
            pass
        assert sum(crossed) == (COUNT if scattered else 0)


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@trio_test
async def test_large_entries_are_not_looked_up_together(
    tmp_path: Path, count: int, scattered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight entries of 31 MiB took 770 MiB before anybody knew that they were too much for an answer."""
    size, read = 5 << 20, list[int]()

    def counting(views: Views, asked: bytes | list[bytes]) -> Any:
        found = look(views, asked)
        read.append(sum(map(len, filter(None, found if isinstance(asked, list) else [found]))))
        return found

    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", count, {})
        keys = [key for key in KEYS if partition_for(key, count) == 0][:8]
        partition = topic.led(count - 1 if scattered else 0)
        for key in keys:
            await partition.publish(batch.encode([key], [bytes(size)], timestamps=1, codec=codecs.ZSTD)).wait()
        assert await partition.view_wait(None, 30)
        broker.views.write()
        session: Any = Session(broker, None)
        held = arrow_layout.binary(keys)
        look = Views._get
        monkeypatch.setattr(Views, "_get", counting)
        for ask in (
            lambda: table.multi_get(session, m.MultiGet("t", keys)),
            lambda: columns.get_columns(session, m.GetColumns("t", held.offsets, held.data)),
        ):
            with pytest.raises(RecordTooLarge):
                await answered(ask())
            assert 0 < sum(read) < table.MAX_ANSWER + 2 * size
            read.clear()
        heads = await columns.get_columns(session, m.GetColumns("t", held.offsets, held.data, columns=["offset"]))
        assert (heads.rows, heads.found) == (8, None)
        assert max(read) < 2 * size


@pytest.mark.parametrize("on", [False, True])
@trio_test
async def test_views_that_are_turned_off_or_on_one_after_the_other(
    tmp_path: Path, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While some partitions have a view and others do not, a key that stands in another partition is not called absent.
    When views are turned on, all partitions get theirs at once: none has one while old entries are dropped."""
    drop, reached, gate = Viewed._drop, trio.Event(), trio.Event()

    async def slow(partition: Viewed) -> None:
        if partition.index == 1:
            reached.set()
            await gate.wait()
        await drop(partition)

    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 3, {})
        home, stands = (0, 2) if on else (2, 0)  # turning off goes by number, so that `home` still has a view then
        key = next(key for key in KEYS if partition_for(key, 3) == home)
        await publish(topic.led(stands), 1, [key])
        if on:
            await turn_off(broker)
        monkeypatch.setattr(Viewed, "_drop", slow)
        session: Any = Session(broker, None)
        conditional = batch.encode([key], [b"new"], timestamps=2_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.alter_topic, "t", {"view.enable": "true" if on else "false"}, None)
            await reached.wait()
            try:
                if not on:
                    assert await topic.led(home).view_wait(None, 30)
                with pytest.raises(ViewDisabled):
                    await answered(table.get(session, m.Get("t", key)))
                with pytest.raises(ViewDisabled):
                    await topic.led(home).publish(conditional, expect=[(0, ABSENT)]).wait()
            finally:
                gate.set()
        if on:
            got = await answered(table.get(session, m.Get("t", key)))
            assert (got.partition, got.entry != [table.NIL]) == (stands, True)
