"""Publishes a committed job: its batches are appended from their files to the logs, all of them and each once.

Rules of this file:

- Batches are appended as any others, in a transaction of a producer id that only this job has. So readers of committed
  events see none of them before the markers are written. The producer's sequence in the log tells which batches it has
  already: after a crash, or when the disk refused, publishing goes on after those. So the log takes a batch only behind
  the one before it, even while it knows nothing of the producer yet.
- Batches are in the order of the tokens, and for each token in the order of its file. So each try gives them the same
  sequence numbers.
- Markers are written once every batch is on disk and that is recorded. From then on the job can only be committed.
- Memory: at most `WINDOW` bytes of a job are under way, however large it is.
- Disk: like other events, a job's events are not written while the disk has room for nothing but deletions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from krappy.broker.transactions.turns import written
from krappy.core.staging import Job, PublishedPart, StagedTask
from krappy.errors import KrappyError, ShuttingDown, StorageError, UnknownPartition, UnknownTopic
from krappy.ports import StoredAt
from krappy.records import batch as batches
from krappy.records.batch import BatchHeader
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime
    from krappy.store.staging import StagedFiles

WINDOW = 16 << 20  # bytes of one job on their way to the logs
EPOCH = 0  # the producer epoch

At = tuple[bytes, int]  # topic id, partition


class Forgotten(Exception):
    """The log has forgotten how much of the job it has. The job is published anew under another producer id."""


class StagedBatch(NamedTuple):
    at: At
    header: BatchHeader
    data: bytes


class PublishedPlace:
    """One partition that the job goes to."""

    def __init__(self, partition: Partition, producer_id: int) -> None:
        self.partition = partition
        state = partition.log.producers.get(producer_id)
        self.first = partition.log.producers.stability.open.get(producer_id, -1)
        if state is None and self.first >= 0:
            raise Forgotten
        self.done = 0 if state is None else state.sent[-1].last_sequence + 1  # records that the log has
        self.last = -1 if state is None else state.sent[-1].last_offset
        self.seen = 0  # records read from the files so far

    def stored(self, offset: int, count: int) -> None:
        if self.first < 0:
            self.first = offset
        self.last = max(self.last, offset + count - 1)


class Publication:
    """`stagings`: the job's tasks in the order of its tokens. `progress(bytes)`: called as bytes are published."""

    def __init__(
        self,
        runtime: Runtime,
        files: StagedFiles,
        job: Job,
        stagings: list[StagedTask],
        progress: Callable[[int], None],
    ) -> None:
        self._runtime = runtime
        self._files = files
        self._job = job
        self._stagings = stagings
        self._progress = progress

    async def write(self) -> list[PublishedPart]:
        """Appends the batches that are not in the logs yet. Gives what the logs then have of the job, on disk.

        Raises StorageError and ShuttingDown, after which it may be called again; Forgotten; CorruptBatch and others for
        a job that can't be published.
        """
        producer_id = self._job.producer_id
        places: dict[At, PublishedPlace] = {}
        for staging in self._stagings:
            topic = self._runtime.topics.by_id.get(staging.topic_id)
            for index, _ in staging.counts:
                if topic is not None and (staging.topic_id, index) not in places:
                    places[staging.topic_id, index] = PublishedPlace(topic.led(index), producer_id)
        under_way: deque[tuple[int, Later[None]]] = deque()
        try:
            await self._append_all(places, under_way)
        finally:
            for _, later in under_way:  # so that no append is under way when this is called again
                with suppress(KrappyError):
                    await later.wait()
        for place in places.values():
            await self._settled(place)
        return [
            PublishedPart(place.partition.topic, place.partition.index, place.first, place.last, place.seen)
            for place in places.values()
            if place.partition.gone is None
        ]

    async def _append_all(self, places: dict[At, PublishedPlace], under_way: deque[tuple[int, Later[None]]]) -> None:
        size = 0
        for staging in self._stagings:
            with closing(self._blocks(staging, places)) as blocks:  # closed at once: an open file takes room
                while (block := await self._runtime.in_thread(partial(next, blocks, None))) is not None:
                    if self._runtime.stopped:
                        raise ShuttingDown("the broker is shutting down; the job is published after its next start")
                    for item in block:
                        size += len(item.data)
                        under_way.append((len(item.data), self._append(places[item.at], item)))
                        while size > WINDOW:
                            size -= await self._oldest(under_way)
            self._progress(staging.size)
        while under_way:
            await self._oldest(under_way)

    async def _oldest(self, under_way: deque[tuple[int, Later[None]]]) -> int:
        """Waits for the oldest append. Gives its size. In each partition, the first append that fails has the
        reason."""
        size, later = under_way.popleft()
        await later.wait()
        return size

    def _blocks(self, staging: StagedTask, places: dict[At, PublishedPlace]) -> Generator[list[StagedBatch]]:
        """The batches to append, some MiB at a time. Runs in a worker thread."""
        goes_to = [(places.get((staging.topic_id, index)), count) for index, count in staging.counts]
        there = [(found, count) for found, count in goes_to if found is not None]  # the others' topics were deleted
        if all(found.seen + count <= found.done for found, count in there):
            for found, count in there:
                found.seen += count
            return  # the logs have all of the file, which may be damaged by now
        for frames in self._files.read(staging.id, staging.size):
            block: list[StagedBatch] = []
            for index, header, data in frames:
                place = places.get((staging.topic_id, index))
                if place is None:
                    continue  # the topic was deleted
                sequence = place.seen
                place.seen += header.count
                if place.seen > place.done:
                    copy = batches.in_transaction(data, self._job.producer_id, EPOCH, sequence)
                    block.append(StagedBatch((staging.topic_id, index), batches.read_header(copy), copy))
            yield block

    def _append(self, place: PublishedPlace, item: StagedBatch) -> Later[None]:
        answer: Later[None] = Later()

        def stored(found: StoredAt | None, error: Exception | None) -> None:
            if found is not None:
                place.stored(found.offset, item.header.count)
            if error is None or isinstance(error, UnknownTopic):  # deleted, with all that went there
                answer.resolve(None)
            else:
                answer.reject(error)

        try:
            place.partition.publish_own(item.header, item.data).then(stored)
        except UnknownTopic:
            answer.resolve(None)
        return answer

    async def _settled(self, place: PublishedPlace) -> None:
        partition = place.partition
        await partition.commit.settled()
        if partition.gone is None and partition.high_watermark <= place.last:
            raise StorageError(f"{partition}: what was written of the job '{self._job.name:.80}' is not on disk")

    def _targets(self) -> set[At]:
        return {(staging.topic_id, index) for staging in self._stagings for index, _ in staging.counts}

    async def mark(self, *, commit: bool) -> None:
        """Ends the transaction in every partition where it is open. May be done twice. Raises StorageError."""
        producer_id = self._job.producer_id
        markers = []
        for at in self._targets():
            topic = self._runtime.topics.by_id.get(at[0])
            try:
                partition = None if topic is None else topic.led(at[1])
                if partition is not None and partition.offline:
                    raise StorageError(f"{partition}: {partition.offline}")  # whether it is open there is not known
                if partition is not None and (
                    producer_id in partition.stability.open or producer_id in partition.log.producers.stability.open
                ):
                    markers.append(partition.end_transaction(producer_id, EPOCH, commit))
            except (UnknownTopic, UnknownPartition):
                continue
        await written(markers)
