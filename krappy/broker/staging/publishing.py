"""Carries out the commit of a job at a broker that is alone. For a cluster see cluster_publishing.py."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from krappy.broker.staging.live_job import LiveJob
from krappy.broker.staging.publication import Forgotten, Publication
from krappy.core import staging as core
from krappy.core.staging import Job, JobState, StagedTask
from krappy.errors import KrappyError
from krappy.store.staging import StagedFiles

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime
    from krappy.broker.transactions.producer_ids import ProducerIds


class JobEnds(Protocol):
    """What the coordinator does with a job that ends."""

    async def save_end(self, live: LiveJob, job: Job, *, sync: bool = True) -> None:
        """Makes the job's outcome durable."""

    def over(self, live: LiveJob) -> None:
        """Drops the job from memory, and what it staged."""


class Publisher(Protocol):
    async def new_id(self, stagings: Sequence[StagedTask]) -> int:
        """The producer id under which a job with these tasks is published."""

    def begins(self, job: Job) -> None:
        """This job is about to be published."""

    async def carry_out(self, live: LiveJob, ends: JobEnds) -> None:
        """Publishes a committed job, or aborts it when it can't be published as a whole. If it raises KrappyError, it
        must be called again."""


class LocalPublisher:
    """Implements `Publisher`."""

    def __init__(self, runtime: Runtime, files: StagedFiles, producer_ids: ProducerIds) -> None:
        self._runtime, self._files = runtime, files
        self._producer_ids = producer_ids
        self._owners = producer_ids.owned  # the producer ids of jobs that are being published

    async def new_id(self, stagings: Sequence[StagedTask]) -> int:
        return await self._producer_ids.new_own(self._targets(stagings))

    def _targets(self, stagings: Sequence[StagedTask]) -> list[Partition]:
        """The partitions that these tasks publish to, without those of deleted topics."""
        targets: dict[Partition, None] = {}
        for staging in stagings:
            topic = self._runtime.topics.by_id.get(staging.topic_id)
            if topic is not None:
                targets |= dict.fromkeys(topic.led(index) for index, _ in staging.counts)
        return list(targets)

    def begins(self, job: Job) -> None:
        self._owners.add(job.producer_id)

    async def carry_out(self, live: LiveJob, ends: JobEnds) -> None:
        job, stagings = live.job, live.published
        live.done, live.total = 0, sum(staging.size for staging in stagings)

        def progress(size: int) -> None:
            live.done += size
            live.trouble = None

        publishing = partial(Publication, self._runtime, self._files)
        for stale in list(live.stale):
            await publishing(stale, stagings, progress).mark(commit=False)
            live.stale.remove(stale)
            self._owners.discard(stale.producer_id)
        publication = publishing(job, stagings, progress)
        if job.state is JobState.PUBLISHING:
            try:
                published = await publication.write()
            except Forgotten:
                await self._anew(live, ends)
                return
            except KrappyError as error:
                if error.retriable:
                    raise
                await self._fail(live, ends, error)
            else:
                await self._runtime.decisions.wait()
                await self._save(live, core.written(job, published, stagings))
        live.trouble = None
        commit = live.job.state is JobState.MARKING
        await publication.mark(commit=commit)
        if commit:  # if this is lost, the next start finds the markers
            await ends.save_end(live, core.complete(live.job, self._runtime.clock.steady_ms()), sync=False)
        ends.over(live)
        self._owners.discard(job.producer_id)

    async def _save(self, live: LiveJob, job: Job) -> None:
        await live.term.put(job)
        live.job = job

    async def _anew(self, live: LiveJob, ends: JobEnds) -> None:
        """Publishes the job again under another producer id, and aborts what the logs have of it. After a crash the
        next start aborts that."""
        before = live.job
        after = before._replace(producer_id=await self.new_id(live.published))
        self._owners.add(after.producer_id)
        await self._runtime.decisions.wait()
        await self._save(live, after)
        live.stale.append(before)
        await self.carry_out(live, ends)

    async def _fail(self, live: LiveJob, ends: JobEnds, error: KrappyError) -> None:
        """Ends a job that can't be published. First makes that durable, then aborts its transaction: if that fails, the
        next start does it."""
        failed = core.fail(live.job, self._runtime.clock.steady_ms(), error.text)
        self._runtime.report("staged_job_failed", job=failed.name, error=error.text)
        tokens = live.job.tokens
        await self._runtime.decisions.wait()
        await ends.save_end(live, failed._replace(tokens=()))
        live.job = failed._replace(tokens=tokens)  # for the markers, should they have to be written again
        live.moved.fire()
