"""Where the batches of one attempt are until its job is over: in a file of this broker, or, in a cluster, in rows of
the topic that has the jobs (replicated.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from krappy.store.disk import Buffer
from krappy.store.staging import StagedFiles

if TYPE_CHECKING:
    from collections.abc import Callable


class AttemptData(Protocol):
    async def append(self, position: int, parts: Sequence[Buffer]) -> None:
        """Writes frames (store/staging.py) behind the first `position` bytes: all of them or none. Raises StorageError,
        and UnknownStaging when what was staged is lost."""

    async def sync(self) -> None:
        """Makes all of it durable. Raises SyncFailed when that can't succeed any more, StorageError when it may be
        tried again."""

    async def remove(self) -> None:
        """Frees its room, and forgets the attempt, also if nothing was appended. Raises StorageError; in a cluster
        NotCoordinator, NotLeader, CoordinatorNotAvailable."""


class FileData:
    """Implements `AttemptData`."""

    def __init__(self, files: StagedFiles, id: str, limiter: trio.CapacityLimiter) -> None:
        self._files, self._id, self._limiter = files, id, limiter
        self._size = 0  # of what was appended here

    async def append(self, position: int, parts: Sequence[Buffer]) -> None:
        await self._run(partial(self._files.append, self._id, position, parts))
        self._size = position + sum(map(len, parts))

    async def sync(self) -> None:
        await self._run(partial(self._files.sync, self._id, self._size))

    async def remove(self) -> None:
        await self._run(partial(self._files.remove, self._id))

    async def _run(self, work: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(work, limiter=self._limiter)
