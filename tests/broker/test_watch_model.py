"""A watcher that folds what it is told has the table, whatever happens to the topic and to its connection meanwhile.

Histories of publishes, tombstones, compaction, added partitions, broken connections and resumptions. What is told of a
partition is in order and comes once; without compaction, every event behind the snapshot comes.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from krappy.broker.broker import LocalBroker
from krappy.broker.tables import table as table_module
from krappy.entries.entry import is_tombstone, key_of_bin, unpack_entry
from krappy.records import batch
from tests.broker.engine import running, until

MOST_PARTITIONS = 4
CONFIG = {"cleanup.policy": "compact", "min.compaction.lag.ms": 0, "delete.retention.ms": 86_400_000}
KEYS = [b"", b"a", b"ab", b"b", b"c"]


class Publish(NamedTuple):
    partition: int
    records: list[tuple[bytes, bytes | None]]


class Take(NamedTuple):
    """The watcher may be given so many more answers."""

    answers: int


keys = st.sampled_from(KEYS)
steps = st.one_of(
    st.builds(
        Publish,
        st.integers(0, MOST_PARTITIONS - 1),
        st.lists(st.tuples(keys, st.none() | st.binary(max_size=3)), min_size=1, max_size=4),
    ),
    st.builds(Take, st.integers(1, 4)),
    st.sampled_from(["add", "compact", "break", "resume"]),
)


class Watcher:
    """A client: its state, and the offsets from which it would go on."""

    def __init__(self, broker: LocalBroker, prefix: bytes | None) -> None:
        self.broker = broker
        self.prefix = prefix
        self.state: dict[tuple[int, bytes], bytes] = {}
        self.place: dict[int, int] | None = None  # offset by partition; None: it has no whole snapshot yet
        self.told: set[tuple[int, int]] = set()
        self.exact: dict[int, int] = {}  # offsets of the snapshot
        self.allowed = 0.0
        self.more = trio.Event()
        self.scope: trio.CancelScope | None = None

    def start(self, nursery: trio.Nursery) -> None:
        if self.scope is None:
            self.scope = trio.CancelScope()
            nursery.start_soon(self._run, self.scope)

    def stop(self) -> None:
        """The connection breaks. What was not told by then is never told."""
        if self.scope is not None:
            self.scope.cancel()
            self.scope = None

    def allow(self, count: float) -> None:
        self.allowed += count
        self.more.set()

    async def _room(self) -> None:
        while self.allowed < 1:
            self.more = trio.Event()
            await self.more.wait()
        self.allowed -= 1
        await trio.lowlevel.checkpoint()

    async def _run(self, scope: trio.CancelScope) -> None:
        if self.place is None:
            self.state, self.told = {}, set()
        topic = self.broker.topic("t")
        known = list(topic.all_led())
        if self.place is not None:  # on a resume, as handlers do: the known partitions, and all others
            known = [each for each in known if each.index in self.place]
        watch = self.broker.watch(
            known, self.prefix, None, None, tombstones=False, grows_with=self.broker.topic("t").local
        )
        with scope:
            try:
                await watch.run(None if self.place is None else dict(self.place), self._told, self._room)
            finally:
                watch.close()

    async def _told(
        self, event: str, partition: int, next_offset: int, items: list[bytes], offsets: Any = None
    ) -> None:
        for at in range(0, len(items), 2):
            key, entry = key_of_bin(items[at]), items[at + 1]
            offset = unpack_entry(entry)[0]
            assert self.prefix is None or key.startswith(self.prefix)
            assert (partition, offset) not in self.told, "told twice"
            assert offset < next_offset
            if event == "changes":
                assert self.place is not None
                assert offset >= self.place.get(partition, 0), "out of order, or told before"
            self.told.add((partition, offset))
            self.state[partition, key] = entry
        if event == "end_of_snapshot":
            self.place, self.exact = dict(offsets), dict(offsets)
        elif event == "changes":
            assert self.place is not None
            assert next_offset >= self.place.get(partition, 0)
            self.place[partition] = next_offset

    @property
    def living(self) -> dict[tuple[int, bytes], bytes]:
        return {where: entry for where, entry in self.state.items() if not is_tombstone(entry)}


async def compact(broker: LocalBroker) -> None:
    for partition in broker.topic("t").all_led():
        await partition.reshape(partition.log.roll)
        await broker.housekeeper.clean(partition, broker.now_ms())


async def table(broker: LocalBroker, prefix: bytes | None) -> dict[tuple[int, bytes], bytes]:
    partitions = list(broker.topic("t").all_led())
    await broker.wait_for_views(partitions)
    found: dict[tuple[int, bytes], bytes] = {}
    scan = broker.scan(partitions, prefix, None, None, tombstones=False)
    while True:
        page = await scan.page(100, 1 << 20)
        found |= {
            (page.partition, key_of_bin(page.items[at])): page.items[at + 1] for at in range(0, len(page.items), 2)
        }
        if page.last:
            return found


async def play(data: Path, history: list[Any], prefix: bytes | None) -> None:
    async with running(data) as broker:
        await broker.create_topic("t", 1, CONFIG)
        published: dict[tuple[int, int], bytes] = {}
        watcher = Watcher(broker, prefix)
        compacted = False
        async with trio.open_nursery() as nursery:
            watcher.start(nursery)
            for step in history:
                partitions = broker.topic("t").all_led()
                if isinstance(step, Publish):
                    partition = partitions[step.partition % len(partitions)]
                    data_ = batch.encode([key for key, _ in step.records], [v for _, v in step.records], timestamps=1)
                    first = (await partition.publish(data_).wait()).offset
                    for row, (key, _) in enumerate(step.records):
                        published[partition.index, first + row] = key
                elif isinstance(step, Take):
                    watcher.allow(step.answers)
                    await trio.testing.wait_all_tasks_blocked()
                elif step == "add" and len(partitions) < MOST_PARTITIONS:
                    await broker.alter_topic("t", None, len(partitions) + 1)
                elif step == "compact":
                    compacted = True
                    await compact(broker)
                elif step == "break":
                    watcher.stop()
                elif step == "resume":
                    watcher.start(nursery)
            watcher.start(nursery)
            watcher.allow(math.inf)
            ends = {each.index: each.last_stable_offset for each in broker.topic("t").all_led()}
            await until(lambda: watcher.place is not None and {at: watcher.place.get(at, 0) for at in ends} == ends)
            watcher.stop()
        assert watcher.living == await table(broker, prefix)
        if not compacted:
            wanted = {
                at
                for at, key in published.items()
                if at[1] >= watcher.exact.get(at[0], 0) and (prefix is None or key.startswith(prefix))
            }
            assert wanted <= watcher.told, "a gap"


@settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, max_size=25), st.sampled_from([None, b"a"]))
def test_a_watcher_has_the_table(history: list[Any], prefix: bytes | None) -> None:
    with tempfile.TemporaryDirectory(prefix="krappy-watch-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "PROGRESS", 0.005)  # where nothing matches, the end is told soon
        trio.run(play, Path(folder), history, prefix)
