"""Logs whose folders are away are found; logs that are not in use any more are nobody's concern."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.upkeep.log_places import AT_ONCE, LogPlaces


class Away:
    """A log whose folder is away."""

    def __init__(self) -> None:
        self.broken = ""

    @property
    def is_in_place(self) -> bool:
        return False

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


@trio_test
async def test_a_look_that_fails_ends_neither_the_next_look_nor_housekeeping() -> None:
    class Failing(Away):
        looks = 0

        @property
        def is_in_place(self) -> bool:
            self.looks += 1
            raise ValueError("a bug")

    log, reported = Failing(), list[str]()
    partition = Partition(log, lambda _: None)
    runtime: Any = SimpleNamespace(
        topics=SimpleNamespace(local=lambda: iter([partition])), report=lambda event, **_: reported.append(event)
    )
    with trio.move_on_after(1.2):
        await LogPlaces(runtime).run()
    assert reported == ["internal_error"]  # at the first look; it has not grown since
    assert log.looks == 1


@trio_test
async def test_of_very_many_logs_some_are_looked_at_each_time_and_all_in_the_end() -> None:
    class InPlace(Away):
        looks = 0

        @property
        def is_in_place(self) -> bool:
            self.looks += 1
            return True

    logs = [InPlace() for _ in range(2 * AT_ONCE + 1)]
    partitions = [Partition(log, lambda _: None) for log in logs]
    runtime: Any = SimpleNamespace(topics=SimpleNamespace(local=lambda: iter(partitions)))
    places = LogPlaces(runtime)
    for looked_at in (AT_ONCE, 2 * AT_ONCE, len(logs)):
        await places._look()
        assert sum(log.looks for log in logs) == looked_at
    assert all(log.looks == 1 for log in logs)
