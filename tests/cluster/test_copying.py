"""One broker copies a partition of another one. Both are whole brokers; only their roles are set by the test."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.app import Broker
from krappy.broker.partition import applier
from krappy.broker.partition.follower import Follower
from krappy.broker.partition.partition import Partition
from krappy.cluster.fetcher import Fetcher, FetchSettings
from krappy.cluster.inter_broker import InterBroker
from krappy.core.cluster import paths
from krappy.core.cluster.image import Image, Registration
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.core.cluster.tree import Create
from krappy.entries.entry import entry_offset
from krappy.errors import NotEnoughReplicas, RequestTimeout, StorageError
from krappy.records import batch
from krappy.settings.listeners import parse_address
from krappy.store.log import Log
from krappy.types import Span
from tests.broker.transactional import Producer
from tests.cluster.replication import LISTENER

LEADER, FOLLOWER = 1, 2
EPOCH = 9
_KEYS = [b"k%d" % index for index in range(5)]


class Copied:
    """A partition of one broker, and its copy on another broker."""

    leader: Partition
    copy: Partition

    def __init__(self, leading: Broker, following: Broker, config: dict[str, str]) -> None:
        self.leading, self.following, self.config = leading, following, config
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.image = Image(brokers={LEADER: Registration(LEADER, 1, {LISTENER: parse_address(leading.kafka_address)})})
        self.fetcher = Fetcher(
            FOLLOWER,
            InterBroker(LISTENER),
            lambda: self.image,
            lambda: 0,
            settings=FetchSettings(backoff_ms=100),
            report=lambda event, **facts: self.events.append((event, facts)),
        )

    async def begin(self) -> None:
        for broker in (self.leading, self.following):
            await broker.engine.create_topic("t", 1, self.config)
        await self.leading.engine.store.multi([Create(paths.epoch(FOLLOWER), b"{}")])
        topic, other = self.leading.engine.topics["t"], self.following.engine.topics["t"]
        image = topic.image
        topic.see(replace(image, partitions=(image.partitions[0]._replace(replicas=(LEADER, FOLLOWER)),)))
        self.leader, self.copy = topic.local[0], other.local[0]
        self.follower = Follower(self.copy, topic.id, self._make_log, 2)
        await self.leads(EPOCH)

    def _make_log(self, start: int) -> Log:
        log = self.copy.log
        log.destroy()
        return Log.open(log.folder, log.config, start_offset_hint=start)

    async def leads(self, epoch: int, isr: tuple[int, ...] = (LEADER, FOLLOWER)) -> None:
        state = PartitionState(LEADER, epoch, 1, isr, min_isr=len(isr))
        await self.leader.take(state, epoch, Role.LEADER, LEADER)
        await self.copy.take(state, epoch, Role.FOLLOWER, FOLLOWER)
        self.follower.leader = LEADER
        self.fetcher.set([self.follower])

    async def publish(self, *values: bytes, **more: Any) -> int:
        keys = [b"k%d" % (index % 5) for index in range(len(values))]
        stored = await self.leader.publish(batch.encode(keys, values, timestamps=1000, **more)).wait()
        return stored.offset

    async def fill(self) -> None:
        """Writes 500 events of 1,000 bytes, and waits until both replicas have them."""
        for _ in range(50):
            await self.publish(*[b"x" * 1000] * 10)
        await self.same()

    async def same(self) -> None:
        with trio.fail_after(20):
            while not (
                self.copy.high_watermark == self.leader.high_watermark == self.leader.end_offset == self.copy.end_offset
            ):
                await trio.sleep(0.005)

    async def check(self) -> None:
        """Checks that the copy is equal to the leader's log, byte by byte."""
        await self.same()
        assert self.content(self.copy) == self.content(self.leader)

    def content(self, partition: Partition, start: int = 0) -> bytes:
        data, offset = b"", max(start, partition.start_offset)
        while offset < partition.end_offset:
            span: Span = partition.log.read_span(offset, 1 << 20)
            data, offset = data + bytes(span.data), span.next_offset
        return data


@asynccontextmanager
async def copied(folder: Path, config: dict[str, str] | None = None, **given: Any) -> AsyncIterator[Copied]:
    given = {"ballast_bytes": 0, "durability": "os", **given}
    async with (
        Broker(folder / "1", broker_id=LEADER, **given) as leading,
        Broker(folder / "2", broker_id=FOLLOWER, **given) as following,
        trio.open_nursery() as nursery,
    ):
        found = Copied(leading, following, {"segment.bytes": "100000", **(config or {})})
        nursery.start_soon(found.fetcher.run)
        await found.begin()
        yield found
        nursery.cancel_scope.cancel()


def runs(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            with trio.fail_after(60):
                await test(*args, **kwargs)

        trio.run(main)

    return run


@pytest.mark.parametrize("durability", ["fsync", "os"])
@runs
async def test_an_event_is_acknowledged_once_the_copy_has_it(tmp_path: Path, durability: str) -> None:
    async with copied(tmp_path, durability=durability) as it:
        assert await it.publish(b"a", b"b") == 0
        assert it.copy.log.synced_offset >= 2 or durability == "os"
        assert it.copy.end_offset == 2
        await it.check()
        assert await it.copy.applier.caught_up(2, 20)
        assert it.copy.look_up(b"k1") is not None
        it.fetcher.set([])
        await trio.sleep(0.1)
        with trio.move_on_after(0.5) as waited:
            await it.publish(b"c")
        assert waited.cancelled_caught
        it.fetcher.set([it.follower])
        await it.check()
        assert not it.events


@runs
async def test_much_is_copied_while_it_is_written(tmp_path: Path) -> None:
    async with copied(tmp_path) as it:

        async def publish(size: int, times: int) -> None:
            for _ in range(times):
                await it.publish(*[b"x" * size] * 10)

        async with trio.open_nursery() as nursery:
            for size, times in ((10, 300), (1000, 200), (9000, 50)):
                nursery.start_soon(publish, size, times)
        await it.check()
        assert it.copy.segments > 10
        assert not it.events


@runs
async def test_a_copy_that_begins_late_gets_all(tmp_path: Path) -> None:
    async with copied(tmp_path, {"max.message.bytes": "8000000"}) as it:
        it.fetcher.set([])
        await it.leads(EPOCH + 1, isr=(LEADER,))
        it.fetcher.set([])
        for size in (10, 5_000_000, 100, 3_000_000, 10, 200_000):
            await it.publish(b"x" * size)
        for _ in range(300):
            await it.publish(b"y" * 1000, b"z" * 500)
        it.fetcher.set([it.follower])
        await it.check()
        assert not it.events


@runs
async def test_events_that_nobody_else_has_are_cut(tmp_path: Path) -> None:
    async with copied(tmp_path) as it:
        await it.publish(b"a")
        await it.same()
        it.fetcher.set([])
        # This broker leads in two epochs, and no other replica gets its events.
        for end, epoch in enumerate((EPOCH + 1, EPOCH + 2), 2):
            await it.copy.take(
                PartitionState(FOLLOWER, epoch, 1, (LEADER, FOLLOWER), min_isr=2), epoch, Role.LEADER, FOLLOWER
            )
            it.copy.publish(batch.encode([b"k"], [b"lost"], timestamps=1))
            with trio.fail_after(20):
                while it.copy.end_offset < end:
                    await trio.sleep(0.005)
        assert it.copy.end_offset == 3
        await it.leads(EPOCH + 3)
        await it.publish(b"b", b"c")
        await it.check()
        assert it.copy.end_offset == 3
        assert [b"lost" in it.content(each) for each in (it.copy, it.leader)] == [False, False]
        await it.publish(b"d")
        await it.check()
        assert not it.events


@runs
async def test_a_copy_cuts_nothing_that_is_committed(tmp_path: Path) -> None:
    """Its last leader epoch is damaged, and the leader has committed as much. So its log is made anew."""
    async with copied(tmp_path) as it:
        await it.publish(b"a", b"b")
        await it.same()
        it.copy.log.epochs.lead(EPOCH + 1, 1)
        it.leader.publish(batch.encode([b"k"], [b"c"], timestamps=1))
        with trio.fail_after(10):
            while not it.copy.spoiled:
                await trio.sleep(0.01)
        assert it.copy.end_offset == it.copy.high_watermark == 2
        assert it.copy.log.is_parted
        assert not it.follower.ahead


@runs
async def test_a_copy_that_led_gives_up_what_was_not_committed(tmp_path: Path) -> None:
    """At its offset the leader has another event, of a later epoch, which is committed."""
    async with copied(tmp_path) as it:
        await it.publish(b"a")
        await it.same()
        it.fetcher.set([])
        both = PartitionState(FOLLOWER, EPOCH + 1, 1, (FOLLOWER, LEADER), min_isr=2)
        await it.copy.take(both, EPOCH + 1, Role.LEADER, FOLLOWER)
        it.copy.publish(batch.encode([b"k"], [b"b"], timestamps=1))
        with trio.fail_after(10):
            while it.copy.end_offset < 2:
                await trio.sleep(0.01)
        state = PartitionState(LEADER, EPOCH + 2, 1, (LEADER,), min_isr=1)
        await it.leader.take(state, EPOCH + 2, Role.LEADER, LEADER)
        await it.publish(b"x")
        await it.copy.take(state, EPOCH + 2, Role.FOLLOWER, FOLLOWER)
        it.follower.leader, it.follower.state = LEADER, state
        it.fetcher.set([it.follower])
        with trio.fail_after(10):
            while it.copy.log.epochs.at(1) != EPOCH + 2:
                await trio.sleep(0.01)
        await it.check()
        assert not it.copy.log.is_parted
        assert not it.copy.spoiled


@runs
async def test_a_copy_that_has_more_than_its_leader_is_ahead(tmp_path: Path) -> None:
    """The leader lacks committed events, and has others in the same leader epoch, at the same offsets."""
    async with copied(tmp_path) as it:
        await it.publish(b"a")
        await it.same()
        it.fetcher.set([])
        alone = PartitionState(FOLLOWER, EPOCH + 1, 1, (FOLLOWER,))
        await it.copy.take(alone, EPOCH + 1, Role.LEADER, FOLLOWER)
        for value in (b"b", b"c"):
            await it.copy.publish(batch.encode([b"k"], [value], timestamps=1)).wait()
        state = PartitionState(LEADER, EPOCH + 1, 1, (LEADER, FOLLOWER), min_isr=2)
        await it.leader.take(state, EPOCH + 1, Role.LEADER, LEADER)
        for value in (b"x", b"y"):
            it.leader.publish(batch.encode([b"k"], [value], timestamps=2))
        with trio.fail_after(10):
            while it.leader.end_offset < 3:
                await trio.sleep(0.01)
        await it.copy.rest()
        it.copy.epoch = EPOCH  # the data of ZooKeeper is older
        await it.copy.take(state, EPOCH + 1, Role.FOLLOWER, FOLLOWER)
        it.follower.leader, it.follower.state = LEADER, state
        it.fetcher.set([it.follower])
        with trio.fail_after(10):
            while not it.follower.ahead:
                await trio.sleep(0.01)
        assert (it.copy.end_offset, it.copy.high_watermark, it.copy.spoiled) == (3, 3, "")
        assert it.leader.high_watermark == 1


@runs
async def test_the_log_start_follows(tmp_path: Path) -> None:
    async with copied(tmp_path) as it:
        await it.fill()
        await it.leader.delete_records(300)
        await it.publish(b"more")
        with trio.fail_after(10):
            while it.copy.start_offset != 300:
                await trio.sleep(0.01)
        await it.check()


@runs
async def test_a_deletion_is_answered_once_the_copy_has_it(tmp_path: Path) -> None:
    """This is so even if nothing else happens: a new log start alone is worth an answer to a fetch."""
    async with copied(tmp_path) as it:
        await it.fill()
        assert await it.leader.delete_records(300) == 300
        with trio.fail_after(10):
            await it.leader.deleted_everywhere(300)
        assert it.copy.start_offset == 300
        it.fetcher.set([])
        await trio.sleep(0.1)
        assert await it.leader.delete_records(400) == 400
        with pytest.raises(RequestTimeout):
            await it.leader.deleted_everywhere(400, 0.3)
        assert it.copy.start_offset == 300
        await it.leads(EPOCH + 1)
        with trio.fail_after(10):
            await it.leader.deleted_everywhere(400)
        assert it.copy.start_offset == 400
        await it.leader.take(PartitionState(LEADER, EPOCH + 1, 1, (LEADER,), min_isr=2), EPOCH + 2, Role.LEADER, LEADER)
        with pytest.raises(NotEnoughReplicas):
            await it.leader.delete_records(450)
        assert it.leader.start_offset == 400


@runs
async def test_a_copy_deletes_nothing_by_its_own_clock(tmp_path: Path) -> None:
    async with copied(tmp_path) as it:
        await it.fill()
        engine = it.following.engine
        await engine.alter_topic("t", {"retention.ms": "1", "segment.ms": "1"}, None)
        await trio.sleep(0.01)
        await engine.housekeeper.retain(it.copy)
        assert it.copy.start_offset == 0
        assert it.copy.log.segments[-1].size == 0  # but the segment before is closed, so that it can be compacted
        await it.publish(b"more")
        await it.check()
        await it.copy.take(
            PartitionState(FOLLOWER, EPOCH + 1, 1, (FOLLOWER,), min_isr=1), EPOCH + 1, Role.LEADER, FOLLOWER
        )
        await trio.sleep(0.01)
        await engine.housekeeper.retain(it.copy)
        assert it.copy.start_offset == 501


@pytest.mark.parametrize("start", [40, 43])
@runs
async def test_a_copy_below_the_log_start_starts_over(tmp_path: Path, start: int) -> None:
    """The log start may be in the middle of a batch."""
    async with copied(tmp_path) as it:
        await it.publish(b"a", b"b")
        await it.same()
        it.fetcher.set([])
        await it.leads(EPOCH + 1, isr=(LEADER,))
        it.fetcher.set([])
        for _ in range(10):
            await it.publish(*[b"x" * 1000] * 10)
        await it.leader.delete_records(start + 2)
        it.fetcher.set([it.follower])
        await it.check()
        with trio.fail_after(20):  # the copy moves its log start independently of its fetches
            while it.copy.start_offset < start + 2:
                await trio.sleep(0.005)
        assert it.copy.start_offset == start + 2
        assert await it.copy.applier.caught_up(it.copy.high_watermark, 10)
        assert {key: it.copy.look_up(key) for key in _KEYS} == {key: it.leader.look_up(key) for key in _KEYS}


@runs
async def test_transactions_are_copied(tmp_path: Path) -> None:
    """Committed and aborted transactions are copied, and one that is open."""
    async with copied(tmp_path) as it:
        producers = [await Producer(it.leading.engine, name).init() for name in ("commits", "aborts", "waits")]
        for each in producers:
            await each.write((b"k", each.name.encode()), (b"of " + each.name.encode(), b"1"))
        await producers[1].end(False)
        await producers[0].end(True)
        await it.publish(b"after")
        await it.check()
        assert it.copy.last_stable_offset == it.leader.last_stable_offset < it.copy.high_watermark
        assert it.copy.aborted(0, 100) == it.leader.aborted(0, 100) != []
        await producers[2].end(True)
        await it.check()
        assert it.copy.last_stable_offset == it.leader.last_stable_offset == it.copy.high_watermark
        assert await it.copy.applier.caught_up(it.copy.high_watermark, 10)
        keys = [b"k", b"of commits", b"of aborts", b"of waits", *_KEYS]
        assert await it.leader.applier.caught_up(it.leader.high_watermark, 10)
        assert [it.copy.look_up(key) for key in keys] == [it.leader.look_up(key) for key in keys]
        assert it.copy.look_up(b"of aborts") is None
        assert it.copy.producer_ids() == it.leader.producer_ids()


@runs
async def test_a_compacted_log_is_copied(tmp_path: Path) -> None:
    async with copied(tmp_path, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}) as it:
        it.fetcher.set([])
        await it.leads(EPOCH + 1, isr=(LEADER,))
        it.fetcher.set([])
        for number in range(300):
            await it.publish(*[b"%d" % number * 100] * 5)
        engine = it.leading.engine
        assert await it.leader.applier.caught_up(it.leader.high_watermark, 10)
        before = it.leader.size
        await engine.housekeeper.clean(it.leader, engine.now_ms())
        assert it.leader.size < before / 2
        it.fetcher.set([it.follower])
        await it.same()
        await it.publish(b"more")
        await it.same()
        assert await it.copy.applier.caught_up(it.copy.high_watermark, 10)
        assert [it.copy.look_up(key) for key in _KEYS] == [it.leader.look_up(key) for key in _KEYS]
        assert _with_records(it.content(it.copy)) == _with_records(it.content(it.leader))
        assert not it.events


async def answered(partition: Partition, least: int, end: int) -> list[int]:
    """The offsets of k0 that the view shows, while it is folded up to the offset `end`, to a client that asks for at
    least the offset `least`. -1: the key is absent."""
    found: list[int] = []
    while partition.applied < end:
        if partition.view_ready(least):
            entry = partition.look_up(b"k0")
            found.append(-1 if entry is None else entry_offset(entry))
        await trio.lowlevel.checkpoint()
    assert partition.view_ready(least)
    return found


@runs
async def test_a_copy_of_a_compacted_log_shows_no_older_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy has a key's first event and its last one; the event between them was compacted away. A client has seen
    the event between. The copy does not answer this client until its view has the last event."""
    monkeypatch.setattr(applier, "SLICE", 1)
    async with copied(tmp_path, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}) as it:
        await it.publish(b"first")
        await it.same()
        it.fetcher.set([])
        await it.leads(EPOCH + 1, isr=(LEADER,))
        it.fetcher.set([])
        between = await it.publish(b"between")
        for number in range(100):
            await it.leader.publish(batch.encode([b"other %d" % number], [b"x"], timestamps=1000)).wait()
        last = await it.publish(b"last")
        await it.leader.reshape(it.leader.log.roll)
        await it.publish(b"", b"", b"in the active segment")
        await it.leader.publish(batch.encode([b"k0"], [b"at the end"], timestamps=1000)).wait()
        await _compact(it)
        end = it.leader.end_offset
        it.fetcher.set([it.follower])
        found = await answered(it.copy, between, end)
        assert all(each >= last for each in found), found
        assert it.copy.log.gone_below > between
        await it.same()
        # The same is true if the view is folded anew.
        it.following.engine.views.drop(it.copy.number)
        it.copy.fold_anew()
        found = await answered(it.copy, between, end)
        assert all(each >= last for each in found), found


@runs
async def test_a_view_that_is_folded_anew_shows_no_older_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of this view was compacted. The view does not wait for the open transaction."""
    monkeypatch.setattr(applier, "SLICE", 1)
    async with copied(tmp_path, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}) as it:
        first = await it.publish(b"first")
        for number in range(100):
            await it.leader.publish(batch.encode([b"other %d" % number], [b"x"], timestamps=1000)).wait()
        last = await it.publish(b"last")
        await it.same()
        await _compact(it)
        assert it.leader.log.clean_upto > last
        end = it.leader.end_offset
        producer = await Producer(it.leading.engine, "waits").init()
        await producer.write((b"k0", b"undecided"))
        await it.same()
        it.leading.engine.views.drop(it.leader.number)
        it.leader.fold_anew()
        found = await answered(it.leader, first, end)
        assert all(each >= last for each in found), found
        assert it.leader.last_stable_offset < it.leader.high_watermark


EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}


async def _compact(it: Copied) -> None:
    """Compacts twice: the first time finds the tombstones, and the second time removes them."""
    engine = it.leading.engine
    await it.leader.reshape(it.leader.log.roll)
    await it.publish(b"in the active segment")
    for _ in range(2):
        assert await it.leader.applier.caught_up(it.leader.high_watermark, 10)
        await trio.sleep(0.002)
        await engine.housekeeper.clean(it.leader, engine.now_ms())


async def _delete(it: Copied, *keys: bytes) -> None:
    await it.leader.publish(batch.encode(keys, [None] * len(keys), timestamps=1000)).wait()


@runs
async def test_a_copy_that_was_away_while_tombstones_went_does_not_bring_keys_back(tmp_path: Path) -> None:
    async with copied(tmp_path, EAGER) as it:
        await it.publish(*[b"x"] * 5)
        await it.same()
        it.fetcher.set([])
        await it.leads(EPOCH + 1, isr=(LEADER,))
        it.fetcher.set([])
        await _delete(it, b"k1", b"k3")
        await _compact(it)
        assert it.leader.log.gone_below == 7
        assert it.leader.look_up(b"k1") is None
        await it.publish(b"more")
        it.fetcher.set([it.follower])
        await it.same()
        assert await it.copy.applier.caught_up(it.copy.high_watermark, 10)
        assert it.leader.look_up(b"k4") is not None
        assert [it.copy.look_up(key) for key in _KEYS] == [it.leader.look_up(key) for key in _KEYS]
        assert it.content(it.copy) == it.content(it.leader)
        assert it.copy.log.gone_below == 7  # it must know this, too, in case it leads later
        # A copy that was told once is not told again.
        await it.publish(b"and more")
        await it.check()


@runs
async def test_tombstones_stay_for_a_copy_that_is_catching_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with copied(tmp_path, EAGER) as it:
        await it.publish(*[b"x"] * 5)
        await it.same()
        it.fetcher.set([])
        await it.leads(EPOCH + 1, isr=(LEADER,))
        it.fetcher.set([])
        await _delete(it, b"k1", b"k3")
        it.leader.fetched_by(FOLLOWER, 0, 6)
        await _compact(it)
        assert it.leader.log.gone_below == 6  # the tombstone of k1 is removed; that of k3 is at offset 6
        await it.leads(EPOCH + 2, isr=(LEADER,))
        it.fetcher.set([])
        await _delete(it, b"k2")
        # The copy fetches while the cleaner reads.
        heads, came = it.leader.views.heads, list[object]()

        def slow(number: int, keys: Any) -> Any:
            if not came:
                came.append(trio.from_thread.run_sync(it.leader.fetched_by, FOLLOWER, 0, 6))
            return heads(number, keys)

        monkeypatch.setattr(it.leader.views, "heads", slow)
        await _compact(it)
        assert came
        assert it.leader.log.gone_below == 6
        assert [value for value in (it.leader.look_up(key) for key in (b"k1",)) if value] == []
        assert not list(it.leader.log.folder.glob("*.cleaned"))
        await it.leads(EPOCH + 3, isr=(LEADER,))
        it.fetcher.set([])
        await _compact(it)
        assert it.leader.log.gone_below > 6


@runs
async def test_a_copy_of_a_compacted_log_knows_its_producers(tmp_path: Path) -> None:
    """A batch without records says which sequence its producer has reached. A new leader needs that to recognize a
    retry."""
    async with copied(tmp_path, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}) as it:
        it.fetcher.set([])
        await it.leads(EPOCH + 1, isr=(LEADER,))
        it.fetcher.set([])
        engine = it.leading.engine
        producer = await engine.new_producer_id()
        await it.publish(b"a", producer_id=producer, producer_epoch=0, base_sequence=0)
        for number in range(300):
            await it.publish(*[b"%d" % number * 100] * 5)
        assert await it.leader.applier.caught_up(it.leader.high_watermark, 10)
        await engine.housekeeper.clean(it.leader, engine.now_ms())
        it.fetcher.set([it.follower])
        await it.same()
        assert it.leader.producer_ids() == {producer}
        assert it.copy.producer_ids() == {producer}


def _with_records(data: bytes) -> list[bytes]:
    return [bytes(each) for header, each in batch.split(data) if header.count]


@runs
async def test_a_disk_that_refuses_for_a_while(tmp_path: Path) -> None:
    async with copied(tmp_path, durability="fsync") as it:
        await it.publish(b"a")
        await it.same()
        log, left = it.copy.log, [3, 3]
        append, sync = log.append_as_is, log.sync

        def failing(batches: Any, now_ms: int) -> int:
            left[0] -= 1
            if left[0] >= 0:
                raise StorageError("the disk is full")
            return append(batches, now_ms)

        def not_synced() -> int:
            left[1] -= 1
            if left[1] >= 0:
                raise StorageError("no descriptor is left")
            return sync()

        log.append_as_is, log.sync = failing, not_synced  # type: ignore[method-assign]
        await it.publish(b"b", b"c")
        await it.check()
        assert [event for event, _ in it.events] == ["following_failed"]


@runs
async def test_a_damaged_leader_epoch_amidst_what_is_copied_is_found(tmp_path: Path) -> None:
    """The leader epoch of an event is changed to a later one, but one below the next event's. No checksum covers it,
    and nothing that a follower knows contradicts it."""
    async with copied(tmp_path) as it:
        for epoch in (EPOCH + 1, EPOCH + 4):
            state = PartitionState(LEADER, epoch, 1, (LEADER,), min_isr=1)
            await it.leader.take(state, epoch, Role.LEADER, LEADER)
            for _ in range(3):
                await it.publish(b"x")
        [log] = it.leader.log.folder.glob("*.log")
        damaged = 2 * batch.read_header(log.read_bytes()).size
        with log.open("r+b") as file:
            file.seek(damaged + 12)
            file.write((EPOCH + 2).to_bytes(4, "big"))
        await it.leads(EPOCH + 5)
        with trio.fail_after(20):
            while not it.leader.log.damage:
                await trio.sleep(0.005)
        assert it.copy.end_offset == 2
