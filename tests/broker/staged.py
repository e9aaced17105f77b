"""Staged writes, for tests of the broker's parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from krappy.broker.broker import LocalBroker
from krappy.broker.partition.partition import Partition
from krappy.core.staging import Job
from krappy.ports import StageOpened
from krappy.records import batch
from krappy.store.staging import StagingStore
from tests.broker.engine import read_all

HOUR = 3_600_000
WAIT = 60_000  # ms that a commit may take here


class Task:
    """An attempt, as a client of the broker's parts."""

    def __init__(self, broker: LocalBroker, job: str, opened: StageOpened) -> None:
        self.broker = broker
        self.job = job
        self.id = opened.id
        self.attempt = opened.attempt
        self.producer = opened.producer_id
        self.records = 0
        self.sequences: dict[int, int] = {}

    def batch(self, partition: int, keys: Sequence[bytes | None], values: Sequence[bytes | None], **more: Any) -> bytes:
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = sequence + len(values)
        return batch.encode(
            keys,
            values,
            timestamps=1_000,
            producer_id=self.producer,
            producer_epoch=0,
            base_sequence=sequence,
            **more,
        )

    async def write(self, *keys: str, partition: int = 0) -> Task:
        data = self.batch(partition, [key.encode() for key in keys], [f"{self.job}:{key}".encode() for key in keys])
        await self.attempt.publish(partition, data).wait()
        self.records += len(keys)
        return self

    async def seal(self) -> str:
        return await self.broker.staging.seal(self.job, self.id, self.records)


async def begin(broker: LocalBroker, job: str, task: str = "0", topic: str = "t", attempt: str = "1") -> Task:
    return Task(broker, job, await broker.staging.stage(topic, job, task, attempt, HOUR, None))


async def commit(broker: LocalBroker, job: str, *tokens: str) -> Job:
    done, _, _ = await broker.staging.commit(job, tokens, WAIT)
    return done


async def staged(broker: LocalBroker, job: str, *keys: str, **where: Any) -> str:
    """The token of an attempt with these keys."""
    return await (await (await begin(broker, job, **where)).write(*keys)).seal()


async def values(partition: Partition) -> list[bytes | None]:
    return [got.value for got in await read_all(partition) if got.value is not None and b":" in got.value]


async def made(broker: LocalBroker, name: str = "t", partitions: int = 1, **config: Any) -> Partition:
    topic, _ = await broker.create_topic(name, partitions, config)
    return topic.led(0)


def known(broker: LocalBroker, job: str) -> Job | None:
    """What the broker has of a job now."""
    live = broker.staging._live.get(job)
    return StagingStore(broker.meta).find(job) if live is None else live.job


def files(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "staging").iterdir())
