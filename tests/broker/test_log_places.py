"""Logs whose folders are away are found; logs that are not in use any more are nobody's concern."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from krappy.broker.upkeep.log_places import LogPlaces


class Away:
    """A log whose folder is away."""

    def __init__(self) -> None:
        self.broken = ""
        self.is_in_place = False

    def refuse(self, why: str) -> None:
        self.broken = why


class Partition:
    end_offset = 0

    def __init__(self, log: Away, tell: Callable[[Exception], None]) -> None:
        self.log = log
        self.commit = SimpleNamespace(tell=tell)


@pytest.mark.parametrize("how", ["moved", "replaced", "deleted"])
def test_only_a_log_in_use_is_told_of(how: str) -> None:
    log = Away()
    told: list[Exception] = []
    partition = Partition(log, told.append)
    partitions = [partition]

    async def meanwhile() -> None:
        if how == "replaced":
            partition.log = Away()
        elif how == "deleted":
            partitions.clear()

    runtime: Any = SimpleNamespace(
        topics=SimpleNamespace(local=lambda: iter(partitions)), room=SimpleNamespace(look=meanwhile)
    )

    async def looks() -> None:
        places = LogPlaces(runtime)
        await places._look()
        partition.end_offset = 1  # it has taken an event
        await places._look()

    trio.run(looks)
    assert bool(told) is bool(log.broken) is (how == "moved")
