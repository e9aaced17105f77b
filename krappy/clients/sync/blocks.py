# Written by tests/clients/mirror.py from krappy/clients/aio/blocks.py: change that one, and run `make generate`.

"""Blocks of columns, for the blocking client."""

from __future__ import annotations

from typing import Any

from krappy.clients.blocks import ColumnBlock
from krappy.clients.runtime import run
from krappy.clients.snapshots import SnapshotPages


class Blocks:
    """The blocks of a read. It may be left before its end: the broker keeps no state for it."""

    def __init__(self, core: SnapshotPages[Any]) -> None:
        self._core = core

    def __iter__(self) -> Blocks:
        return self

    def __next__(self) -> ColumnBlock:
        block = run(self._core.block())
        if block is None:
            raise StopIteration
        return block

    def __del__(self) -> None:
        self._core.close()
