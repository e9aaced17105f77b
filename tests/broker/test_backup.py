"""Holding files for a backup: whom it makes wait, and whom not."""

from __future__ import annotations

from pathlib import Path

import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from krappy.broker.backup import Hold
from tests.broker.engine import running


@trio_test
async def test_topics_are_made_while_a_backup_waits_for_a_compaction(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        held: list[Hold] = []

        async def hold() -> None:
            held.append(await broker.hold_backup())

        async with trio.open_nursery() as nursery, broker.shrinking:  # as a compaction has it, for long
            nursery.start_soon(hold)
            await wait_all_tasks_blocked()
            assert broker.shrinking.statistics().tasks_waiting == 1
            await broker.create_topic("t", 1, {})
            await broker.alter_topic("t", {"retention.ms": 1_000}, 2)
            assert not held
        assert (held[0].folder / "topics" / "t-1").is_dir()
