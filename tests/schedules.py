"""Lets a test decide the order in which tasks run, how long the disk takes, and where a task is cancelled.

`run` is trio.run with a seed for all chance: it decides which of the ready tasks runs first. Work for a thread is done
on the event loop, after a number of turns that the seed decides, too. So a schedule that shows a fault shows it each
time.

`cancelled_at` cancels an operation where it waits for the n-th time.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import trio
import trio.abc
import trio.testing
from trio._core import _run

from krappy.broker.sync_threads import Done, Sync, SyncThreads

T = TypeVar("T")
SLOWEST = 4  # turns that a thread takes at most


def run(main: Callable[[], Awaitable[T]], seed: int) -> T:
    """The result of `main` in the schedule of this seed. Time passes only when every task waits."""
    chance = random.Random(seed)

    async def in_thread(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint_if_cancelled()
        for _turn in range(chance.randint(1, SLOWEST)):
            await trio.lowlevel.cancel_shielded_checkpoint()
        return work(*args)

    def begin(threads: SyncThreads, sync: Sync, done: Done) -> bool:
        async def synced() -> None:
            error: Exception | None = None
            try:
                await in_thread(sync)
            except Exception as failed:
                error = failed
            threads._end(done, error)

        threads._under_way += 1
        trio.lowlevel.spawn_system_task(synced)
        return True

    with (
        mock.patch.object(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        mock.patch.object(_run, "_r", chance),
        mock.patch.object(trio.to_thread, "run_sync", in_thread),
        mock.patch.object(SyncThreads, "begin", begin),
    ):
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


class _At(trio.abc.Instrument):
    """Cancels `scope` when `task`, or a task that it has started, waits for the n-th time."""

    def __init__(self, task: Any, scope: trio.CancelScope, n: int) -> None:
        self._task = task
        self._scope = scope
        self.left = n

    def after_task_step(self, task: Any) -> None:
        while task is not None and task is not self._task:
            task = None if task.parent_nursery is None else task.parent_nursery.parent_task
        if task is not None and self.left > 0:
            self.left -= 1
            if not self.left:
                self._scope.cancel()


@contextmanager
def _counting(at: _At) -> Iterator[None]:
    trio.lowlevel.add_instrument(at)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(at)


async def cancelled_at(n: int, operation: Callable[[], Awaitable[Any]]) -> bool:
    """Runs the operation, and cancels it when it waits for the n-th time. Returns False if it did not wait that often.

    Raises the operation's errors, but not the cancellation.
    """
    with trio.CancelScope() as scope:
        at = _At(trio.lowlevel.current_task(), scope, n)
        with _counting(at):
            await operation()
    return not at.left
