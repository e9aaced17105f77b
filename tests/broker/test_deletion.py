"""What is left of a deleted topic after a kill on the way; and how its positions in groups go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker import deletion
from krappy.broker.broker import Broker
from krappy.broker.topic import Topic
from krappy.core.kafka.offset import Offset
from tests.broker.engine import as_killed, publish, running


@trio_test
async def test_groups_begin_anew_in_a_topic_that_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position in the old topic would pass over the first events of the new one."""
    close = deletion.close

    async def killed_before(broker: Broker, topic: Topic) -> None:
        as_killed(tmp_path / "data", tmp_path / "killed")
        await close(broker, topic)

    monkeypatch.setattr(deletion, "close", killed_before)
    async with running(tmp_path / "data") as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.partition(0), 5)
        positions = broker.kafka_groups.offsets
        found = positions.check("kafka", "", -1, None)
        await positions.commit(found, {("t", 0): Offset(5, -1, "", broker.clock.steady_ms())})
        await broker.groups.commit("native", [("t", 0, 5)])
        await broker.delete_topic("t")
    for folder in ("data", "killed"):
        async with running(tmp_path / folder) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            await publish(topic.partition(0), 9)
            kafka = broker.kafka_groups.get("kafka")
            assert kafka is None or not kafka.offsets
            assert broker.groups.positions("native") == []


@trio_test
async def test_the_positions_of_very_many_groups_are_forgotten_with_turns_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        await broker.create_topic("t", 1, {})
        for number in range(500):
            await broker.groups.commit(f"native{number}", [("t", 0, 0)])
            group = broker.kafka_groups.make(f"kafka{number}")
            await broker.kafka_groups.offsets.commit(group, {("t", 0): Offset(0, -1, "", 0)})
        done = most = 0

        def counted(run: Callable[..., None]) -> Callable[..., None]:
            def once(*given: Any, **more: Any) -> None:
                nonlocal done
                done += 1
                run(*given, **more)

            return once

        monkeypatch.setattr(broker.groups._store, "delete_states", counted(broker.groups._store.delete_states))
        monkeypatch.setattr(broker.kafka_groups.store, "write", counted(broker.kafka_groups.store.write))
        async with trio.open_nursery() as nursery:

            async def others() -> None:
                nonlocal most
                while True:
                    before = done
                    await trio.lowlevel.checkpoint()
                    most = max(most, done - before)

            nursery.start_soon(others)
            await broker.delete_topic("t")
            nursery.cancel_scope.cancel()
        assert done == 1000
        assert most <= 200  # who runs first in a round of the loop is left to chance
        assert not any(broker.groups.positions(f"native{number}") for number in range(500))
        assert not any(broker.kafka_groups.groups[f"kafka{number}"].offsets for number in range(500))
