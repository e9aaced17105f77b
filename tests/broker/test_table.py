"""Scans of a broker's tables, and lookups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.tables.table import STRETCH, TableScan
from krappy.entries.entry import key_of_bin
from krappy.errors import KrappyError, RequestTimeout, UnknownHandle, UnknownTopic, ViewDisabled
from krappy.records import batch
from tests.broker.engine import publish, running

MANY = 3 * STRETCH + 1


async def scan_of_tombstones(broker: LocalBroker) -> TableScan:
    """A scan of a table with very many deleted keys, and one key behind them that has a value."""
    partition = (await broker.create_topic("t", 1, {}))[0].led(0)
    keys = [b"%09d" % number for number in range(MANY)]
    await partition.publish(batch.encode(keys, [None] * MANY, timestamps=1)).wait()
    await partition.publish(batch.encode([b"z"], [b"there"], timestamps=1)).wait()
    assert await partition.view_wait(None, 60)
    return broker.scan([partition], None, None, None, tombstones=False)


@trio_test
async def test_others_have_their_turn_while_a_scan_passes_over_tombstones(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, trio.open_nursery() as nursery:
        scan = await scan_of_tombstones(broker)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(count)
        page = await scan.page(10, 1 << 20)
        assert (len(page.items), page.last) == (2, True)
        assert turns  # without: none at all
        nursery.cancel_scope.cancel()


@trio_test
async def test_a_scan_that_is_closed_meanwhile_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, trio.open_nursery() as nursery:
        scan = await scan_of_tombstones(broker)

        async def close() -> None:
            scan.close()

        nursery.start_soon(close)
        with pytest.raises(UnknownHandle):
            await scan.page(10, 1 << 20)
        with pytest.raises(UnknownHandle):
            await scan.page(10, 1 << 20)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda broker: broker.delete_topic("t"), UnknownTopic),
        (lambda broker: broker.alter_topic("t", {"view.enable": False}, None), ViewDisabled),
    ],
    ids=["deleted", "no view"],
)
@trio_test
async def test_a_scan_whose_table_went_meanwhile_says_so(
    tmp_path: Path, change: Callable[[LocalBroker], Awaitable[None]], expected: type[KrappyError]
) -> None:
    """It does not say that the disk has failed: a client would then try again for ever."""
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 3, [b"a", b"b", b"c"])
        assert await topic.led(0).view_wait(None, 60)
        scan = broker.scan(topic.all_led(), None, None, None, tombstones=False)
        await scan.page(1, 1 << 20)
        await change(broker)
        with pytest.raises(expected):
            await scan.page(1, 1 << 20)


@trio_test
async def test_a_view_that_is_turned_on_answers_once_it_is_folded(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, {"view.enable": False}))[0].led(0)
        await publish(partition, 1, [b"k"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.alter_topic, "t", {"view.enable": True}, None)
            ready = False
            while not ready:
                with suppress(ViewDisabled):
                    ready = partition.view_ready(None)
                    assert not ready or partition.look_up(b"k") is not None
                await trio.lowlevel.checkpoint()


@trio_test
async def test_pages_of_a_scan_are_filled_though_much_is_left_out(tmp_path: Path) -> None:
    """Whatever the page's size is, and wherever the deleted keys lie."""
    chance = Random(7)
    async with running(tmp_path) as broker:
        topic = (await broker.create_topic("t", 2, {}))[0]
        held: list[list[bytes]] = []
        for index in range(2):
            keys: list[bytes | None] = [b"%05d" % number for number in range(3_000)]
            values = [chance.choice([None, None, b"v"]) if number > 500 else None for number in range(3_000)]
            partition = topic.led(index)
            await partition.publish(batch.encode(keys, values, timestamps=1)).wait()
            assert await partition.view_wait(None, 60)
            held.append([key for key, value in zip(keys, values, strict=True) if key and value])
        for size in (1, 7, 500, 10_000):
            scan = broker.scan(list(topic.local.values()), None, None, None, tombstones=False)
            found: list[list[bytes]] = [[], []]
            last = False
            while not last:
                page = await scan.page(size, 1 << 20)
                last = page.last
                found[page.partition] += map(key_of_bin, page.items[::2])
                ends = page.items and found[page.partition][-1] == held[page.partition][-1]
                assert len(page.items) == 2 * size or ends or last
            assert found == held


@trio_test
async def test_who_waits_for_a_view_that_is_behind_is_told_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        with monkeypatch.context() as held:
            held.setattr("krappy.broker.tables.table.VIEW_PATIENCE", 0.01)
            held.setattr(broker.views, "busy", lambda: True)
            await publish(partition, 1, [b"k"])
            with pytest.raises(RequestTimeout, match="of waiting it is at offset 0 of 1"):
                await broker.wait_for_views([partition])
            with pytest.raises(RequestTimeout, match="no event with offset 1 yet"):
                await broker.wait_for_views([partition], {0: 1})
        await broker.wait_for_views([partition], {0: 0})
