"""Staged writes on disk: a file for each attempt of a task, and records of jobs and sealed attempts in the meta
database.

A file holds framed record batches, in the order they came, those of all partitions mixed. It counts only with its
record, which is written once the file is whole and on disk: files without one are deleted on open. FORMAT.md and
VIEWS.md describe the bytes. A record is durable after `Meta.sync`, which the broker shares among all that wait for it.

Brokers of a cluster keep jobs and attempts in a replicated topic, under the same keys, and the batches in rows of that
topic (`DATA`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import msgpack

from krappy.core.staging import Job, JobState, PublishedPart, StagedTask
from krappy.errors import CorruptBatch, StorageError, UnknownStaging
from krappy.records import batch as batches
from krappy.records.batch import CRC_START, BatchHeader
from krappy.store.disk import NO_DESCRIPTOR, NOT_OPENED, OS_DISK, Buffer, Disk
from krappy.store.groups import check_kinds, group_key, read_key
from krappy.store.meta import Meta

JOB = b"sj/"  # a job that is not over
STAGING = b"ss/"  # a sealed attempt of it
OUTCOME = b"so/"  # a job that is over
ENDED = b"se/"  # when a job ended: they are forgotten in this order
DATA = b"sd/"  # of a cluster: frames of an attempt, in the order of their rows' numbers
SUFFIX = ".staged"
HEAD = struct.Struct(">II")  # partition; CRC-32 (zlib's) of these 4 bytes and of the 21 that the batch begins with
READ = 4 << 20


class SyncFailed(StorageError):
    """A sync failed: nobody knows what of the file is on disk, and another sync would not tell. The kernel drops pages
    that it could not write, and reports that once (fsyncgate)."""


def framed(partition: int, batch: Buffer) -> list[Buffer]:
    """The frame of a batch, as buffers to write."""
    return [HEAD.pack(partition, _head_crc(partition, batch)), batch]


def _head_crc(partition: int, batch: Buffer) -> int:
    return zlib.crc32(partition.to_bytes(4, "big") + bytes(batch[:CRC_START]))


class StagedFiles:
    """The files of one folder. Everything blocks; the calls for one file come one at a time. Raises StorageError."""

    def __init__(self, folder: Path, disk: Disk = OS_DISK) -> None:
        self.folder = folder
        self._disk = disk
        self._lock = Lock()
        self._keeping = 0
        self._kept: list[str] = []  # ids whose removal waits until no `kept` is open

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While open, removals wait; they happen when the last one closes."""
        with self._lock:
            self._keeping += 1
        try:
            yield
        finally:
            with self._lock:
                self._keeping -= 1
                gone, self._kept = ([], self._kept) if self._keeping else (self._kept, [])
            for id in gone:
                self.remove(id)

    def open(self, kept: set[str]) -> None:
        """Makes the folder; deletes all files but those of the ids `kept`."""
        try:
            self._disk.mkdir(self.folder)
            for name in self._disk.names(self.folder):
                if name.removesuffix(SUFFIX) not in kept:
                    self._disk.unlink(self.folder / name)
        except OSError as error:
            raise StorageError(f"{self.folder}: {error}") from error

    def append(self, id: str, position: int, parts: Sequence[Buffer]) -> None:
        """Writes at the end of the file, which is `position`; at 0 the file is created. All or nothing; not durable
        yet. Raises UnknownStaging if what was staged before is lost."""
        path = self._path(id)
        try:
            file = self._disk.open(path, write=True, create=not position)
            try:
                if (size := file.size()) < position:
                    raise UnknownStaging(f"{self._shorter(path, size, position)}, so stage it again")
                file.write(parts, position)
            except OSError:
                file.truncate(position)  # a partial write would hold room on a full disk
                raise
            finally:
                file.close()
        except OSError as error:
            raise StorageError(f"staging to {path}: {error}") from error

    def sync(self, id: str, size: int) -> None:
        """Makes the file, of this size, and its name durable. Raises SyncFailed when that can't succeed any more,
        StorageError when it may be tried again: a file descriptor is missing, or the folder."""
        path = self._path(id)
        try:
            file = self._disk.open(path)
            try:
                file.fdatasync()
                if (there := file.size()) < size:
                    raise SyncFailed(self._shorter(path, there, size))
            finally:
                file.close()
            self._disk.fsync_dir(self.folder)
        except OSError as error:
            kind = StorageError if self._may_succeed(error) else SyncFailed
            raise kind(f"staging to {path}: {error}") from error

    def _shorter(self, path: Path, size: int, wanted: int) -> str:
        return f"{path} has {size} bytes of {wanted}: it was replaced"

    def _may_succeed(self, error: OSError) -> bool:
        """Whether it is tried again, since nothing is wrong with the file: there was no file descriptor, or the whole
        folder is away."""
        if error.errno in NO_DESCRIPTOR or error.errno not in NOT_OPENED:
            return error.errno in NO_DESCRIPTOR
        try:
            self._disk.fsync_dir(self.folder)
        except OSError as refusal:
            return refusal.errno in NOT_OPENED
        return False

    def read(self, id: str, size: int) -> Iterator[list[tuple[int, BatchHeader, memoryview]]]:
        """(partition, header, bytes) of each batch, checked, some MiB at a time. Raises CorruptBatch as well, for what
        can't be read any more."""
        path = self._path(id)
        try:
            file = self._disk.open(path)
        except OSError as error:
            if self._may_succeed(error):
                raise StorageError(f"reading {path}: {error}") from error
            raise CorruptBatch(f"the staged file {path} is lost: {error}") from error
        try:
            position, want = 0, READ
            while position < size:
                view = memoryview(file.pread(min(want, size - position), position))
                found, taken = frames(view, path, position)
                if not found:
                    if len(view) < want:  # there is no more
                        raise CorruptBatch(f"{path} is cut short at byte {position} of {size}")
                    want *= 2
                    continue
                yield found
                position += taken
                want = READ
        except OSError as error:
            raise StorageError(f"reading {path}: {error}") from error
        finally:
            file.close()

    def remove(self, id: str) -> None:
        with self._lock:
            if self._keeping:
                self._kept.append(id)
                return
        try:
            self._disk.unlink(self._path(id))
        except OSError as error:
            raise StorageError(f"removing {self._path(id)}: {error}") from error

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}{SUFFIX}"


def frames(view: memoryview, path: Path | str, start: int) -> tuple[list[tuple[int, BatchHeader, memoryview]], int]:
    """(partition, header, bytes) of the whole frames at the beginning of `view`, and how many bytes they take."""
    found: list[tuple[int, BatchHeader, memoryview]] = []
    position = 0
    while len(view) - position >= HEAD.size + batches.HEADER_SIZE:
        partition, crc = HEAD.unpack_from(view, position)
        at = position + HEAD.size
        if _head_crc(partition, view[at : at + CRC_START]) != crc:
            raise CorruptBatch(f"{path}: no staged batch begins at byte {start + position}")
        size = batches.read_header(view, at).size
        if len(view) - at < size:
            break
        try:
            header = batches.check(view, at)
        except CorruptBatch as error:
            raise CorruptBatch(f"{path}: {error}") from None
        found.append((partition, header, view[at : at + size]))
        position = at + size
    return found, position


class StagingStore:
    """Jobs and sealed attempts, in the meta database."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    def load_all(self) -> list[tuple[Job, list[StagedTask]]]:
        """Every job that is not over, with its sealed attempts. Raises StorageError for a record that can't be read."""
        found = []
        for key, value in self._meta.items(JOB):
            job = job_of(read_key(key, JOB, str)[0], value)
            stored = self._meta.items(group_key(STAGING, job.name))
            found.append((job, [attempt_of(read_key(row, STAGING, str, str)[1], packed) for row, packed in stored]))
        return found

    def find(self, name: str) -> Job | None:
        """The outcome of a job that is over; None if it is not known."""
        value = self._meta.get(group_key(OUTCOME, name))
        return None if value is None else job_of(name, value)

    def put(self, job: Job, sealed: StagedTask | None = None) -> Callable[[], None]:
        """Writes a job that is not over, and an attempt that was sealed now. Returns a function that takes the write
        back."""
        puts = {group_key(JOB, job.name): packed_job(job)}
        if sealed is not None:
            puts[group_key(STAGING, job.name, sealed.id)] = packed_attempt(sealed)
        return self._meta.change(puts)

    def end(self, job: Job, sealed: Sequence[str]) -> Callable[[], None]:
        """Writes the outcome of a job, and forgets its sealed attempts. Returns a function that takes the write
        back."""
        name = job.name
        puts = {group_key(OUTCOME, name): packed_job(job), ended_key(job): b""}
        return self._meta.change(puts, [group_key(JOB, name), *(group_key(STAGING, name, id) for id in sealed)])

    def drop(self, name: str, id: str) -> Callable[[], None]:
        """Forgets one sealed attempt of a job that is not over. Returns a function that takes the write back."""
        return self._meta.change({}, [group_key(STAGING, name, id)])

    def count_outcomes(self) -> int:
        return sum(1 for _ in self._meta.items(ENDED))

    def forget(self, before_ms: int, most: int, excess: int) -> int:
        """Forgets the outcomes of jobs that ended before `before_ms`, and in any case of the `excess` oldest; at most
        `most`. Returns how many."""
        gone: list[bytes] = []
        count = 0
        for key, _ in self._meta.items(ENDED):
            ended = int.from_bytes(key[len(ENDED) : len(ENDED) + 8], "big")
            if count >= most or (ended >= before_ms and count >= excess):
                break
            name = read_key(key[len(ENDED) + 8 :], b"", str)[0]
            gone.append(key)
            count += 1
            job = self.find(name)
            if job is not None and job.touched_ms == ended:  # else a job of this name has begun and ended again since
                gone.append(group_key(OUTCOME, name))
        if gone:
            self._meta.write({}, gone)
        return count


class OwnJob(NamedTuple):
    """What a folder has under a job's name: the job while it is not over, with its sealed attempts, and an outcome."""

    job: Job | None = None
    sealed: Sequence[StagedTask] = ()
    outcome: Job | None = None


class OwnJobs:
    """All that a folder has of jobs, by name, for a broker that is in a cluster now."""

    def __init__(self, meta: Meta) -> None:
        self._meta, self._store = meta, StagingStore(meta)

    def load_all(self) -> dict[str, OwnJob]:
        """Raises StorageError for a record that can't be read."""
        found = {job.name: OwnJob(job, sealed) for job, sealed in self._store.load_all()}
        for key, value in self._meta.items(OUTCOME):
            name = read_key(key, OUTCOME, str)[0]
            found[name] = found.get(name, OwnJob())._replace(outcome=job_of(name, value))
        return found

    def delete(self, name: str) -> None:
        gone = [group_key(JOB, name), group_key(OUTCOME, name)]
        gone += [key for key, _ in self._meta.items(group_key(STAGING, name))]
        outcome = self._store.find(name)
        if outcome is not None:
            gone.append(ended_key(outcome))
        self._meta.write({}, gone)


def job_in(key: bytes) -> str:
    """The name of the job that a key belongs to. Raises StorageError for what is no such key."""
    name: str
    if key.startswith(ENDED):
        [name] = read_key(key[len(ENDED) + 8 :], b"", str)
        return name
    for kind, *parts in ((JOB, str), (STAGING, str, str), (OUTCOME, str), (DATA, str, str, int)):
        if key.startswith(kind):
            name = read_key(key, kind, *parts)[0]
            return name
    raise StorageError(f"{key!r} is not the key of a staged job")


def data_key(job: str, attempt: str, number: int) -> bytes:
    """The key of a row of frames. Keys ascend with the rows' numbers."""
    return group_key(DATA, job, attempt) + b"\xce" + number.to_bytes(4, "big")  # msgpack's u32


def ended_key(outcome: Job) -> bytes:
    return ENDED + group_key(outcome.touched_ms.to_bytes(8, "big"), outcome.name)


def packed_job(job: Job) -> bytes:
    fields: dict[str, Any] = job._asdict() | {"state": str(job.state)}
    del fields["name"]
    return bytes(msgpack.packb(fields))


def job_of(name: str, value: bytes) -> Job:
    try:
        fields = msgpack.unpackb(value)
        fields["state"] = JobState(fields["state"])
        fields["tokens"] = tuple(fields["tokens"])
        fields["published"] = tuple(PublishedPart(*each) for each in fields["published"])
        fields["topics"] = tuple((topic, id) for topic, id in fields.get("topics", ()))  # older versions wrote none
        job = Job(name, **fields)
        check_kinds(job, {"ttl_ms": int, "touched_ms": int, "producer_id": int, "reason": str})
        return job
    except Exception as error:
        raise StorageError(f"the staged job {name!r:.80} can't be read: {error!r}") from error


def packed_attempt(staging: StagedTask) -> bytes:
    fields: dict[str, Any] = staging._asdict()
    del fields["id"]
    if staging.sealed:  # in a folder all attempts are sealed
        del fields["sealed"]
    return bytes(msgpack.packb(fields))


def attempt_of(id: str, value: bytes) -> StagedTask:
    try:
        fields = msgpack.unpackb(value)
        fields["counts"] = tuple((int(partition), int(count)) for partition, count in fields["counts"])
        staging = StagedTask(id=id, **({"sealed": True} | fields))
        check_kinds(staging, {"topic": str, "topic_id": bytes, "task": str, "attempt": str, "size": int})
        return staging
    except Exception as error:
        raise StorageError(f"the staged attempt {id!r:.80} can't be read: {error!r}") from error
