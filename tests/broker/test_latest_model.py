"""Whoever reads `TOPIC@latest` ends with the table, wherever and whenever it began: histories by Hypothesis."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from krappy.broker.latest.ahead import Ahead
from tests.broker.engine import running
from tests.broker.latest import NEVER, Consumer, table, tables_of, write

KEYS = st.sampled_from("abcdefgh")
BATCH = st.lists(st.tuples(KEYS, st.none() | st.sampled_from("xyz")), min_size=1, max_size=6)
WHO = st.integers(0, 3)
STEP = st.one_of(
    st.tuples(st.just("write"), BATCH, st.sampled_from([0, 0, 4])),
    st.tuples(st.just("fetch"), WHO, st.integers(1, 4)),
    st.tuples(st.just("fetch"), WHO, st.integers(1, 4)),
    st.tuples(st.just("reconnect"), WHO),
    st.tuples(st.just("again"), WHO),
    st.tuples(st.just("skip"), WHO, st.integers(0, 40)),
    st.tuples(st.just("clean")),
    st.tuples(st.just("ahead")),
    st.tuples(st.just("expire"), st.integers(0, 100)),
    st.tuples(st.just("restart")),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=40), compacted=st.booleans(), narrow=st.booleans(), ahead=st.booleans())
def test_every_reader_ends_with_the_table(
    small: None, steps: list[Any], compacted: bool, narrow: bool, ahead: bool
) -> None:
    config = {"segment.bytes": "200", "retention.ms": "-1", "delete.retention.ms": str(NEVER)}
    config["latest.ahead.enable"] = str(ahead)
    if compacted:
        config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    consumers = [Consumer(room) for room in (1, 60, 300, 1 << 20)]
    left = list(steps)

    async def life(folder: Path) -> None:
        async with running(folder) as broker:
            if "t" not in broker.topics:
                await broker.create_topic("t", 1, config)
            partition = broker.topic("t").led(0)
            tables = tables_of(broker, room=200 if narrow else 1 << 20)
            maker = Ahead(broker, tables)
            while left:
                step = left.pop(0)
                match step[0]:
                    case "write":
                        await write(partition, *step[1], codec=step[2])
                    case "fetch":
                        for _ in range(step[2]):
                            await consumers[step[1]].fetch(tables, partition)
                    case "reconnect":
                        consumers[step[1]].reconnect()
                    case "again":  # from the start, with what it knows
                        consumers[step[1]].position = partition.start_offset
                        consumers[step[1]].began = min(consumers[step[1]].began, partition.start_offset)
                        consumers[step[1]].reading.told_earliest(partition.start_offset)
                    case "skip":  # and another application that starts from nothing, in the middle
                        at = min(partition.start_offset + step[2], partition.last_stable_offset)
                        consumers[step[1]] = Consumer(consumers[step[1]].room)
                        consumers[step[1]].position = consumers[step[1]].began = at
                    case "clean" if compacted:
                        await broker.housekeeper.clean(partition, broker.now_ms())
                    case "ahead":
                        await maker.look()
                    case "expire" if not compacted:
                        await partition.view_wait(None, 30)
                        before = min(step[1], partition.last_stable_offset)
                        await partition.delete_records(before)
                    case "restart":
                        for consumer in consumers:
                            consumer.reconnect()
                        return
            want = await table(broker, partition)
            for consumer in consumers:
                await consumer.finish(tables, partition)
                held = {key: row for key, row in consumer.held.items() if row[0] >= partition.start_offset}
                assert held == {key: row for key, row in want.items() if row[0] >= consumer.began}
            anew = Consumer(100)
            anew.position = partition.start_offset
            anew.reading.told_earliest(partition.start_offset)
            await anew.finish(tables, partition)
            assert anew.held == want
            offsets = [row[0] for row in anew.rows]
            assert offsets == sorted(set(offsets))
            if not ahead:
                assert set(offsets) == {row[0] for row in want.values()}, "nothing else"

    async def lives() -> None:
        with tempfile.TemporaryDirectory() as folder, trio.fail_after(60):
            await life(Path(folder))
            while left:
                await life(Path(folder))
            await life(Path(folder))

    trio.run(lives)
