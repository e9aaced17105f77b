"""Blocks of columns, for the async client."""

from __future__ import annotations

from typing import Any

from krappy.clients.blocks import ColumnBlock
from krappy.clients.snapshots import SnapshotPages


class Blocks:
    """The blocks of a read. It may be left before its end: the broker keeps no state for it."""

    def __init__(self, core: SnapshotPages[Any]) -> None:
        self._core = core

    def __aiter__(self) -> Blocks:
        return self

    async def __anext__(self) -> ColumnBlock:
        block = await self._core.block()
        if block is None:
            raise StopAsyncIteration
        return block

    def __del__(self) -> None:
        self._core.close()
