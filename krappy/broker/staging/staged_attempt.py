"""One attempt of a task: its batches are checked like a publish, and kept in order (attempt_data.py).

One drain at a time writes the waiting batches. A retry is recognized by its producer's sequence, as in a log. An
attempt that was dropped stays so: later batches are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import trio

from krappy.broker.staging.attempt_data import AttemptData
from krappy.broker.topics.topic import not_led
from krappy.core.admission import Times, admit
from krappy.core.staging import StagedTask
from krappy.errors import InvalidRecord, InvalidRequest, KrappyError, StorageError, UnknownStaging, UnknownTopic
from krappy.ports import StoredAt
from krappy.records.batch import TRANSACTIONAL, BatchHeader
from krappy.store.producers import ProducerStates
from krappy.store.staging import HEAD, SyncFailed, framed
from krappy.waiting import Later, Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.topics.topic import Topic

MAX_WRITE = 16 << 20  # bytes written at once


class StagingServices(Protocol):
    """What an attempt needs of its broker."""

    def now_ms(self) -> int: ...
    def spawn(self, run: Callable[[], Awaitable[object]]) -> None: ...


class Waiting(NamedTuple):
    partition: int
    header: BatchHeader
    data: bytes | memoryview
    keyless: bool
    later: Later[StoredAt]


class StagedAttempt:
    """`owner`: for whom it counts; "": it was loaded. `claim(owner, bytes)`: reserves room on the disk, or raises if
    there is none; negative bytes give it back. `touch()`: called on each activity."""

    def __init__(
        self,
        services: StagingServices,
        check_room: Callable[[int], None],
        data: AttemptData,
        staging: StagedTask,
        topic: Topic | None,
        claim: Callable[[str, int], None],
        touch: Callable[[], None],
        owner: str,
    ) -> None:
        self.owner = owner
        self._services = services
        self._check_room = check_room
        self._data = data
        self._claim = partial(claim, owner)
        self._touch = touch
        self.staging = staging  # as it was when it began, or when it was sealed
        self.topic = topic  # None: sealed before the broker's start
        self.counts = dict(staging.counts)
        self.size = staging.size
        self.producer = (-1, -1)
        self._keyless = staging.keyless
        self._producers: dict[int, ProducerStates] = {}
        self._waiting: list[Waiting] = []
        self._running = False
        self._ended = Signal()
        self._file = trio.Lock()  # held while its file is written or removed
        self._dropped: KrappyError | None = None

    def publish(self, partition: int, data: bytes | memoryview) -> Later[StoredAt]:
        """Queues one record batch. Raises at once if the batch is invalid; other errors come through the Later.

        The offset in the answer counts the attempt's records of that partition.
        """
        self.check()
        if self.staging.sealed:
            raise InvalidRequest("this attempt is sealed: nothing more is staged in it")
        assert self.topic is not None
        if self.topic.deleted:
            raise UnknownTopic(f"the topic '{self.topic.name}' was deleted")
        self._check_room(len(data))
        if not 0 <= partition < self.topic.count:
            raise not_led(self.topic.image, partition)  # UnknownPartition
        config = self.topic.config
        header, data, columns, cost, *_ = admit(data, config, Times(config, self._services.now_ms()))
        if header.attributes & TRANSACTIONAL:
            raise InvalidRecord("a transactional batch can't be staged: its commit is the job's")
        keyless = not config.compact and (columns is None or None in columns.keys)  # True if not known
        later: Later[StoredAt] = Later(0 if columns is None else cost)
        self._waiting.append(Waiting(partition, header, data, keyless, later))
        self._touch()
        if not self._running:
            self._running = True
            self._services.spawn(self._drain)
        return later

    def check(self) -> None:
        """Raises why it was dropped, if it was."""
        if self._dropped is not None:
            raise self._dropped

    async def _drain(self) -> None:
        items: list[Waiting] = []
        try:
            while self._waiting:
                items = self._take()
                async with self._file:
                    await self._write(items)
        except BaseException as error:
            refusal = error if isinstance(error, KrappyError) else StorageError(f"staging failed: {error!r}")
            for item in items + self._waiting:
                item.later.reject(refusal)
            self._waiting.clear()
            if not isinstance(error, KrappyError):
                raise
        finally:
            self._running = False
            self._ended.fire()

    def _take(self) -> list[Waiting]:
        total = count = 0
        for item in self._waiting:
            total += len(item.data)
            if count and total > MAX_WRITE:
                break
            count += 1
        items = self._waiting[:count]
        del self._waiting[:count]
        return items

    async def _write(self, items: list[Waiting]) -> None:
        """Writes the batches that the file does not have yet. When the disk refuses, nothing is changed."""
        self.check()
        before = {at: self._states(at).copy() for at in {item.partition for item in items}}
        counts = self.counts.copy()
        parts: list[Any] = []
        answers: list[tuple[Later[StoredAt], StoredAt]] = []
        size = 0
        keyless = False
        for item in items:
            states = self._states(item.partition)
            there = counts.get(item.partition, 0)
            try:
                original = states.check(item.header, from_zero=True)
                if original is None:
                    self._claim(HEAD.size + len(item.data))
            except KrappyError as error:
                item.later.reject(error)
                continue
            time = item.header.max_timestamp
            if original is not None:
                answers.append((item.later, StoredAt(original, time, duplicate=True)))
                continue
            states.apply(item.header, there, self._services.now_ms())
            counts[item.partition] = there + item.header.count
            parts += framed(item.partition, item.data)
            size += HEAD.size + len(item.data)
            keyless |= item.keyless
            answers.append((item.later, StoredAt(there, time)))
        if parts:
            try:
                await self._data.append(self.size, parts)
            except BaseException as error:
                self._claim(-size)
                self._producers.update(before)
                if isinstance(error, KrappyError):
                    for later, _ in answers:
                        later.reject(error)
                    return
                raise
            self.size += size
            self.counts = counts
            self._keyless |= keyless
        for later, stored in answers:
            later.resolve(stored)

    def _states(self, partition: int) -> ProducerStates:
        return self._producers.setdefault(partition, ProducerStates())

    async def sync(self) -> StagedTask:
        """Syncs all that was staged. Gives the task as it is on disk. Raises StorageError, or why it was dropped."""
        await wait_any([self._ended], lambda: not self._running)
        async with self._file:
            self.check()
            synced = self.staging._replace(
                size=self.size, counts=tuple(sorted(self.counts.items())), keyless=self._keyless
            )
            if self.size:
                await self._sync()
        return synced

    async def _sync(self) -> None:
        """Syncs the file. After a failed sync the attempt is lost: it is never tried again."""
        try:
            await self._data.sync()
        except SyncFailed as error:
            if not self.staging.sealed:
                self.drop(UnknownStaging(f"what this attempt has staged may be lost, so stage it again: {error.text}"))
            raise

    def drop(self, error: KrappyError) -> None:
        """Refuses batches from now on, with this error. `remove` frees its file's room."""
        if self._dropped is None:
            self._dropped = error
            waiting, self._waiting = self._waiting, []
            for item in waiting:
                item.later.reject(error)

    async def remove(self) -> None:
        """Removes its batches. Raises as `AttemptData.remove`; then the next start, or the job's next coordinator, does
        it."""
        async with self._file:
            size, self.size = self.size, 0
            self._claim(-size)
            await self._data.remove()

    async def leave(self) -> None:
        """Gives back its room, since another broker coordinates its job now."""
        async with self._file:
            size, self.size = self.size, 0
            self._claim(-size)
