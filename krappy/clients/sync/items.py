# Written by tests/clients/mirror.py from krappy/clients/aio/items.py: change that one, and run `make generate`.

"""What is read item by item, for the blocking client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from krappy.clients.blocks import ColumnBlock
from krappy.clients.runtime import Work, run
from krappy.clients.snapshots import SnapshotPages

T = TypeVar("T")


class Items(Generic[T]):
    """Items that come one after the other: `for item in items`."""

    def __init__(self, following: Callable[[], Work[T | None]], keep: object = None) -> None:
        """`following` gives the next item, None at the end. `keep` must not be closed before this ends."""
        self._following = following
        self._keep = keep

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        following = self._following
        item = run(following())
        if item is None:
            raise StopIteration
        return item


class Blocks(Items[ColumnBlock]):
    """The blocks of a read. It may be left before its end: the broker keeps no state for it."""

    def __init__(self, core: SnapshotPages[Any]) -> None:
        super().__init__(core.block)
        self._core = core

    def __del__(self) -> None:
        self._core.abandon()
