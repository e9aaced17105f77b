"""Which keys were written behind the last stable offset."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from trio.testing import trio_test

from krappy.broker.partition.undecided import Undecided
from krappy.records import batch
from tests.broker.engine import running


async def written(broker: Any, topic: str, *keys: bytes) -> Any:
    made, _ = await broker.create_topic(topic, 1, {})
    for key in keys:
        await made.led(0).publish(batch.encode([key], [b"v"], timestamps=1_000)).wait()
    return made.led(0)


@trio_test
async def test_what_is_not_committed_is_not_remembered(tmp_path: Path) -> None:
    """A leader that was deposed may lead again. Events that it alone had are not in the log any more."""
    async with running(tmp_path) as broker:
        before = await written(broker, "before", b"first", b"lost", b"lost")
        after = await written(broker, "after", b"first", b"other", b"another")
        replica = SimpleNamespace(
            log=before.log, start_offset=0, last_stable_offset=0, high_watermark=1, disk_limiter=before.disk_limiter
        )
        undecided = Undecided(cast("Any", replica))
        await undecided.refresh()
        assert undecided.holds(b"first")
        assert not undecided.holds(b"lost")
        replica.log, replica.high_watermark = after.log, 3
        await undecided.refresh()
        assert all(map(undecided.holds, (b"first", b"other", b"another")))
        assert not undecided.holds(b"lost")
