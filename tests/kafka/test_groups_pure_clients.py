"""Groups of the clients that are written in Python, kafka-python and aiokafka: rebalances, commits, a
broker that dies."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import CommitFailedError, KafkaConnectionError

from tests.process import PATIENCE, ROOT, BrokerProcess, free_address

SETTINGS: dict[str, Any] = {"group_initial_rebalance_delay_ms": 100, "durability": "os"}
TIMES: dict[str, Any] = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 200}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("groups") / "data", **SETTINGS) as running:
        yield running


def test_kafka_python(broker: BrokerProcess) -> None:
    program = [sys.executable, "-m", "tests.kafka.kafka_python_group", broker.kafka]
    assert subprocess.run(program, cwd=ROOT, timeout=200).returncode == 0


class Seen(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes what a consumer is told to own."""

    def __init__(self) -> None:
        self.parts: set[int] = set()

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self.parts -= {part.partition for part in revoked}

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.parts |= {part.partition for part in assigned}


@contextlib.asynccontextmanager
async def member(address: str, topic: str, **more: Any) -> AsyncIterator[tuple[Seen, list[int]]]:
    """A consumer in the group that is named after the topic: what it owns, and the values that it has read and
    committed."""
    seen, got = Seen(), []
    settings = {"group_id": topic, "auto_offset_reset": "earliest", "enable_auto_commit": False} | TIMES | more
    consumer = AIOKafkaConsumer(bootstrap_servers=address, **settings)
    consumer.subscribe([topic], listener=seen)
    await consumer.start()

    async def run() -> None:
        async for record in consumer:
            got.append(int(record.value))
            with contextlib.suppress(CommitFailedError, KafkaConnectionError):
                await consumer.commit()

    task = asyncio.create_task(run())
    try:
        yield seen, got
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await consumer.stop()


async def wait(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


async def send(address: str, topic: str, values: range) -> None:
    async with AIOKafkaProducer(bootstrap_servers=address) as producer:
        for value in values:
            await producer.send_and_wait(topic, str(value).encode(), partition=value % 4)


async def create(address: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 4, 1)])
    await admin.close()


def test_aiokafka(broker: BrokerProcess) -> None:
    address = broker.kafka

    async def main() -> None:
        await create(address, "aio")
        await send(address, "aio", range(8))
        async with member(address, "aio") as (first, got):
            await wait(lambda: len(got) == 8)
            async with member(address, "aio") as (second, others):
                await wait(lambda: len(first.parts) == len(second.parts) == 2)
                await send(address, "aio", range(8, 16))
                await wait(lambda: len(got) + len(others) == 16)
            await wait(lambda: first.parts == {0, 1, 2, 3})
            assert sorted(got + others) == [*range(16)]

    asyncio.run(main())


def test_a_restart_of_the_broker_in_between(tmp_path: Path) -> None:
    address = free_address()
    with BrokerProcess(tmp_path / "data", listen_kafka=address, **SETTINGS) as running:

        async def main() -> None:
            await create(address, "t")
            await send(address, "t", range(8))
            async with member(address, "t", group_instance_id="static") as (_, got):
                await wait(lambda: len(got) == 8)
                running.kill()
                running.start()
                await send(address, "t", range(8, 16))
                await wait(lambda: len(got) >= 16)
                assert sorted(got) == [*range(16)]

        asyncio.run(main())
