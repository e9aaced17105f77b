"""Whoever asks may hang up at any moment: what was asked for is then done as a whole, or not at all.

Each operation is run on a fresh broker and cancelled where it waits for the first time, the second time and so on,
until it comes to its end. What is to be seen afterwards is what was before, or what is there when nobody hangs up; and
the broker goes on: the same operation, asked again, and a restart show the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from krappy.broker.broker import LocalBroker
from krappy.core.kafka.faults import Refused
from krappy.core.kafka.offset import Offset
from krappy.errors import KrappyError
from tests import schedules
from tests.broker.engine import publish, running
from tests.broker.staged import HOUR, known, staged
from tests.broker.transactional import Producer
from tests.long import some

MOST = 400  # times that an operation waits
PARTITIONS = 3


class Asked(NamedTuple):
    """`seen`: what the broker shows of it, to be compared."""

    ask: Callable[[LocalBroker, Any], Awaitable[Any]]
    seen: Callable[[LocalBroker], Any]
    prepare: Callable[[LocalBroker], Awaitable[Any]] | None = None
    kept: bool = True  # whether a restart shows the same


def topics(broker: LocalBroker) -> Any:
    """The topics, which are the same in the catalog and in each partition that runs."""
    found = {}
    for stored in broker.catalog.list():
        topic = broker.topics[stored.name]
        assert topic.given == stored.config
        assert [partition.number for partition in topic.local.values()] == stored.numbers
        assert all(partition.config == topic.config == partition.log.config for partition in topic.local.values())
        assert all(partition.applier.failed is None for partition in topic.local.values())
        found[stored.name] = topic.given, len(topic.local), [p.start_offset for p in topic.local.values()]
    assert list(found) == sorted(broker.topics)
    return found


def groups(broker: LocalBroker) -> Any:
    return {
        each["group"]: (each["kind"], broker.groups.positions(each["group"])) for each in broker.groups.each_group()
    }


def settings(broker: LocalBroker) -> Any:
    assert {topic.inherited.get("retention.ms") for topic in broker.topics.values()} == {
        broker.dynamic.topic_defaults.get("retention.ms")
    }
    return dict(broker.dynamic.held("")), topics(broker)


def job(broker: LocalBroker) -> Any:
    found = known(broker, "j")
    state = None if found is None else str(found.state)
    return "decided" if state in ("Publishing", "Marking", "Committed") else state


def transaction(broker: LocalBroker) -> Any:
    found = broker.transactions.find("x")
    stage = None if found is None else str(found.stage)
    return "decided" if stage in ("PrepareCommit", "CompleteCommit") else stage


async def topic(broker: LocalBroker) -> Any:
    made, _ = await broker.create_topic("t", PARTITIONS, {})
    for partition in made.local.values():
        await publish(partition, 4, [b"a", b"b", b"c", b"d"])
    await broker.wait_for_views(made.all_led())
    return made


async def positions(broker: LocalBroker) -> Any:
    await topic(broker)
    await broker.groups.commit("g", [("t", index, 1) for index in range(PARTITIONS)])


async def kafka_positions(broker: LocalBroker) -> Any:
    await topic(broker)
    group = broker.kafka_groups.offsets.check("g", "", -1, None)
    now = broker.clock.steady_ms()
    await broker.kafka_groups.offsets.commit(
        group, {("t", index): Offset(1, -1, "", now) for index in range(PARTITIONS)}
    )


async def sealed(broker: LocalBroker) -> Any:
    await topic(broker)
    return await staged(broker, "j", "a", "b")


async def begun(broker: LocalBroker) -> Any:
    await topic(broker)
    producer = await Producer(broker, "x").init()
    await producer.write((b"k", b"v"))
    return producer


async def hold(broker: LocalBroker, _: Any) -> None:
    (await broker.hold_backup()).close()


def held(broker: LocalBroker) -> Any:
    return topics(broker), broker.decisions._closed


def gone_below(broker: LocalBroker) -> Any:
    """The topics, with the start of each partition: a deletion in one partition is whole, one in several is not."""
    return topics(broker)


OFF = {"view.enable": "false"}
OPERATIONS = {
    "create": Asked(lambda broker, _: broker.create_topic("t", PARTITIONS, {"retention.ms": "1000000"}), topics),
    "delete": Asked(lambda broker, _: broker.delete_topic("t"), lambda b: (topics(b), groups(b)), positions),
    "alter": Asked(lambda broker, _: broker.alter_topic("t", OFF, None), topics, topic),
    "add partitions": Asked(lambda broker, _: broker.alter_topic("t", None, PARTITIONS + 2), topics, topic),
    "change defaults": Asked(
        lambda broker, _: broker.dynamic.alter("", {"log.retention.ms": "77777"}), settings, topic
    ),
    "delete records": Asked(lambda _, made: made.led(0).delete_records(2), gone_below, topic),
    "delete a group": Asked(lambda broker, _: broker.groups.delete("g"), groups, positions),
    "delete a Kafka group": Asked(lambda broker, _: broker.groups.delete("g"), groups, kafka_positions),
    "reset a group": Asked(lambda b, _: b.groups.reset("g", "t", None, "timestamp", 0), groups, positions),
    "reset a Kafka group": Asked(lambda b, _: b.groups.reset("g", "t", None, "timestamp", 0), groups, kafka_positions),
    "commit positions": Asked(
        lambda broker, _: broker.groups.commit("g", [("t", index, 2) for index in range(PARTITIONS)]), groups, topic
    ),
    "change a group's settings": Asked(
        lambda broker, _: broker.kafka_groups.settings.alter("g", {"consumer.session.timeout.ms": "50000"}),
        lambda broker: dict(broker.kafka_groups.settings.held("g")),
    ),
    "hold a backup": Asked(hold, held, topic),
    "commit a job": Asked(lambda broker, token: broker.staging.commit("j", [token], 0), job, sealed),
    "abort a job": Asked(lambda broker, _: broker.staging.abort("j"), job, sealed),
    "begin a job": Asked(lambda b, _: b.staging.stage("t", "j", "0", "1", HOUR, None), job, topic, kept=False),
    "end a transaction": Asked(
        lambda broker, producer: broker.transactions.end("x", producer.id, producer.epoch, True), transaction, begun
    ),
    "begin a transaction": Asked(lambda broker, _: broker.transactions.init_producer("x", 60_000), transaction),
}


async def quiet() -> None:
    """Returns when all that goes on behind the operation is done, but for what waits for time to pass."""
    for _ in range(60):
        await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("name", OPERATIONS)
def test_all_or_nothing(tmp_path: Path, name: str) -> None:
    asked = OPERATIONS[name]
    outcomes: list[Any] = []  # before, and after

    async def attempt(n: int, data: Path) -> bool:
        async with running(data, durability="fsync") as broker:
            given = None if asked.prepare is None else await asked.prepare(broker)
            watched = broker.topics.get("t")
            before = asked.seen(broker)
            with trio.fail_after(100_000):  # of the clock that passes by itself
                hung_up = await schedules.cancelled_at(n, lambda: asked.ask(broker, given))
                await quiet()
                after = asked.seen(broker)
                if not outcomes:
                    outcomes.extend((before, after))
                    assert not hung_up
                assert after in outcomes, f"{name} was done by half when its asker hung up at its wait {n}"
                if watched is not None and "t" not in broker.topics:
                    assert all(partition.gone is not None for partition in watched.local.values())
                    assert not broker.catalog.deleting()
                if after == outcomes[0]:  # nothing was done, and it can still be done
                    await asked.ask(broker, given)
                    await quiet()
                    assert asked.seen(broker) == outcomes[1]
                else:
                    with suppress(KrappyError, Refused):  # it may be there already, but nothing that was begun is held
                        await asked.ask(broker, given)
                    await quiet()
                    after = asked.seen(broker)
            after = asked.seen(broker)
        if asked.kept:
            async with running(data) as broker:
                await quiet()
                assert asked.seen(broker) == after
        return hung_up

    schedules.run(lambda: attempt(10**9, tmp_path / "whole"), 0)
    for n in some(range(1, MOST), 2, first=len(name) % 2):
        if not schedules.run(lambda n=n: attempt(n, tmp_path / str(n)), n):  # type: ignore[misc]
            return
    raise AssertionError(f"{name} waits more than {MOST} times")
