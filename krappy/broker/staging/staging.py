"""The coordinator of staged jobs: transitions made durable, and what follows from them.

Rules of this file:

- core/staging.py decides. The next state is first made durable, then set in memory, then acted on. Jobs that are over
  are only on disk, and looked up there.
- One change of a job at a time. A change is finished even if its client is gone.
- A publication is a task of its own: its client may disconnect and ask again. When the disk refuses, it is tried again;
  after a crash the next start goes on with it. A job that can't be published as a whole is aborted.
- An attempt that is not sealed ends with the broker. A job's time to live starts anew when the broker starts.
- A broker of a cluster coordinates those jobs whose partition of `__staged_jobs` it leads (replicated.py). All that
  follows from a state is done in the term in which it was read. When that is over, the next coordinator goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from krappy.broker.staging.keeping import JobKeeper, JobTerm, KeptJob
from krappy.broker.staging.live_job import LiveJob
from krappy.broker.staging.publishing import Publisher
from krappy.broker.staging.staged_attempt import StagedAttempt
from krappy.broker.transactions.turns import IdTurns
from krappy.core import staging as core
from krappy.core.owned_memory import OwnedMemory
from krappy.core.staging import Job, JobState, StagedTask
from krappy.errors import (
    CoordinatorNotAvailable,
    InvalidRecord,
    KrappyError,
    NotCoordinator,
    NotLeader,
    Overloaded,
    ShuttingDown,
    StagingFull,
    UnknownStaging,
    UnknownTopic,
)
from krappy.ports import StagedJobRow, StageOpened
from krappy.ports.audit import whose
from krappy.store.staging import StagedFiles
from krappy.turns import UserTurns
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.topic import Topic
    from krappy.broker.transactions.producer_ids import ProducerIds

MAX_JOBS = 10_000  # jobs that are not over
MAX_ATTEMPTS = 50_000  # attempts of all jobs together
PUBLISHING = 8  # jobs that are published at a time, half of them of one user
RETRY_S = 1.0  # seconds of pause after a try that failed
LONGEST_S = 30.0  # the longest pause, while each try begins anew


class StagingCoordinator:
    def __init__(
        self,
        runtime: Runtime,
        files: StagedFiles,
        producer_ids: ProducerIds,
        topic_for: Callable[[str], Awaitable[Topic]],
        check_room: Callable[[int], None],
    ) -> None:
        """`files`: of a broker that is alone. `topic_for`: `LocalBroker.topic_for_producer`. `check_room(bytes)`:
        raises when the disk has too little. Before it is opened it is given its `keeper` and `publisher`
        (parts.py)."""
        self._runtime = runtime
        self._producer_ids = producer_ids
        self._topic_for = topic_for
        self._check_room = check_room
        self.files = files
        self.keeper: JobKeeper
        self.publisher: Publisher
        self._outcome_ms = runtime.config.staging_outcome_ms
        self._live: dict[str, LiveJob] = {}
        self._turns = IdTurns()
        self.owners = producer_ids.owned  # the producer ids of jobs that are being published
        fair = runtime.config.authorizes
        self._jobs, self._attempts = OwnedMemory(MAX_JOBS, fair=fair), OwnedMemory(MAX_ATTEMPTS, fair=fair)
        self.bytes = OwnedMemory(runtime.config.staging_bytes, fair=fair)
        self._slots = UserTurns(PUBLISHING)
        self._at_work = 0
        self._settled = Signal()

    # --- life

    async def open(self) -> None:
        """Loads all jobs and goes on with them; in a cluster with each job when it begins to coordinate it. Raises
        StorageError for a state that can't be read."""
        await self.keeper.open()

    def take(self, jobs: Sequence[KeptJob], term: JobTerm) -> None:
        """Goes on with these jobs, which this broker coordinates from now on."""
        now = self._runtime.clock.steady_ms()
        for job, sealed in jobs:
            kept = job._replace(touched_ms=now) if job.state is JobState.OPEN else job
            live = self._put(LiveJob(kept, term))
            for staging in sealed:
                self._add(live, staging, None)
                self.bytes.charge("", staging.size)
            if job.publishing:
                self._runtime.report("staged_job_resumed", job=job.name, state=str(job.state))
                live.tried = True
                self.publisher.begins(job)
                self._start(live)

    def forget(self, is_in: Callable[[str], bool]) -> None:
        """Forgets the jobs with these names, which another broker coordinates now."""
        for live in [each for each in self._live.values() if is_in(each.job.name)]:
            self._remove_job(live)
            refusal = NotCoordinator(f"this broker does not coordinate the job '{live.job.name:.80}' any more")
            for attempt in live.attempts.values():
                self._attempts.charge(attempt.owner, -1)
                attempt.drop(refusal)
                self._spawn(attempt.leave)
            live.moved.fire()

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
        """Begins an attempt of a task to stage for a topic; with `id`, goes on with that attempt over a new connection.

        Raises as core's `begin`; UnknownTopic; UnknownStaging for an attempt that is gone; Overloaded.
        """
        core.check_name("task", task)
        core.check_name("attempt", attempt_name)
        async with self._turns.of(name):
            term = self.keeper.term(name)
            found = await self._find(name)
            job = core.begin(found, name, ttl_ms, self._runtime.clock.steady_ms(), topic_name, self._topic_id)
            if id is not None:
                live, attempt = self._attempt(found, name, id)
                live.job = job
                return StageOpened(id, attempt, *attempt.producer)
            topic = await self._topic_for(topic_name)
            owner = whose()
            with self._reserved(name, owner, attempts=1):
                producer = await self._producer_ids.new()
                staging = StagedTask(secrets.token_hex(8), topic.name, topic.id, task, attempt_name)
                await term.begin_attempt(job, staging)
            live = self._live.get(name) or self._put(LiveJob(job, term, owner))
            live.job = job
            attempt = self._add(live, staging, topic, owner)
            attempt.producer = producer, 0
            return StageOpened(staging.id, attempt, *attempt.producer)

    def topics(self, name: str) -> set[str]:
        """The topics that a job stages for; none if the job is over, or not there."""
        live = self._live.get(name)
        return set() if live is None else {each.staging.topic for each in live.attempts.values()}

    async def seal(self, name: str, id: str, records: int) -> str:
        """Makes an attempt durable, and gives its token. Sealing it again gives the same token.

        Raises the error of `core.refusal`, UnknownStaging, InvalidRequest when it does not have `records` records,
        StorageError.
        """
        _, attempt = self._attempt(await self._find(name), name, id)
        staged = await attempt.sync()
        async with self._turns.of(name):
            term = self.keeper.term(name)
            # Looks again: meanwhile the attempt may have been dropped, or the job published.
            live, attempt = self._attempt(await self._find(name), name, id)
            if not attempt.staging.sealed:
                sealed = core.seal(staged, records)
                job = live.job._replace(touched_ms=self._runtime.clock.steady_ms())
                await term.put(job, sealed)
                live.job, attempt.staging = job, sealed
            return attempt.staging.id

    async def commit(self, name: str, tokens: Sequence[str], max_wait_ms: int) -> tuple[Job, int, int]:
        """Publishes what is sealed under these tokens. Gives the job, the bytes published, and the bytes to publish.

        It returns once the job is over, or after `max_wait_ms`, while publishing goes on. Raises as core's `commit`;
        UnknownTopic, InvalidRecord for what a topic no longer takes; Overloaded; StorageError when the disk refuses all
        that time.
        """
        async with self._turns.of(name):
            term = self.keeper.term(name)
            found = await self._find(name)
            live = self._live.get(name)
            job = core.commit(found, name, tokens, {} if live is None else live.staged, self._runtime.clock.steady_ms())
            if job is not found:
                if tokens:
                    self._check_room(0)  # while it can still be aborted
                for token in tokens:
                    assert live is not None
                    self._check_topic(live.attempts[token].staging)
                stagings = [] if live is None else [live.attempts[token].staging for token in tokens]
                owner = whose()
                with self._reserved(name, owner):  # it is new if nothing was staged for it
                    job = job._replace(producer_id=await self.publisher.new_id(stagings))
                    await self._runtime.decisions.wait()
                    await term.put(job)
                live = self._live.get(name) or self._put(LiveJob(job, term, owner))
                live.job = job
                self.publisher.begins(job)
                self._start(live)
        if live is None:
            return job, 0, 0
        await wait_any(
            [live.moved, self._runtime.stopping],
            lambda: (
                self._turns.closed
                or self._runtime.stopped
                or live.job.state in core.OVER
                or self._live.get(name) is not live
            ),
            max_wait_ms / 1000,
        )
        if live.job.state not in core.OVER:
            live.term.check(name)
        if live.job.state is JobState.ABORTED:
            raise core.refusal(live.job)
        if live.job.publishing and live.trouble is not None:
            if live.trouble.retriable and not isinstance(live.trouble, NotLeader | NotCoordinator):
                raise live.trouble
            # The job is tried again, so its client may ask again. It is to ask this broker, whichever broker leads the
            # partitions.
            raise CoordinatorNotAvailable(live.trouble.text)
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

    async def abort(self, name: str, id: str | None = None) -> None:
        """Aborts a job: drops all that it has staged, and refuses later attempts. With `id`: drops one attempt only.

        Raises StagingCommitted. An unknown attempt is not an error.
        """
        async with self._turns.of(name):
            term = self.keeper.term(name)
            found = await self._find(name)
            live = self._live.get(name)
            with self._runtime.audit.change("job", [name], self._told) as told:
                told.made = False
                if id is None:
                    job = core.abort(found, name, self._runtime.clock.steady_ms())
                    if job is not found:
                        await self._end(live or LiveJob(job, term), job)
                        told.made, told.after[name] = True, {"state": str(job.state)}
                elif live is not None and live.job.state is JobState.OPEN and id in live.attempts:
                    attempt = live.attempts[id]
                    if attempt.staging.sealed:
                        await term.drop(live.job, attempt.staging)
                    self._drop(live, id, UnknownStaging("this attempt was dropped"))
                    told.made = True

    def _told(self, name: str) -> dict[str, Any] | None:
        """What the audit log tells of a job that is not over."""
        live = self._live.get(name)
        return None if live is None else {"state": str(live.job.state), "attempts": len(live.attempts)}

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
            try:
                await self._expire(name, now)
            except (NotLeader, NotCoordinator):
                pass  # the broker that coordinates it now does it
            except KrappyError as error:  # this job's partition can't be written to; those of others may
                self._runtime.report("housekeeping_failed", part="staging", error=str(error))
        await self.keeper.forget(now - self._outcome_ms)

    async def _expire(self, name: str, now_ms: int) -> None:
        async with self._turns.of(name):
            live = self._live.get(name)
            if live is not None and core.overdue(live.job, self._runtime.clock.steady_ms()):
                self._runtime.report("staged_job_expired", job=name, attempts=len(live.attempts))
                await self._end(live, core.expire(live.job, now_ms))

    # --- how

    async def _find(self, name: str) -> Job | None:
        live = self._live.get(name)
        return await self.keeper.term(name).find(name) if live is None else live.job

    def _attempt(self, found: Job | None, name: str, id: str) -> tuple[LiveJob, StagedAttempt]:
        """`found`: the job, as `_find` gives it now."""
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

    @contextmanager
    def _reserved(self, name: str, owner: str, attempts: int = 0) -> Iterator[None]:
        """Keeps room for this job, if it is new, and for so many attempts more, during the body. Raises Overloaded."""
        new = int(name not in self._live)
        if not (self._jobs.has_room(owner, new) and self._attempts.has_room(owner, attempts)):
            raise Overloaded(
                f"{len(self._live)} jobs with {self._attempts.total} attempts are staged, and one user may have as "
                "many as are left for all others: commit or abort some"
            )
        with self._jobs.reserved(owner, new), self._attempts.reserved(owner, attempts):
            yield

    def _put(self, live: LiveJob) -> LiveJob:
        self._live[live.job.name] = live
        self._jobs.charge(live.owner, 1)
        return live

    def _remove_job(self, live: LiveJob) -> None:
        del self._live[live.job.name]
        self._jobs.charge(live.owner, -1)

    def _add(self, live: LiveJob, staging: StagedTask, topic: Any, owner: str = "") -> StagedAttempt:
        def touch() -> None:
            live.job = live.job._replace(touched_ms=self._runtime.clock.steady_ms())

        data = live.term.data(live.job.name, staging.id)
        attempt = StagedAttempt(self._runtime, self._check_room, data, staging, topic, self._claim, touch, owner)
        live.attempts[staging.id] = attempt
        self._attempts.charge(owner, 1)
        return attempt

    def _claim(self, owner: str, size: int) -> None:
        if not self.bytes.has_room(owner, size):
            raise StagingFull(
                f"{self.bytes.total} bytes are staged, and no more than {self.bytes.most} may be (staging_bytes), by "
                "one user as many as are left for all others: commit or abort jobs, or allow more"
            )
        self.bytes.charge(owner, size)

    def _drop(self, live: LiveJob, id: str, error: KrappyError) -> None:
        attempt = live.attempts.pop(id)
        self._attempts.charge(attempt.owner, -1)
        attempt.drop(error)
        self._spawn(self._remove, attempt)

    async def _remove(self, attempt: StagedAttempt) -> None:
        try:
            await attempt.remove()
        except KrappyError as error:
            self._runtime.report("staged_file_not_removed", error=str(error))

    async def _end(self, live: LiveJob, job: Job) -> None:
        """Makes the job's end durable, and drops what it staged."""
        await self.save_end(live, job)
        self.over(live)

    async def save_end(self, live: LiveJob, job: Job, *, sync: bool = True) -> None:
        sealed = [id for id, attempt in live.attempts.items() if attempt.staging.sealed]
        await live.term.end(job, sealed, sync=sync)
        live.job = job

    def over(self, live: LiveJob) -> None:
        """Drops the job from memory, and what it staged. From now on it is looked up on disk."""
        if self._live.get(live.job.name) is live:
            self._remove_job(live)
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
        pause = RETRY_S
        while not self._turns.closed:
            try:
                async with self._slots.one(live.owner):
                    live.term.check(live.job.name)
                    await self.publisher.carry_out(live, self)
                return
            except KrappyError as error:
                if self._turns.closed or self._runtime.stopped:  # the next start goes on with it
                    return
                if self._live.get(live.job.name) is not live:  # so does the next coordinator
                    return
                live.trouble = error
                self._runtime.report("staged_job_waits", job=live.job.name, error=str(error))
                live.moved.fire()
            await wait_any([self._runtime.stopping], lambda: self._turns.closed or self._runtime.stopped, pause)
            pause = min(LONGEST_S, 2 * pause) if live.tried else RETRY_S
