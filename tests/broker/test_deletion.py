"""What is left of a deleted topic after a kill on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
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
