"""The view follows when more is published than is kept in memory for it: what was not kept is read from the log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from krappy.broker.partition import applier
from krappy.broker.partition.applier import Applier
from krappy.broker.partition.strays import Strays, ViewStrays
from krappy.entries.entry import entry_offset
from krappy.measures import StoreMeasures
from krappy.records import batch
from krappy.store.views import Views
from tests.broker import engine


def test_batches_that_were_not_kept_leave_no_gap(tmp_path: Path) -> None:
    """Offsets 5 to 9 were too much to keep: what is read from memory ends before them, even if batches behind them are
    kept."""
    views = Views(tmp_path / "views")
    config = SimpleNamespace(view=False)
    partition: Any = SimpleNamespace(
        views=views, number=1, index=0, high_watermark=15, last_stable_offset=15, config=config
    )
    partition.measures = StoreMeasures()
    columns = batch.decode(batch.encode([b"a", b"b", b"c", b"d", b"e"], [b"v"] * 5, timestamps=1))

    async def apply() -> int:
        folding = Applier(partition, ViewStrays(partition, Strays({}), 0), 0)
        folding._fresh.extend([(0, 5, columns, 100, 0), (10, 5, columns, 100, 0)])
        await folding._apply_fresh()
        return folding.applied

    assert trio.run(apply) == 5
    found = views.get(1, b"e")
    assert found is not None
    assert entry_offset(found) == 4
    views.close()


@pytest.mark.parametrize("kept", [True, False])
def test_each_event_counts_however_few_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    """Else events of one key would be folded again for minutes after a crash. This holds for events from memory and
    from the log."""
    if not kept:
        monkeypatch.setattr(applier, "KEPT", 0)

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            await engine.publish(topic.led(0), 300, [b"k"] * 300)
            await broker.wait_for_views([topic.led(0)])
            assert len(broker.views._unwritten) == 1
            assert broker.views._unwritten.folded == 300

    trio.run(main)


def test_batches_without_keys_behind_an_open_transaction_are_not_kept_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applier, "KEPT", 10 * applier.PLACE)

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            partition = topic.led(0)
            partition._stable = 0
            monkeypatch.setattr(partition.stability, "first_open", lambda end: 0)
            for _ in range(50):
                await engine.publish(partition, 1)
            await engine.publish(partition, 1, [b"k"])
            assert len(partition.applier._fresh) == 10
            monkeypatch.undo()
            await engine.publish(partition, 1)
            await broker.wait_for_views([partition])
            assert partition.look_up(b"k") is not None, "what was not kept is read from the log"
            assert partition.applier._kept == 0

    trio.run(main)


def test_a_broker_that_stops_leaves_a_long_fold_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps, begun = Applier._step, 0, trio.Event()

    async def step_at_the_end(self: Applier) -> None:
        nonlocal steps
        begun.set()
        while not self._closing:
            await trio.lowlevel.checkpoint()
        steps += 1
        await step(self)

    async def stop_early() -> None:
        monkeypatch.setattr(applier, "PATIENCE", 0.0)
        monkeypatch.setattr(applier, "READ", 100)
        monkeypatch.setattr(applier, "KEPT", 0)  # all of it is read from the log
        monkeypatch.setattr(Applier, "_step", step_at_the_end)
        async with engine.running(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            for number in range(40):
                await engine.publish(topic.led(0), 1, [b"%d" % number])
            await begun.wait()
        assert steps == 1
        assert 0 < topic.led(0).applied < 40

    async def go_on() -> None:
        monkeypatch.undo()
        async with engine.running(tmp_path) as broker:
            partition = broker.topic("t").led(0)
            await broker.wait_for_views([partition])
            assert all(partition.look_up(b"%d" % number) for number in range(40))

    trio.run(stop_early)
    trio.run(go_on)
