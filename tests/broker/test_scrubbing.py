"""Scrubbing of very many logs, most of which are empty."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import MockClock

from krappy.broker.upkeep.scrubbing import Scrubber
from krappy.types import Span

MANY = 300


class FakePartition:
    """`looks`: how often somebody has measured one."""

    looks = 0
    gone, spoiled = None, ""

    def __init__(self, size: int, end: int) -> None:
        self.bytes = size
        self.log = SimpleNamespace(end_offset=end, start_offset=0, verify=self.verify)
        self.read = 0

    @property
    def size(self) -> int:
        FakePartition.looks += 1
        return self.bytes

    def verify(self, offset: int, max_bytes: int) -> Span:
        self.read += self.bytes
        return Span(bytes(self.bytes), self.log.end_offset, 1)


def scrubbed(
    partitions: list[FakePartition], interval_ms: int, seconds: float, hangs: FakePartition | None = None
) -> int:
    """Runs scrubbing for `seconds`. Returns the most logs that it measured between two turns of others. `hangs`: reads
    of this one do not end."""
    topic = SimpleNamespace(id=b"id", local=dict(enumerate(partitions)))
    topics = SimpleNamespace(values=lambda: [topic], by_id={topic.id: topic})

    async def in_thread(work: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if hangs is not None and work.func == hangs.log.verify:
            await trio.sleep_forever()
        return work()

    config, measures = SimpleNamespace(scrub_interval_ms=interval_ms), SimpleNamespace(scrubbed_bytes=0)
    runtime: Any = SimpleNamespace(topics=topics, config=config, measures=measures, in_thread=in_thread)
    most = 0

    async def main() -> None:
        nonlocal most
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Scrubber(runtime).run)
                while True:
                    before = FakePartition.looks
                    await trio.sleep(0.001)
                    most = max(most, FakePartition.looks - before)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return most


def test_many_empty_logs_keep_nobody_waiting() -> None:
    assert 0 < scrubbed([FakePartition(0, 0) for _ in range(MANY)], 1, 1.0) <= 2 * MANY


def test_logs_that_grew_since_all_were_measured_are_read_within_the_interval() -> None:
    first, others = FakePartition(1, 1), [FakePartition(0, 0) for _ in range(3)]

    def grow(offset: int, max_bytes: int) -> Span:
        for each in others:
            each.bytes, each.log.end_offset = 1 << 20, 1
        return first.verify(offset, max_bytes)

    first.log.verify = grow
    scrubbed([first, *others], 100, 3.0)
    assert all(each.read for each in others)


def test_a_log_whose_reads_hang_keeps_no_other_from_being_read() -> None:
    partitions = [FakePartition(1, 1) for _ in range(4)]
    scrubbed(partitions, 100, 1000.0, hangs=partitions[0])
    assert [bool(each.read) for each in partitions] == [False, True, True, True]
    assert min(each.read for each in partitions[1:]) > 5
