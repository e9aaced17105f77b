"""Staged jobs of a cluster: events of `__staged_jobs`. The keys are those of `store/staging.py`. The leader of a job's
partition coordinates the job; `coordinated/internal_tables.py` says from when to when.

- The batches of attempts are rows of the same partition: so they are where the job is, whoever coordinates it. A sealed
  attempt outlives any broker. One that is not sealed ends with its coordinator's term; its task stages it again.
- Rows of an attempt are removed before the row which says that the attempt exists: so the next coordinator finds what
  is left.
- Outcomes are not loaded, but looked up in the view.
- What a broker kept while it was alone moves here: outcomes, and jobs that it was publishing. The staged files of these
  jobs are not there any more, so they are aborted, or their markers are written. Jobs that were open are forgotten:
  their tasks find that their tokens are unknown, and stage again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from krappy.broker.coordinated.internal_table import InternalKeys, InternalTable
from krappy.broker.coordinated.internal_tables import AT_ONCE, RETRY_S, InternalTables, Rows
from krappy.broker.coordinated.own_folder import OwnFolder
from krappy.broker.staging.keeping import JobTerm, KeptJob
from krappy.broker.tables.table import wait_for_views
from krappy.broker.topics.internal_topics import JOBS
from krappy.core.staging import Job, StagedTask
from krappy.entries.entry import is_tombstone, unpack_entry
from krappy.errors import CorruptBatch, KrappyError, NotLeader, StorageError, UnknownStaging
from krappy.store.disk import Buffer
from krappy.store.groups import group_key, read_key
from krappy.store.keys import PREFIX_SIZE, key_range
from krappy.store.staging import (
    DATA,
    ENDED,
    JOB,
    OUTCOME,
    STAGING,
    OwnJob,
    OwnJobs,
    StagedFiles,
    attempt_of,
    data_key,
    ended_key,
    job_in,
    job_of,
    packed_attempt,
    packed_job,
)
from krappy.types import Headers
from krappy.waiting import wait_any

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

ROW = 1 << 20  # bytes of frames that one row has, unless a single frame has more


class KeptJobs(NamedTuple):
    jobs: Sequence[KeptJob]
    left: Sequence[tuple[str, str]]  # job and id of each attempt that is over


class JobTable:
    """Implements `JobTerm`: for all jobs of a partition, as long as this broker leads it in one leader epoch."""

    def __init__(self, runtime: Runtime, table: InternalTable) -> None:
        self._runtime, self._table = runtime, table
        self.epoch = table.epoch
        self.check = table.check

    async def write(self, name: str, puts: dict[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        """Returns once it is committed. Raises as `check`."""
        self._table.write(name, puts, list(deletes))
        await self._table.written().wait()
        self.check(name)

    async def begin_attempt(self, job: Job, attempt: StagedTask) -> None:
        await self.put(job, attempt)

    async def put(self, job: Job, sealed: StagedTask | None = None) -> None:
        await self.write(job.name, job_rows(job, [] if sealed is None else [sealed]))

    async def drop(self, job: Job, sealed: StagedTask) -> None:
        await self.put(job, sealed._replace(sealed=False))

    async def end(self, job: Job, sealed: Collection[str], *, sync: bool = True) -> None:
        outcome = job._replace(touched_ms=job.touched_ms + self._runtime.clock.ahead_ms)
        await self.write(job.name, outcome_rows(outcome), [group_key(JOB, job.name)])

    async def find(self, name: str) -> Job | None:
        value = await self.value(group_key(OUTCOME, name))
        return None if value is None else job_of(name, value)

    async def value(self, key: bytes) -> bytes | None:
        """The value of a row that is not loaded, as of all that was committed. Raises as `wait_for_views`,
        StorageError."""
        partition = self._table.partition
        await wait_for_views([partition])
        entry = partition.views.get(partition.number, key)
        return None if entry is None else unpack_entry(entry)[2]

    async def keys(self, prefix: bytes, at: bytes | None = None) -> tuple[list[bytes], bytes | None]:
        """Some keys with this prefix, without tombstones; and where to go on, or None. Raises as `value`."""
        partition = self._table.partition
        await wait_for_views([partition])
        first, end = key_range(partition.number, prefix=prefix)
        stored, after = partition.views.keys(at or first, end, AT_ONCE)
        keys = [key[PREFIX_SIZE:] for key in stored]
        heads = partition.views.heads(partition.number, keys)
        return [
            key for key, head in zip(keys, heads, strict=True) if head is not None and not is_tombstone(head)
        ], after

    async def keys_when_sure(self, job: str, prefix: bytes) -> tuple[list[bytes], bytes | None]:
        """As `keys`. Tries it again while this broker can't be sure that it leads, which may last as long as ZooKeeper
        is away. Raises NotCoordinator, too."""
        while True:
            self.check(job)
            try:
                return await self.keys(prefix)
            except NotLeader:
                if self._runtime.stopped:
                    raise
            await wait_any([self._runtime.stopping], lambda: self._runtime.stopped, RETRY_S)

    def data(self, job: str, attempt: str) -> RowData:
        return RowData(self, self._table, job, attempt)


class RowData:
    """Implements `AttemptData`."""

    def __init__(self, term: JobTable, table: InternalTable, job: str, attempt: str) -> None:
        self._term, self._table, self._job, self._attempt = term, table, job, attempt
        self._rows = 0
        self._torn = False

    async def append(self, position: int, parts: Sequence[Buffer]) -> None:
        if self._torn:
            raise UnknownStaging("a part of what this attempt has staged is missing: stage it again")
        begun = False
        try:
            for value in _rows(parts):
                self._table.write(self._job, {data_key(self._job, self._attempt, self._rows): value}, [])
                self._rows, begun = self._rows + 1, True
            await self._table.written().wait()
        except KrappyError:
            self._torn = begun
            raise

    async def sync(self) -> None:
        """Does nothing: all of it is committed."""

    async def remove(self) -> None:
        """Waits while this broker coordinates the job, but can't be sure of that."""
        prefix = group_key(DATA, self._job, self._attempt)
        keys, at = await self._term.keys_when_sure(self._job, prefix)
        while True:
            await self._term.write(self._job, {}, keys)
            if at is None:
                break
            keys, at = await self._term.keys(prefix, at)
        await self._term.write(self._job, {}, [group_key(STAGING, self._job, self._attempt)])

    async def row(self, number: int) -> bytes:
        """Raises CorruptBatch when it is not there."""
        found = await self._term.value(data_key(self._job, self._attempt, number))
        if found is None:
            raise CorruptBatch(f"what was staged of the job '{self._job:.80}' is lost: run it again")
        return found


class ReplicatedJobs(InternalTables[KeptJobs]):
    """Implements `JobKeeper`. `loaded(jobs, term)` is called with jobs that this broker coordinates from now on, and
    `unloaded(is_in)` when it forgets the jobs for whose name `is_in` is true."""

    def __init__(
        self,
        runtime: Runtime,
        files: StagedFiles,
        loaded: Callable[[Sequence[KeptJob], JobTerm], None],
        unloaded: Callable[[Callable[[str], bool]], None],
    ) -> None:
        super().__init__(runtime, JOBS, InternalKeys(job_in, lambda key: (False, key), (JOB, STAGING)))
        self._files, self._loaded, self._unloaded = files, loaded, unloaded
        self._terms: dict[int, JobTable] = {}
        self._own = OwnFolder(runtime, OwnJobs(runtime.meta))

    async def open(self) -> None:
        await self._runtime.in_thread(lambda: self._files.open(set()))
        self.begin()

    def term(self, name: str) -> JobTerm:
        self.check_here(name)
        return self._terms[self.index_of(name)]

    async def forget(self, before_ms: int) -> None:
        ahead = self._runtime.clock.ahead_ms
        for index in list(self._tables):
            term = self._terms[index]
            try:
                await self._forget_in(term, before_ms + ahead)
            except NotLeader:
                pass  # the broker that leads it now does it
            except KrappyError as error:
                self._runtime.report("housekeeping_failed", part="staging", error=str(error))

    async def _forget_in(self, term: JobTable, before_ms: int) -> None:
        at: bytes | None = None
        while True:
            keys, at = await term.keys(ENDED, at)
            for key in keys:
                if int.from_bytes(key[len(ENDED) : len(ENDED) + 8], "big") >= before_ms:
                    return
                try:
                    name = job_in(key)
                    outcome = await term.find(name)
                except StorageError:  # this one can't be read; the others are forgotten all the same
                    continue
                same = outcome is not None and ended_key(outcome) == key  # if not, it has begun and ended anew
                await term.write(name, {}, [key, group_key(OUTCOME, name)] if same else [key])
            if at is None:
                return

    # --- InternalTables

    async def read(self, index: int, table: InternalTable, rows: Rows) -> KeptJobs:
        jobs: dict[str, Job] = {}
        attempts: dict[str, list[StagedTask]] = {}
        for name, found in self.readable(table, rows, _decoded):
            if isinstance(found, Job):
                jobs[name] = found
            else:
                attempts.setdefault(name, []).append(found)
        term = JobTable(self._runtime, table)

        async def write(name: str, kept: OwnJob) -> None:
            puts = {} if kept.outcome is None else outcome_rows(kept.outcome)
            if kept.job is not None and kept.job.publishing:
                puts |= job_rows(kept.job, kept.sealed)
            await term.write(name, puts)

        fresh = await self._own.move(table, lambda name: self.index_of(name) == index, jobs.__contains__, write)
        moved = {name: each.job for name, each in fresh.items() if each.job is not None and each.job.publishing}
        jobs |= moved
        attempts |= {name: [*fresh[name].sealed] for name in moved}
        kept = [KeptJob(job, [each for each in attempts.get(name, ()) if each.sealed]) for name, job in jobs.items()]
        left = [
            (name, each.id) for name, some in attempts.items() for each in some if not (each.sealed and name in jobs)
        ]
        return KeptJobs(kept, left)

    def take(self, index: int, table: InternalTable, kept: KeptJobs) -> None:
        term = self._terms[index] = JobTable(self._runtime, table)
        jobs = {each.job.name: each for each in kept.jobs}
        self.take_each(table, jobs, lambda name: self._loaded([jobs[name]], term))
        if kept.left:
            self._runtime.spawn(self._remove, term, kept.left)

    async def _remove(self, term: JobTable, left: Sequence[tuple[str, str]]) -> None:
        """Removes what attempts that are over have left. If this fails, the next coordinator does it."""
        try:
            for job, attempt in left:
                await term.data(job, attempt).remove()
        except KrappyError as error:
            self._runtime.report("staged_file_not_removed", error=str(error))

    def give_up(self, is_in: Callable[[str], bool]) -> None:
        self._unloaded(is_in)


def _decoded(key: bytes, value: bytes, headers: Headers) -> tuple[str, Job | StagedTask]:
    """The name of a job, and what a row has of it. Raises StorageError."""
    if key.startswith(JOB):
        name = job_in(key)
        return name, job_of(name, value)
    name, id = read_key(key, STAGING, str, str)
    return name, attempt_of(id, value)


def job_rows(job: Job, attempts: Iterable[StagedTask]) -> dict[bytes, bytes]:
    rows = {group_key(STAGING, job.name, each.id): packed_attempt(each) for each in attempts}
    return {group_key(JOB, job.name): packed_job(job)} | rows


def outcome_rows(outcome: Job) -> dict[bytes, bytes]:
    return {group_key(OUTCOME, outcome.name): packed_job(outcome), ended_key(outcome): b""}


def _rows(parts: Sequence[Buffer]) -> Iterable[bytes]:
    """The values of rows that have these frames. Each frame is two parts (`framed`)."""
    some, size = list[Buffer](), 0
    for head, batch in zip(parts[::2], parts[1::2], strict=True):
        if some and size + len(batch) > ROW:
            yield b"".join(some)
            some, size = [], 0
        some += [head, batch]
        size += len(head) + len(batch)
    if some:
        yield b"".join(some)
