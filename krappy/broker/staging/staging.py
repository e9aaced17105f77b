"""The coordinator of staged jobs: transitions made durable, and what follows from them.

Rules of this file:

- core/staging.py decides. The next state is first made durable, then set in memory, then acted on. Jobs that are over
  are only on disk, and looked up there.
- One change of a job at a time. A change is finished even if its client is gone.
- A publication is a task of its own: its client may disconnect and ask again. When the disk refuses, it is tried again;
  after a crash the next start goes on with it. A job that can't be published as a whole is aborted.
- An attempt that is not sealed ends with the broker. A job's time to live starts anew when the broker starts.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from krappy.broker.staging.publication import Forgotten, Publication
from krappy.broker.staging.staged_attempt import StagedAttempt
from krappy.broker.transactions.turns import IdTurns
from krappy.core import staging as core
from krappy.core.staging import Job, JobState, StagedTask
from krappy.errors import (
    InvalidRecord,
    KrappyError,
    Overloaded,
    ShuttingDown,
    StagingFull,
    StorageError,
    UnknownStaging,
    UnknownTopic,
)
from krappy.ports import StagedJobRow, StageOpened
from krappy.store.staging import StagedFiles, StagingStore
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.topic import Topic
    from krappy.broker.transactions.producer_ids import ProducerIds

MAX_JOBS = 10_000  # jobs that are not over
MAX_ATTEMPTS = 50_000  # attempts of all jobs together
MAX_OUTCOMES = 1_000_000  # jobs that are over; beyond that, the oldest are forgotten
FORGET_AT_ONCE = 1_000
PUBLISHING = 4  # jobs that are published at a time
RETRY_S = 1.0  # pause after the disk refused


class LiveJob:
    """A job that is not over. Tasks that hold it see here when it is."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.attempts: dict[str, StagedAttempt] = {}
        self.moved = Signal()  # the publication went on, or ended
        self.done = 0  # bytes of it that are published
        self.total = 0
        self.trouble: KrappyError | None = None  # why its publication waits now
        self.stale: list[Job] = []  # its states under older producer ids, whose transactions must still be aborted

    @property
    def staged(self) -> dict[str, StagedTask]:
        return {id: attempt.staging for id, attempt in self.attempts.items()}


class StagingCoordinator:
    def __init__(
        self,
        runtime: Runtime,
        store: StagingStore,
        files: StagedFiles,
        producer_ids: ProducerIds,
        topic_for: Callable[[str], Awaitable[Topic]],
        check_room: Callable[[int], None],
    ) -> None:
        """`topic_for`: `LocalBroker.topic_for_producer`. `check_room(bytes)`: raises when the disk has too little."""
        self._runtime = runtime
        self._producer_ids = producer_ids
        self._topic_for = topic_for
        self._check_room = check_room
        self._store = store
        self.files = files
        self._limit = runtime.config.staging_bytes
        self._outcome_ms = runtime.config.staging_outcome_ms
        self._live: dict[str, LiveJob] = {}
        self._turns = IdTurns()
        self.owners = producer_ids.owned  # of jobs that are being published
        self._attempts = 0
        self._outcomes = 0
        self.used = 0  # bytes that the files take
        self._slots = trio.Semaphore(PUBLISHING)
        self._at_work = 0
        self._settled = Signal()

    # --- life

    async def open(self) -> None:
        """Loads all jobs and goes on with them. Raises StorageError for a state that can't be read."""
        now = self._runtime.clock.steady_ms()
        found = await self._runtime.in_thread(self._store.load_all)
        self._outcomes = await self._runtime.in_thread(self._store.count_outcomes)
        for job, sealed in found:
            live = self._live[job.name] = LiveJob(job._replace(touched_ms=now) if job.state is JobState.OPEN else job)
            for staging in sealed:
                self._add(live, staging, None)
                self.used += staging.size
        kept = {staging.id for _, sealed in found for staging in sealed}
        await self._runtime.in_thread(lambda: self.files.open(kept))
        for live in self._live.values():
            if live.job.publishing:
                self._runtime.report("staged_job_resumed", job=live.job.name, state=str(live.job.state))
                self.owners.add(live.job.producer_id)
                self._start(live)

    async def close(self) -> None:
        """Stops. The next start goes on with publications that are not done."""
        self._turns.closed = True
        refusal = ShuttingDown("the broker is shutting down")
        for live in self._live.values():
            for attempt in live.attempts.values():
                if not attempt.staging.sealed:
                    attempt.drop(refusal)
            live.moved.fire()
        await wait_any([self._settled], lambda: not self._at_work)

    # --- requests

    async def stage(
        self, topic_name: str, name: str, task: str, attempt_name: str, ttl_ms: int, id: str | None
    ) -> StageOpened:
        """Begins an attempt of a task to stage for a topic; with `id`, goes on with one over a new connection.

        Raises as core's `begin`; UnknownTopic; UnknownStaging for an attempt that is gone; Overloaded.
        """
        core.check_name("task", task)
        core.check_name("attempt", attempt_name)
        async with self._turns.of(name):
            found = self._find(name)
            job = core.begin(found, name, ttl_ms, self._runtime.clock.steady_ms(), topic_name, self._topic_id)
            if id is not None:
                live, attempt = self._attempt(name, id)
                live.job = job
                return StageOpened(id, attempt, *attempt.producer)
            topic = await self._topic_for(topic_name)
            if (name not in self._live and len(self._live) >= MAX_JOBS) or self._attempts >= MAX_ATTEMPTS:
                raise Overloaded(
                    f"{len(self._live)} jobs with {self._attempts} attempts are staged: commit or abort some"
                )
            producer = await self._producer_ids.new()
            live = self._live.setdefault(name, LiveJob(job))
            live.job = job
            staging = StagedTask(secrets.token_hex(8), topic.name, topic.id, task, attempt_name)
            attempt = self._add(live, staging, topic)
            attempt.producer = producer, 0
            return StageOpened(staging.id, attempt, *attempt.producer)

    async def seal(self, name: str, id: str, records: int) -> str:
        """Makes an attempt durable, and gives its token. Sealing it again gives the same token.

        Raises `core.refusal`, UnknownStaging, InvalidRequest when it does not have `records` records, StorageError.
        """
        _, attempt = self._attempt(name, id)
        staged = await attempt.sync()
        async with self._turns.of(name):
            live, attempt = self._attempt(name, id)  # again: meanwhile it may be dropped, or the job published
            if not attempt.staging.sealed:
                sealed = core.seal(staged, records)
                job = live.job._replace(touched_ms=self._runtime.clock.steady_ms())
                await self._runtime.sync_meta(self._store.put(job, sealed))
                live.job, attempt.staging = job, sealed
            return attempt.staging.id

    async def commit(self, name: str, tokens: Sequence[str], max_wait_ms: int) -> tuple[Job, int, int]:
        """Publishes what is sealed under these tokens. Gives the job, the bytes published, and the bytes to publish.

        It returns once the job is over, or after `max_wait_ms`, while publishing goes on. Raises as core's `commit`;
        UnknownTopic, InvalidRecord for what a topic no longer takes; StorageError when the disk refuses all that time.
        """
        async with self._turns.of(name):
            found = self._find(name)
            live = self._live.get(name)
            job = core.commit(found, name, tokens, {} if live is None else live.staged, self._runtime.clock.steady_ms())
            if job is not found:
                if tokens:
                    self._check_room(0)  # while it can still be aborted
                for token in tokens:
                    assert live is not None
                    self._check_topic(live.attempts[token].staging)
                targets = [] if live is None else self._targets([live.attempts[token].staging for token in tokens])
                job = job._replace(producer_id=await self._producer_ids.new_own(targets))
                await self._runtime.decisions.wait()
                await self._runtime.sync_meta(self._store.put(job))
                live = self._live.setdefault(name, LiveJob(job))
                live.job = job
                self.owners.add(job.producer_id)
                self._start(live)
        if live is None:
            return job, 0, 0
        await wait_any(
            [live.moved, self._runtime.stopping],
            lambda: self._turns.closed or self._runtime.stopped or live.job.state in core.OVER,
            max_wait_ms / 1000,
        )
        if live.job.state is JobState.ABORTED:
            raise core.refusal(live.job)
        if live.job.publishing and live.trouble is not None:
            raise live.trouble
        return live.job, live.done, live.total

    def _topic_id(self, name: str) -> bytes | None:
        found = self._runtime.topics.get(name)
        return None if found is None else found.id

    def _check_topic(self, staging: StagedTask) -> None:
        """Refuses a job that can't be published, before that is decided: its client can still correct it. Raises
        UnknownTopic, InvalidRecord."""
        topic = self._runtime.topics.by_id.get(staging.topic_id)
        if topic is None:
            raise UnknownTopic(
                f"the topic '{staging.topic}' was deleted since task '{staging.task:.80}' staged for it: abort the job"
            )
        if topic.config.compact and staging.keyless:
            raise InvalidRecord(
                f"the topic '{staging.topic}' has cleanup.policy=compact now, and task '{staging.task:.80}' staged "
                "events without a key"
            )

    def _targets(self, stagings: Sequence[StagedTask]) -> list[Partition]:
        """The partitions that these tasks publish to, without those of deleted topics."""
        targets: dict[Partition, None] = {}
        for staging in stagings:
            topic = self._runtime.topics.by_id.get(staging.topic_id)
            if topic is not None:
                targets |= dict.fromkeys(topic.led(index) for index, _ in staging.counts)
        return list(targets)

    async def abort(self, name: str, id: str | None = None) -> None:
        """Aborts a job: drops all that it has staged, and refuses later attempts. With `id`: drops one attempt only.

        Raises StagingCommitted. An unknown attempt is not an error.
        """
        async with self._turns.of(name):
            found = self._find(name)
            live = self._live.get(name)
            if id is None:
                job = core.abort(found, name, self._runtime.clock.steady_ms())
                if job is not found:
                    await self._end(live or LiveJob(job), job)
            elif live is not None and live.job.state is JobState.OPEN and id in live.attempts:
                attempt = live.attempts[id]
                if attempt.staging.sealed:
                    await self._runtime.sync_meta(self._store.drop(name, id))
                self._drop(live, id, UnknownStaging("this attempt was dropped"))

    def give_up(self, name: str, id: str) -> None:
        """Drops an attempt whose id nobody was told."""
        live = self._live.get(name)
        if live is not None and id in live.attempts:
            self._drop(live, id, UnknownStaging("this attempt was dropped"))

    def list(self) -> list[StagedJobRow]:
        """All jobs that are not over, sorted by name."""
        return [
            StagedJobRow(
                name,
                str(live.job.state),
                len(live.attempts),
                sum(attempt.staging.sealed for attempt in live.attempts.values()),
                sum(attempt.size for attempt in live.attempts.values()),
                -1 if live.job.publishing else self._runtime.clock.as_told(live.job.touched_ms + live.job.ttl_ms),
            )
            for name, live in sorted(self._live.items())
        ]

    async def tend(self) -> None:
        """Expires jobs that were silent for too long, and forgets jobs that were over long ago."""
        now = self._runtime.clock.steady_ms()
        for name in [name for name, live in self._live.items() if core.overdue(live.job, now)]:
            async with self._turns.of(name):
                live = self._live.get(name)
                if live is not None and core.overdue(live.job, self._runtime.clock.steady_ms()):
                    self._runtime.report("staged_job_expired", job=name, attempts=len(live.attempts))
                    await self._end(live, core.expire(live.job, now))
        before = now - self._outcome_ms
        while True:
            excess = max(0, self._outcomes - MAX_OUTCOMES)
            count = await self._runtime.in_thread(partial(self._store.forget, before, FORGET_AT_ONCE, excess))
            self._outcomes -= count
            if count < FORGET_AT_ONCE:
                return

    # --- how

    def _find(self, name: str) -> Job | None:
        live = self._live.get(name)
        return self._store.find(name) if live is None else live.job

    def _attempt(self, name: str, id: str) -> tuple[LiveJob, StagedAttempt]:
        found = self._find(name)
        live = self._live.get(name)
        attempt = None if live is None else live.attempts.get(id)
        if found is not None and found.state is not JobState.OPEN:
            raise core.refusal(found)
        if live is None or attempt is None:
            raise UnknownStaging(
                f"the job '{name:.80}' has no attempt '{id:.80}': it was dropped, or was not sealed when the broker "
                "stopped; stage it again",
            )
        attempt.check()
        return live, attempt

    def _add(self, live: LiveJob, staging: StagedTask, topic: Any) -> StagedAttempt:
        def touch() -> None:
            live.job = live.job._replace(touched_ms=self._runtime.clock.steady_ms())

        attempt = StagedAttempt(self._runtime, self._check_room, self.files, staging, topic, self._claim, touch)
        live.attempts[staging.id] = attempt
        self._attempts += 1
        return attempt

    def _claim(self, size: int) -> None:
        if size > 0 and self.used + size > self._limit:
            raise StagingFull(
                f"{self.used} bytes are staged, and no more than {self._limit} may be (staging_bytes): commit or abort "
                "jobs, or allow more"
            )
        self.used += size

    def _drop(self, live: LiveJob, id: str, error: KrappyError) -> None:
        attempt = live.attempts.pop(id)
        self._attempts -= 1
        attempt.drop(error)
        self._spawn(self._remove, attempt)

    async def _remove(self, attempt: StagedAttempt) -> None:
        try:
            await attempt.remove()
        except StorageError as error:
            self._runtime.report("staged_file_not_removed", error=str(error))

    async def _end(self, live: LiveJob, job: Job) -> None:
        """Makes the job's end durable, and drops what it staged."""
        await self._save_end(live, job)
        self._over(live)

    async def _save_end(self, live: LiveJob, job: Job, *, sync: bool = True) -> None:
        take_back = self._store.end(job, [id for id, attempt in live.attempts.items() if attempt.staging.sealed])
        if sync:
            await self._runtime.sync_meta(take_back)
        live.job = job
        self._outcomes += 1

    def _over(self, live: LiveJob) -> None:
        """Drops the job from memory, and its files. From now on it is looked up on disk."""
        self._live.pop(live.job.name, None)
        self.owners.discard(live.job.producer_id)
        refusal = core.refusal(live.job)
        for id in list(live.attempts):
            self._drop(live, id, refusal)
        live.moved.fire()

    # --- publication

    def _start(self, live: LiveJob) -> None:
        self._spawn(self._publish, live)

    def _spawn(self, run: Callable[..., Any], *args: Any) -> None:
        async def counted() -> None:
            try:
                await run(*args)
            finally:
                self._at_work -= 1
                self._settled.fire()

        self._at_work += 1
        self._runtime.spawn(counted)

    async def _publish(self, live: LiveJob) -> None:
        """Publishes a committed job, and tries again until that is done."""
        while not self._turns.closed:
            try:
                async with self._slots:
                    await self._carry_out(live)
                return
            except KrappyError as error:
                if self._turns.closed or self._runtime.stopped:  # the next start goes on with it
                    return
                live.trouble = error
                self._runtime.report("staged_job_waits", job=live.job.name, error=str(error))
                live.moved.fire()
            await wait_any([self._runtime.stopping], lambda: self._turns.closed or self._runtime.stopped, RETRY_S)

    async def _carry_out(self, live: LiveJob) -> None:
        job = live.job
        stagings = [live.attempts[token].staging for token in job.tokens]
        live.done, live.total = 0, sum(staging.size for staging in stagings)

        def progress(size: int) -> None:
            live.done += size
            live.trouble = None

        def publishing(job: Job) -> Publication:
            return Publication(self._runtime, self._check_room, self.files, job, stagings, progress)

        for stale in list(live.stale):
            await publishing(stale).mark(commit=False)
            live.stale.remove(stale)
            self.owners.discard(stale.producer_id)
        publication = publishing(job)
        if job.state is JobState.PUBLISHING:
            try:
                published = await publication.write()
            except Forgotten:
                await self._anew(live)
                return
            except KrappyError as error:
                if error.retriable:
                    raise
                await self._fail(live, error)
            else:
                await self._runtime.decisions.wait()
                await self._save(live, core.written(job, published, stagings))
        live.trouble = None
        commit = live.job.state is JobState.MARKING
        await publication.mark(commit=commit)
        if commit:  # if this is lost, the next start finds the markers
            await self._save_end(live, core.complete(live.job, self._runtime.clock.steady_ms()), sync=False)
        self._over(live)

    async def _save(self, live: LiveJob, job: Job) -> None:
        await self._runtime.sync_meta(self._store.put(job))
        live.job = job

    async def _anew(self, live: LiveJob) -> None:
        """Publishes the job again under another producer id, and aborts what the logs have of it. After a crash the
        next start aborts that."""
        before = live.job
        targets = self._targets([live.attempts[token].staging for token in before.tokens])
        after = before._replace(producer_id=await self._producer_ids.new_own(targets))
        self.owners.add(after.producer_id)
        await self._runtime.decisions.wait()
        await self._save(live, after)
        live.stale.append(before)
        await self._carry_out(live)

    async def _fail(self, live: LiveJob, error: KrappyError) -> None:
        """Ends a job that can't be published. First makes that durable, then aborts its transaction: if that fails, the
        next start does it."""
        failed = core.fail(live.job, self._runtime.clock.steady_ms(), error.text)
        self._runtime.report("staged_job_failed", job=failed.name, error=error.text)
        tokens = live.job.tokens
        await self._runtime.decisions.wait()
        await self._save_end(live, failed._replace(tokens=()))
        live.job = failed._replace(tokens=tokens)  # for the markers, should they have to be written again
        live.moved.fire()
