"""A table through all that may happen to its topic, against a model: events and deletions, transactions, DeleteRecords,
retention, compaction, other cleanup policies, its view turned off and on, stops and kills.

At any time the table is the fold of what was decided, without what was absent once. The log has the latest event of
every key that is not deleted, and nothing in the log contradicts the table.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.partition.partition import Partition
from krappy.entries.entry import entry_offset, is_tombstone
from krappy.ports import TransactionalSender
from krappy.records import batch
from krappy.types import TopicPartition
from tests.broker.engine import as_killed, running

KEYS = [b"k%d" % number for number in range(12)]
HOUR = 3_600_000
SETTINGS = {"cleaner_backoff_ms": HOUR, "retention_check_ms": HOUR, "view_memtable_bytes": 256 << 10}
SMALL = {"segment.bytes": 600, "delete.retention.ms": 0, "min.cleanable.dirty.ratio": 0, "retention.ms": -1}
STEPS = {"publish": 10, "transact": 4, "delete": 2, "expire": 1, "compact": 4, "policy": 2, "view": 1}
Event = tuple[bytes | None, bytes | None]
Rows = dict[bytes, tuple[int, bytes | None]]  # key -> offset, value


class Model:
    def __init__(self) -> None:
        self.events: dict[int, Event] = {}
        self.decided: set[int] = set()
        self.waiting: list[int] = []  # committed behind the last stable offset
        self.rows: Rows = {}
        self.start = 0
        self.policy = "delete"
        self.view = True

    def fold(self) -> None:
        """Decides what waited. What was deleted meanwhile never comes into the table."""
        for offset in sorted(self.waiting):
            key, value = self.events[offset]
            if key is not None and offset >= self.start:
                self.rows[key] = offset, value
        self.decided.update(self.waiting)
        self.waiting = []

    def switch(self, policy: str) -> None:
        if self.policy == "delete":
            self.rows = self.visible()
        self.policy = policy

    def visible(self) -> Rows:
        start = self.start if self.policy == "delete" else 0
        return {key: row for key, row in self.rows.items() if row[0] >= start}

    def latest(self) -> Rows:
        """The latest event of each key, of all that was ever decided."""
        decided = ((offset, *self.events[offset]) for offset in sorted(self.decided))
        return {key: (offset, value) for offset, key, value in decided if key is not None}

    def turn(self, on: bool) -> None:
        self.view = on
        self.rows = {key: row for key, row in self.latest().items() if row[0] >= self.start} if on else {}


class Life:
    """One life of a broker, and of the producer of its transactions."""

    def __init__(self, broker: LocalBroker, model: Model, random: Random) -> None:
        self.broker, self.model, self.random = broker, model, random
        self.partition: Partition = broker.topic("t").led(0)
        self.keeper = broker.housekeeper
        self.producer: tuple[int, int] | None = None  # of the open transaction
        self.sequence = 0
        self.open: list[int] = []

    async def step(self) -> None:
        kind = self.random.choices(list(STEPS), list(STEPS.values()))[0]
        await getattr(self, kind)()
        if self.producer is None:
            await self.check()

    async def _publish(self, keys: list[bytes | None], **more: Any) -> list[int]:
        chance = self.random.random
        values = [None if key is not None and chance() < 0.25 else b"%d" % self.random.getrandbits(20) for key in keys]
        data, sender = batch.encode(keys, values, timestamps=1_000, **more), TransactionalSender("id", False)
        stored = await self.partition.publish(data, sender=sender).wait()
        offsets = list(range(stored.offset, stored.offset + len(keys)))
        self.model.events.update(zip(offsets, zip(keys, values, strict=True), strict=True))
        return offsets

    def _keys(self) -> list[bytes | None]:
        keyless = [] if "compact" in self.model.policy else [None]
        return [self.random.choice([*KEYS, *keyless]) for _ in range(self.random.randint(1, 5))]

    async def publish(self) -> None:
        self.model.waiting += await self._publish(self._keys())
        if self.producer is None:
            self.model.fold()

    async def transact(self) -> None:
        coordinator = self.broker.transactions
        if self.producer is None:
            self.producer = await coordinator.init_producer("id", 60_000)
            self.sequence = 0
            await coordinator.add_partitions("id", *self.producer, [TopicPartition("t", 0)])
        id, epoch = self.producer
        if self.random.random() < 0.6:
            keys = [key for key in self._keys() if key is not None] or KEYS[:1]
            self.open += await self._publish(
                [*keys], producer_id=id, producer_epoch=epoch, base_sequence=self.sequence, transactional=True
            )
            self.sequence += len(keys)
        else:
            await self.end(commit=self.random.random() < 0.5)

    async def end(self, *, commit: bool) -> None:
        if self.producer is not None:
            await self.broker.transactions.end("id", *self.producer, commit)
            self.model.waiting += self.open if commit else []
            self.model.fold()
            self.producer, self.open = None, []

    async def delete(self) -> None:
        if self.model.policy != "compact":
            before = self.random.randint(0, self.partition.high_watermark)
            await self.partition.delete_records(before)
            self.model.start = max(self.model.start, before)

    async def expire(self) -> None:
        if "delete" in self.model.policy:
            await self.broker.alter_topic("t", {"retention.bytes": 500}, None)
            await self.keeper.retain(self.partition)
            self.model.start = self.partition.start_offset
            await self.broker.alter_topic("t", {"retention.bytes": None}, None)

    async def compact(self) -> None:
        if self.random.random() < 0.5:
            await self.partition.reshape(self.partition.log.roll)
        if "compact" in self.model.policy:
            await self.keeper.clean(self.partition, self.broker.now_ms() + 10)

    async def policy(self) -> None:
        if self.model.view:
            policy = self.random.choice(["delete", "compact", "compact,delete"])
            await self.broker.alter_topic("t", {"cleanup.policy": policy}, None)
            self.model.switch(policy)

    async def view(self) -> None:
        if self.model.policy == "delete":
            await self.broker.alter_topic("t", {"view.enable": not self.model.view}, None)
            self.model.turn(not self.model.view)

    async def check(self) -> None:
        """Compares the broker with the model. No transaction may be open."""
        model, partition = self.model, self.partition
        assert partition.start_offset == model.start
        if model.view:
            assert await partition.view_wait(None, 60)
            found = {key: partition.look_up(key) for key in KEYS}
            live = {key: entry_offset(entry) for key, entry in found.items() if entry and not is_tombstone(entry)}
            assert live == {key: offset for key, (offset, value) in model.visible().items() if value is not None}
        log = await self._read()
        assert log == {offset: model.events[offset] for offset in log}
        latest = model.latest()
        wanted = {offset for offset, value in latest.values() if value is not None and offset >= model.start}
        assert wanted <= log.keys()
        folded = {key: (offset, value) for offset, (key, value) in sorted(log.items()) if key is not None}
        assert all(latest[key] == row for key, row in folded.items() if row[1] is not None)

    async def _read(self) -> dict[int, Event]:
        found: dict[int, Event] = {}
        at = self.partition.start_offset
        while at < self.partition.last_stable_offset:
            span = await self.partition.read(at, 1 << 20)
            for header, view in batch.split(span.data):
                columns = batch.decode(view)
                if not header.is_control:
                    found.update(zip(columns.offsets, zip(columns.keys, columns.values, strict=True), strict=True))
            at = span.next_offset
        return {offset: event for offset, event in found.items() if offset >= self.partition.start_offset}


@pytest.mark.parametrize("seed", range(8))
@trio_test
async def test_a_table_is_the_fold_of_its_log_whatever_happens(tmp_path: Path, seed: int) -> None:
    random, model = Random(seed), Model()
    data = tmp_path / "0"
    for number in range(1, 4):
        killed = tmp_path / str(number) if random.random() < 0.5 else None
        async with running(data, **SETTINGS) as broker:
            await broker.create_topic("t", 1, SMALL, if_absent=True)
            life = Life(broker, model, random)
            await life.check()
            for _ in range(random.randint(5, 40)):
                await life.step()
            await life.end(commit=True)
            await life.check()
            if killed is not None:
                as_killed(data, killed)
        data = killed or data
