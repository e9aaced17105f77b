"""Writes the states of a share group in the partitions that this broker leads to the broker that keeps them.

There is one request at a time: a partition that has changed ten times meanwhile is written once. A request that fails
is sent again, as long as this broker leads the partition: it has the whole state, and nobody else may write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import trio

from krappy.core.kafka.faults import Fault, Refused
from krappy.errors import CoordinatorNotAvailable, KrappyError
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.groups.share_group import LeasedPartition, ShareLeases
    from krappy.broker.groups.share_keepers import ShareKeepers
    from krappy.broker.runtime import Runtime

PATIENCE_S = 20.0  # for a write; then who waits for it gets an error
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0  # after a write that failed
AT_ONCE = 200  # partitions in one request
RUNS = 4_000  # of leases in one request; a state with more goes alone


class _Waiting:
    """A caller that waits until these versions of the states are durable."""

    def __init__(self, versions: dict[LeasedPartition, int]) -> None:
        self.versions = versions
        self.later: Later[Mapping[LeasedPartition, KrappyError]] = Later()
        self.errors: dict[LeasedPartition, KrappyError] = {}
        self.until = trio.current_time() + PATIENCE_S


class ShareWriter:
    def __init__(self, runtime: Runtime, keepers: ShareKeepers, group: ShareLeases) -> None:
        self._runtime, self._keepers, self._group = runtime, keepers, group
        self._marked: dict[LeasedPartition, None] = {}
        self._waiting: list[_Waiting] = []
        self._idle = trio.Event()
        self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Whether all that was marked is durable."""
        return self._idle.is_set()

    async def until_idle(self) -> None:
        await self._idle.wait()

    def mark(self, shared: LeasedPartition) -> None:
        """Has its state written soon."""
        shared.version += 1
        self._marked[shared] = None
        if self._idle.is_set():
            self._idle = trio.Event()
            self._runtime.spawn(self._run)

    def durable(self, states: Iterable[LeasedPartition]) -> Later[Mapping[LeasedPartition, KrappyError]]:
        """A Later that is set once these states, as they are now, are durable. Its value has the states that may not be
        durable, and why: CoordinatorNotAvailable if it takes too long; another error if another broker may lead the
        partition by now."""
        waiting = _Waiting({shared: shared.version for shared in states})
        self._waiting.append(waiting)
        self.settle()
        return waiting.later

    def settle(self) -> None:
        """Answers those who wait, once all their states are durable or lost."""
        left = []
        for each in self._waiting:
            for shared, version in [*each.versions.items()]:
                if shared.durable >= version:
                    del each.versions[shared]
                elif shared.lost is not None:
                    del each.versions[shared]
                    each.errors[shared] = shared.lost
            if each.versions:
                left.append(each)
            else:
                each.later.resolve(each.errors)
        self._waiting = left

    async def _run(self) -> None:
        """Until nothing is marked."""
        pause = FIRST_PAUSE_S
        try:
            while self._marked:
                some = self._next()
                for shared in some:
                    del self._marked[shared]
                failed = await self._write([shared for shared in some if shared.lost is None])
                self.settle()
                if failed is None:
                    pause = FIRST_PAUSE_S
                    continue
                left = [shared for shared in some if shared.lost is None and shared.durable < shared.version]
                self._marked = {**dict.fromkeys(left), **self._marked}
                self._give_up_waiting(failed)
                if self._marked:
                    await trio.sleep(pause)
                    pause = min(LONGEST_PAUSE_S, 2 * pause)
        finally:
            self._idle.set()
            self._group.written()

    def _next(self) -> list[LeasedPartition]:
        found: list[LeasedPartition] = []
        room = RUNS
        for shared in islice(self._marked, AT_ONCE):
            room -= shared.leases.size
            if room < 0 and found:
                break
            found.append(shared)
        return found

    def _give_up_waiting(self, failed: KrappyError) -> None:
        late = [each for each in self._waiting if each.until <= trio.current_time()]
        self._waiting = [each for each in self._waiting if each not in late]
        for each in late:
            text = f"what share group '{self._group.name}' has acknowledged can't be written: {failed}"
            each.later.resolve(each.errors | dict.fromkeys(each.versions, CoordinatorNotAvailable(text)))

    async def _write(self, some: list[LeasedPartition]) -> KrappyError | None:
        """Returns the error if the write is to be tried again."""
        if not some:
            return None
        states = {shared.id: (shared, shared.version, shared.state()) for shared in some}
        try:
            refused = await self._keepers.write(self._group.name, {id: state for id, (_, _, state) in states.items()})
        except KrappyError as error:
            if isinstance(error, Refused) and error.fault is Fault.GROUP_ID_NOT_FOUND:
                self._group.delete(error)
                return None
            return error
        again: KrappyError | None = None
        for id, (shared, version, _) in states.items():
            why = refused.get(id)
            if why is None:
                shared.durable = version
            elif isinstance(why, Refused):
                self._group.lose(shared, shared.fenced(why))
            else:  # that broker does not know the topic yet, or the topic was deleted, which this one will learn
                again = why
        return again
