"""Where staged jobs are kept. A broker that is alone keeps them in its meta database and its folder; for a cluster see
replicated.py.

A broker that is alone does not keep its jobs in a topic: their batches would be written twice there, to a log and to a
view, while now each is written once, to a file. And no other broker could take them over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from krappy.broker.staging.attempt_data import AttemptData, FileData
from krappy.core.staging import Job, StagedTask
from krappy.store.staging import StagedFiles, StagingStore

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

MAX_OUTCOMES = 1_000_000  # jobs that are over; beyond that, a broker that is alone forgets the oldest
FORGET_AT_ONCE = 1_000


class KeptJob(NamedTuple):
    """A job that is not over, with its sealed attempts."""

    job: Job
    sealed: Sequence[StagedTask]


class JobTerm(Protocol):
    """A time in which one broker coordinates a job. `epoch`: markers carry it; those of an earlier epoch are refused.

    What a method writes is durable on return. If it raises StorageError, the old state stays, but after a crash just
    then it may be the old or the new one. It also raises as `check`: then another coordinator finds the old or the new
    state."""

    epoch: int

    def check(self, name: str) -> None:
        """Raises NotCoordinator, CoordinatorNotAvailable when it is over."""

    async def begin_attempt(self, job: Job, attempt: StagedTask) -> None:
        """Notes that an attempt begins. If it is not sealed, it ends with this term."""

    async def put(self, job: Job, sealed: StagedTask | None = None) -> None:
        """Writes a job that is not over, and an attempt that was sealed now."""

    async def drop(self, job: Job, sealed: StagedTask) -> None:
        """Forgets one sealed attempt."""

    async def end(self, job: Job, sealed: Collection[str], *, sync: bool = True) -> None:
        """Writes the outcome of a job, and forgets its attempts, of which these are `sealed`. Without `sync` it need
        not be durable, since it can be found out again."""

    async def find(self, name: str) -> Job | None:
        """The outcome of a job that is over; None if it is not known."""

    def data(self, job: str, attempt: str) -> AttemptData: ...


class JobKeeper(Protocol):
    async def open(self) -> None:
        """Loads what is kept. Raises StorageError for what it can't read."""

    def check_here(self, name: str) -> None:
        """Raises CoordinatorLoading, CoordinatorNotAvailable while this broker has not loaded what is kept of the
        job."""

    def term(self, name: str) -> JobTerm:
        """Raises NotCoordinator, CoordinatorNotAvailable unless this broker coordinates the job now."""

    async def forget(self, before_ms: int) -> None:
        """Forgets the outcomes of jobs that ended before `before_ms`."""


class LocalJobs:
    """Implements `JobKeeper`, and the one `JobTerm` that never ends. `loaded(jobs, term)` is called once."""

    epoch = 0

    def __init__(
        self, runtime: Runtime, files: StagedFiles, loaded: Callable[[Sequence[KeptJob], JobTerm], None]
    ) -> None:
        self._runtime, self._files, self._loaded = runtime, files, loaded
        self._store = StagingStore(runtime.meta)
        self._outcomes = 0

    async def open(self) -> None:
        found = await self._runtime.in_thread(self._store.load_all)
        self._outcomes = await self._runtime.in_thread(self._store.count_outcomes)
        kept = {staging.id for _, sealed in found for staging in sealed}
        await self._runtime.in_thread(lambda: self._files.open(kept))
        self._loaded([KeptJob(*each) for each in found], self)

    def term(self, name: str) -> JobTerm:
        return self

    def check_here(self, name: str) -> None:
        """Does nothing."""

    check = check_here

    async def begin_attempt(self, job: Job, attempt: StagedTask) -> None:
        """Does nothing."""

    async def put(self, job: Job, sealed: StagedTask | None = None) -> None:
        await self._runtime.sync_meta(self._store.put(job, sealed))

    async def drop(self, job: Job, sealed: StagedTask) -> None:
        await self._runtime.sync_meta(self._store.drop(job.name, sealed.id))

    async def end(self, job: Job, sealed: Collection[str], *, sync: bool = True) -> None:
        take_back = self._store.end(job, list(sealed))
        if sync:
            await self._runtime.sync_meta(take_back)
        self._outcomes += 1

    async def find(self, name: str) -> Job | None:
        return self._store.find(name)

    def data(self, job: str, attempt: str) -> AttemptData:
        return FileData(self._files, attempt, self._runtime.disk_limiter)

    async def forget(self, before_ms: int) -> None:
        while True:
            excess = max(0, self._outcomes - MAX_OUTCOMES)
            count = await self._runtime.in_thread(partial(self._store.forget, before_ms, FORGET_AT_ONCE, excess))
            self._outcomes -= count
            if count < FORGET_AT_ONCE:
                return
