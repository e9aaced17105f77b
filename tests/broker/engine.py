"""A broker without a server around it, for tests of its parts."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import trio

from krappy.broker.broker import LocalBroker
from krappy.broker.name_locks import NameLocks
from krappy.broker.partition.partition import Partition
from krappy.core.security.principal import Principal
from krappy.ports import GroupPolled
from krappy.ports.audit import ASKED, AskedFor
from krappy.records import batch
from krappy.settings import server as settings
from krappy.types import Headers


class Got(NamedTuple):
    topic: str
    partition: int
    offset: int
    deliveries: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


@asynccontextmanager
async def running(data: Path, report: Any = None, **given: Any) -> AsyncIterator[LocalBroker]:
    """A broker on a folder, stopped in an orderly way at the end."""
    config = settings.load({"data": data, "durability": "os", "ballast_bytes": 0, **given}, {})
    async with trio.open_nursery() as nursery:
        broker = LocalBroker(config, report)
        await nursery.start(broker.run)
        try:
            yield broker
        finally:
            nursery.cancel_scope.cancel()


def as_killed(data: Path, into: Path) -> None:
    """Copies the folder of a broker that does nothing just now, as a kill would leave it at this moment."""
    while True:
        try:
            shutil.copytree(data, into)
            return
        except shutil.Error:  # RocksDB's own threads were taking away files that nothing needs any more
            shutil.rmtree(into)


async def publish(partition: Partition, count: int, keys: Sequence[bytes | None] | None = None, **more: Any) -> int:
    """Publishes one batch of events whose values are their numbers in it; returns the first offset."""
    values = [b"%d" % number for number in range(count)]
    stored = await partition.publish(batch.encode(keys, values, timestamps=1_000, **more)).wait()
    return stored.offset


def events(polled: GroupPolled) -> list[Got]:
    """What a member was given: the leased events of the batches that came with them. Asserts that each came exactly
    once."""
    there: dict[tuple[str, int, int], tuple[bytes | None, bytes | None, int, Headers]] = {}
    for topic, partition, _, _, data in polled.parts:
        for header, view in batch.split(data):
            if header.is_control:
                continue
            columns = batch.decode(view)
            for row, offset in enumerate(columns.offsets):
                at = (topic, partition, offset)
                assert at not in there, "an event came twice in one answer"
                headers = () if columns.headers is None else columns.headers[row]
                there[at] = columns.keys[row], columns.values[row], columns.timestamps[row], headers
    assert len({part[:2] for part in polled.parts}) == len(polled.parts), "a partition came in two parts"
    return [
        Got(topic, partition, offset, deliveries, *there[topic, partition, offset])
        for topic, partition, first, last, deliveries in polled.leases
        for offset in range(first, last + 1)
    ]


def offsets(polled: GroupPolled) -> list[int]:
    return [got.offset for got in events(polled)]


def ranges(polled: GroupPolled) -> list[tuple[str, int, int, int]]:
    return [lease[:4] for lease in polled.leases]


async def read_all(partition: Partition) -> list[Got]:
    """Everything in a partition's log."""
    found: list[Got] = []
    at = partition.start_offset
    while at < partition.high_watermark:
        span = await partition.read(at, 1 << 20)
        for _, view in batch.split(span.data):
            columns = batch.decode(view)
            for row, offset in enumerate(columns.offsets):
                headers = () if columns.headers is None else columns.headers[row]
                key, value, timestamp = columns.keys[row], columns.values[row], columns.timestamps[row]
                found.append(Got(partition.topic, partition.index, offset, 1, key, value, timestamp, headers))
        at = span.next_offset
    return found


def somebody_waits(locks: NameLocks) -> bool:
    """Whether a task waits for a name, or for all names."""
    return locks._alone.locked() or any(each.askers > 1 for each in locks._locks.values())


async def until(ready: Any) -> None:
    """Waits until `ready` returns true, which is bound to happen. If a file is gone while it looks, it looks again."""
    with trio.fail_after(60):
        while True:
            with suppress(FileNotFoundError):
                if ready():
                    return
            await trio.sleep(0.005)


def asks(user: str) -> None:
    """From now on this task handles a request of this user."""
    asker: Any = SimpleNamespace(principal=Principal(name=user, mechanism="PLAIN"))
    ASKED.set(AskedFor(asker, "a test"))
