"""The partitions of a read, and the leader of each, are those of the broker's image of the cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.topics.topic import Topic
from krappy.clients import admin
from krappy.clients.admin import TopicInfo
from krappy.clients.snapshots import KeyRange, Snapshot
from krappy.core.cluster.image import PartitionImage
from krappy.errors import NotLeader
from krappy.handlers.native.columns import open_snapshot
from krappy.handlers.native.topics import describe_topics
from krappy.server.session import Session
from krappy.spark import log_read, logs, table_read
from krappy.spark.options import parse
from krappy.spark.schema import spark_schema
from krappy.testing.sessions import native_session
from krappy.wire import messages as m
from tests.broker.engine import publish, running


class Asking:
    """The part of a client that plans reads, in a thread. It calls the handlers without a connection."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def describe(self, topic: str) -> TopicInfo:
        [found] = trio.from_thread.run(describe_topics, self._session, m.DescribeTopics([topic])).topics
        return admin._topic(found)

    def snapshot(self, topic: str, splits: int, **given: Any) -> Snapshot:
        found = trio.from_thread.run(open_snapshot, self._session, m.OpenSnapshot(topic, splits=splits))
        return Snapshot(found.snapshot, topic, dict(found.offsets), [KeyRange(*each) for each in found.ranges])


def planned(session: Session, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[int, int]], set[tuple[int, int]]]:
    """Splits, each with its partition and leader: of a read of the log, and of a read of the table."""
    for module in (log_read, table_read):
        monkeypatch.setattr(module, "client", lambda address: Asking(session))
    log = parse({"subscribe": "t"}, "log")
    table = parse({"subscribe": "t", "mode": "table", "minPartitions": "4"}, "log")
    parts: Any = log_read.LogReader(spark_schema(log.columns), log).partitions()
    splits: Any = table_read.TableReader(spark_schema(table.columns), table).partitions()
    return (
        [(each.partition, each.leader) for part in parts for each in part.parts],
        {(each.partition, piece.leader) for split in splits for piece in split.pieces for each in piece.ranges},
    )


def led_by(topic: Topic, *leaders: int) -> None:
    """Gives the image a partition for each of these leaders."""
    states = [(topic.image.partitions[0].state)._replace(leader=each) for each in leaders]
    topic.see(replace(topic.image, partitions=tuple(PartitionImage((each.leader,), each) for each in states)))


@trio_test
async def test_splits_have_the_leaders_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 2, {})
        for partition in topic.all_led():
            await publish(partition, 100, [b"%d" % number for number in range(100)])
        session = native_session(broker)
        mine = [(0, broker.id), (1, broker.id)]
        assert await trio.to_thread.run_sync(planned, session, monkeypatch) == (mine, set(mine))

        led_by(topic, 7, 8)
        log, _ = await trio.to_thread.run_sync(planned, session, monkeypatch)
        assert log == [(0, 7), (1, 8)]
        led_by(topic, 8, 8)  # one broker has the whole snapshot
        assert await trio.to_thread.run_sync(planned, session, monkeypatch) == ([(0, 8), (1, 8)], {(0, 8), (1, 8)})

        led_by(topic, broker.id, broker.id, 9)  # this broker has nothing of the third one
        [described] = (await describe_topics(session, m.DescribeTopics(["t"]))).topics
        assert described["partitions"][2] == {"partition": 2, "leader": 9, "replicas": (9,), "isr": (0,)}
        monkeypatch.setattr(logs, "PATIENCE", 0.3)
        with pytest.raises(NotLeader, match="t-2: no broker leads it that can be reached") as refused:
            await trio.to_thread.run_sync(planned, session, monkeypatch)
        assert refused.value.details == {"topic": "t", "partition": 2, "leader": 9}
