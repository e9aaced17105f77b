"""A scan gives its place back when it ends, however it ends: so a connection may open any number of scans
in its life."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.tables.table import SCAN_IDLE_MS
from krappy.errors import ShuttingDown, StorageError, UnknownHandle
from krappy.handlers.native.table import scan
from krappy.server.session import Session
from krappy.store.view_snapshot import ViewSnapshot
from krappy.testing.sessions import native_session
from krappy.wire import messages as m
from tests.broker.engine import publish, running

FIRST = m.Scan("t", max_entries=1)


@asynccontextmanager
async def asked(data: Path) -> AsyncIterator[tuple[LocalBroker, Session]]:
    async with running(data) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 3, [b"a", b"b", b"c"])
        session = native_session(broker)
        yield broker, session
        assert not session.handles
        assert not session._allowance.used
        assert not broker.scans


@trio_test
async def test_at_its_last_page(tmp_path: Path) -> None:
    async with asked(tmp_path) as (_, session):
        page = await scan(session, FIRST)
        while page.cursor is not None:
            assert list(session.handles) == [page.cursor]
            page = await scan(session, m.Scan(cursor=page.cursor, max_entries=1))


@trio_test
async def test_when_nobody_asks_for_its_next_page(tmp_path: Path) -> None:
    async with asked(tmp_path) as (broker, session):
        cursors = [(await scan(session, FIRST)).cursor for _ in range(3)]
        assert list(session.handles) == cursors
        for each in broker.scans:
            each.used_ms -= SCAN_IDLE_MS + 1
        broker.housekeeper._close_idle_scans()
        with pytest.raises(UnknownHandle, match="nobody asked for its next page in time"):
            await scan(session, m.Scan(cursor=cursors[0]))


@trio_test
async def test_whoever_is_answered_while_the_broker_stops_is_told_so(tmp_path: Path) -> None:
    """Its client asks again: the scan was neither left alone nor unknown."""
    async with asked(tmp_path) as (_, session):
        page = await scan(session, FIRST)
        session.close()
        for request in (FIRST, m.Scan(cursor=page.cursor, max_entries=1)):
            with pytest.raises(ShuttingDown):
                await scan(session, request)


@trio_test
async def test_by_unregister_or_the_end_of_the_connection(tmp_path: Path) -> None:
    async with asked(tmp_path) as (_, session):
        first, _ = [(await scan(session, FIRST)).cursor for _ in range(2)]
        assert first is not None
        session.remove(first)
        assert len(session.handles) == session._allowance.used == 1
        session.close()


@trio_test
async def test_when_its_first_page_can_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object, **__: object) -> None:
        raise StorageError("a block is damaged")

    monkeypatch.setattr(ViewSnapshot, "rows", damaged)
    async with asked(tmp_path) as (_, session):
        with pytest.raises(StorageError, match="damaged"):
            await scan(session, FIRST)
