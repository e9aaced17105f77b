"""Carries out the commit of a job in a cluster: the leaders of the partitions append its batches, and end its
transaction as any other (transactions/markers.py).

Rules of this file:

- Each try has a producer id of its own, which is durable before anything is written under it. Its batches are appended
  one after another in each partition. When one fails, or nobody knows whether it did, or the job gets another
  coordinator, the whole try is aborted, and the next try begins anew.
- An end is told to all partitions that the job goes to, whether or not something came there. It has the coordinator's
  epoch, and raises the producer's epoch. So afterwards no batch of the try is taken, nor an end by an older
  coordinator.
- A try is aborted before its producer id is forgotten: so there is always somebody who ends what it has begun.
- Before that, the job is written once more as it is. An earlier coordinator may have written a record to commit the
  try, which only some replicas have, and the next coordinator may be one of these. Once the new write is committed in
  this term, the old record can't come up any more.
- Nothing is written while a partition that the job goes to can't take events: what is written to the others would be
  aborted, and take room until it is cleaned. After a try that failed for another reason, the next one waits longer.
- Markers that commit are written once every batch is committed, and that is recorded. From then on the job can only be
  committed, by whoever coordinates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from krappy.broker.staging.live_job import LiveJob
from krappy.broker.staging.publishing import JobEnds
from krappy.broker.staging.replicated import JobTable
from krappy.core import staging as core
from krappy.core.cluster.state import NOBODY
from krappy.core.staging import Job, JobState, PublishedPart, StagedTask
from krappy.core.transactions import Transaction
from krappy.errors import (
    CorruptBatch,
    KrappyError,
    NotEnoughReplicas,
    NotLeader,
    RecordTooLarge,
    ShuttingDown,
    UnknownPartition,
    UnknownTopic,
)
from krappy.records import batch as batches
from krappy.records.batch import BatchHeader
from krappy.store.staging import frames
from krappy.types import TopicPartition

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.broker.transactions.markers import Markers
    from krappy.broker.transactions.producer_ids import ProducerIds
    from krappy.ports.cluster import LogPeersPort

EPOCH = 0  # the producer epoch of batches
ENDED = 1  # the producer epoch of markers
FINAL = (CorruptBatch, RecordTooLarge)  # a job with these can't be published as a whole

At = tuple[bytes, int]  # topic id, partition


class StagedFrame(NamedTuple):
    header: BatchHeader
    data: memoryview


class JobPlace:
    """What the log of one partition has of the job."""

    def __init__(self, topic: str, index: int) -> None:
        self.at = TopicPartition(topic, index)
        self.records = 0
        self.first = self.last = -1

    def stored(self, offset: int, count: int) -> None:
        if self.first < 0:
            self.first = offset
        self.last = offset + count - 1
        self.records += count


class ClusterPublisher:
    """Implements `Publisher`."""

    def __init__(self, runtime: Runtime, producer_ids: ProducerIds, markers: Markers, peers: LogPeersPort) -> None:
        self._runtime, self._producer_ids = runtime, producer_ids
        self._markers, self._peers = markers, peers

    async def new_id(self, stagings: Sequence[StagedTask]) -> int:
        return await self._producer_ids.new_own(())

    def begins(self, job: Job) -> None:
        """Does nothing."""

    async def carry_out(self, live: LiveJob, ends: JobEnds) -> None:
        stagings, term = live.published, live.term
        live.done, live.total = 0, sum(staging.size for staging in stagings)
        if live.job.state is JobState.PUBLISHING:
            if live.tried:
                await self._save(live, live.job)
                await self._end(live, commit=False)
                await self._save(live, live.job._replace(producer_id=await self.new_id(stagings)))
                live.tried = False
            self._check_targets(live)
            live.tried = True
            try:
                published = await self._write(live)
            except FINAL as error:
                await self._end(live, commit=False)
                await self._fail(live, ends, error)
                return
            await self._runtime.decisions.wait()
            await self._save(live, core.written(live.job, published, stagings))
        live.trouble = None
        await self._end(live, commit=True)
        term.check(live.job.name)
        await ends.save_end(live, core.complete(live.job, self._runtime.clock.steady_ms()))
        ends.over(live)

    async def _save(self, live: LiveJob, job: Job) -> None:
        await live.term.put(job)
        live.job = job

    async def _fail(self, live: LiveJob, ends: JobEnds, error: KrappyError) -> None:
        """Ends a job that can't be published."""
        failed = core.fail(live.job, self._runtime.clock.steady_ms(), error.text)
        self._runtime.report("staged_job_failed", job=failed.name, error=error.text)
        await ends.save_end(live, failed)
        ends.over(live)

    async def _end(self, live: LiveJob, *, commit: bool) -> None:
        """Ends the job's transaction in all partitions. May be done twice. Raises KrappyError when that did not succeed
        everywhere; CoordinatorFenced when the job has another coordinator."""
        names = self._runtime.image.names
        targets = {
            TopicPartition(names[staging.topic_id], index)
            for staging in live.published
            for index, _ in staging.counts
            if staging.topic_id in names
        }
        ended = Transaction("", live.job.producer_id, ENDED, 0, partitions=frozenset(targets), bumped=True, number=-1)
        await self._markers.write(ended, commit, live.term.epoch)

    def _check_targets(self, live: LiveJob) -> None:
        """Raises NotLeader, NotEnoughReplicas while a partition that the job goes to can't take events."""
        image = self._runtime.image
        for staging in live.published:
            if staging.topic_id not in image.names:
                continue  # it was deleted
            name = image.names[staging.topic_id]
            for index, _ in staging.counts:
                state = image.topics[name].partitions[index].state
                if state.leader == NOBODY:
                    raise NotLeader(f"nobody leads {name}-{index} now", topic=name, partition=index)
                if len(state.isr) < state.min_isr:
                    raise NotEnoughReplicas(f"too few replicas of {name}-{index} are in sync to publish the job")

    async def _write(self, live: LiveJob) -> list[PublishedPart]:
        """Appends all batches. Gives what the logs then have of the job, committed. Raises one of `FINAL` for a job
        that can't be published; another KrappyError if it may be tried again under another producer id."""
        places: dict[At, JobPlace] = {}
        for staging in live.published:
            for index, _ in staging.counts:
                places.setdefault((staging.topic_id, index), JobPlace(staging.topic, index))
        for staging in live.published:
            await self._write_attempt(live, staging, places)
            live.done += staging.size
            live.trouble = None
        there = self._runtime.image.names
        return [
            PublishedPart(*place.at, place.first, place.last, place.records)
            for (id, _), place in places.items()
            if id in there
        ]

    async def _write_attempt(self, live: LiveJob, staging: StagedTask, places: dict[At, JobPlace]) -> None:
        assert isinstance(live.term, JobTable)
        data = live.term.data(live.job.name, staging.id)
        position = number = 0
        while position < staging.size:
            if self._runtime.stopped:
                raise ShuttingDown("the broker is shutting down; the job's next coordinator publishes it")
            row = await data.row(number)
            found, taken = frames(memoryview(row), f"row {number} of the job '{live.job.name:.80}'", 0)
            if taken < len(row):
                raise CorruptBatch(f"row {number} of the job '{live.job.name:.80}' is cut short")
            shares: dict[At, list[StagedFrame]] = {}
            for index, header, batch in found:
                shares.setdefault((staging.topic_id, index), []).append(StagedFrame(header, batch))
            await self._append_all(live, shares, places)
            position, number = position + len(row), number + 1

    async def _append_all(self, live: LiveJob, shares: dict[At, list[StagedFrame]], places: dict[At, JobPlace]) -> None:
        """Appends to all partitions at the same time. Raises as `_write`, once all have ended."""
        troubles: list[KrappyError] = []

        async def append(at: At) -> None:
            try:
                await self._append(live, at, places[at], shares[at])
            except KrappyError as error:
                troubles.append(error)

        async with trio.open_nursery() as nursery:
            for at in shares:
                nursery.start_soon(append, at)
        if troubles:
            raise next((each for each in troubles if isinstance(each, FINAL)), troubles[0])

    async def _append(self, live: LiveJob, at: At, place: JobPlace, share: Sequence[StagedFrame]) -> None:
        """Appends these batches to one partition, one after another. Raises as `_write`."""
        id = at[0]
        for header, data in share:
            batch = batches.in_transaction(data, live.job.producer_id, EPOCH, place.records)
            live.term.check(live.job.name)
            topic = self._runtime.image.topics.get(place.at.topic)
            if topic is None or topic.id != id:
                return  # the topic was deleted, with all that went there
            leader = topic.partitions[place.at.partition].state.leader
            if leader == NOBODY:
                raise NotLeader(f"nobody leads {place.at} now", topic=place.at.topic, partition=place.at.partition)
            if leader == self._runtime.id:
                try:  # by id: its name may still be that of an earlier topic here
                    partition = self._runtime.topics.by_id[id].led(place.at.partition)
                    stored = await partition.publish_own(batches.read_header(batch), batch).wait()
                except (KeyError, UnknownTopic, UnknownPartition) as error:
                    raise NotLeader(f"{place.at}: {error}") from error  # if it was deleted, the next try knows that
                offset = stored.offset
            else:
                offset = await self._peers.append_staged(leader, place.at, id, batch)
            place.stored(offset, header.count)
