"""What keeps house: several parts beside each other, for as long as the broker lives."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from krappy.broker import meta_sync
from krappy.broker.tables.view_keeper import ViewKeeper
from krappy.broker.upkeep.housekeeping import Housekeeper
from krappy.broker.upkeep.room import Room
from tests.broker.engine import running, until


@pytest.mark.parametrize("kind", [Housekeeper, ViewKeeper, Room])
@trio_test
async def test_a_part_that_ends_by_a_mistake_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    """Else nobody would open the catalog anew, let events expire or look at the room on the disk."""
    said: list[str] = []

    async def mistaken(part: object) -> None:
        await trio.sleep(0)
        raise OSError("a mistake")

    monkeypatch.setattr(kind, "watch" if kind is Room else "run", mistaken)
    monkeypatch.setattr(meta_sync, "LOOK_S", 0.01)
    async with running(tmp_path, lambda event, **_: said.append(event), durability="fsync") as broker:
        await until(lambda: "internal_error" in said)
        broker.meta.failure = "the disk refused"
        await until(lambda: not broker.meta.failure)
        await broker.create_topic("t", 1, {})
    assert said.count("internal_error") == 1
