"""Syncs in threads that do nothing else, while the event loop goes on.

Beside a busy event loop a thread often waits for Python's lock (the GIL) for longer than a fast disk takes to sync,
each time that it needs the lock. `trio.to_thread.run_sync` needs it for much work. These threads need it twice, for a
moment: to begin a sync, and to tell of its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from time import perf_counter

import trio

MOST = 8  # threads
LONG = 0.02  # seconds; while a sync takes longer, whoever writes to the same disk may have to wait for its end

Sync = Callable[[], object]
Done = Callable[[Exception | None], None]


class SyncThreads:
    """Threads that sync for an event loop; they are started when they are needed, and end with `close`.

    `fault`: called in an except clause when a `done` has raised an Exception."""

    def __init__(self, fault: Callable[[], None]) -> None:
        self._fault = fault
        self._token = trio.lowlevel.current_trio_token()
        self._asked: SimpleQueue[tuple[Sync, Done] | None] = SimpleQueue()
        self._under_way = 0
        self._threads: list[threading.Thread] = []
        self._began: dict[int, float] = {}  # by thread: when the sync began that is under way in it
        self._took = 0.0  # seconds; the sync that ended last

    def begin(self, sync: Sync, done: Done) -> bool:
        """Calls `sync` in a thread, and then `done` on the event loop, with its exception or None. False: nothing was
        begun, because the system has no thread for it."""
        if self._under_way >= len(self._threads) < MOST:
            self._start_thread()
        if not self._threads:
            return False
        self._under_way += 1
        self._asked.put((sync, done))
        return True

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="krappy sync", daemon=True)
        with suppress(RuntimeError):  # the system's limit of threads
            thread.start()
            self._threads.append(thread)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around a sync, in the thread that makes it; also in other threads than these."""
        thread = threading.get_ident()
        self._began[thread] = perf_counter()
        try:
            yield
        finally:
            self._took = perf_counter() - self._began.pop(thread)

    @property
    def are_long(self) -> bool:
        """Whether the sync that ended last, or one that is under way, takes longer than `LONG`."""
        began = self._began.copy()  # other threads change it
        return self._took > LONG or (bool(began) and perf_counter() - min(began.values()) > LONG)

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            self._sync(*asked)
            del asked  # it may be the last that keeps a deleted file open

    def _sync(self, sync: Sync, done: Done) -> None:
        error: Exception | None = None
        try:
            with self.timed():
                sync()
        except Exception as failed:
            error = failed
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._end, done, error)

    def _end(self, done: Done, error: Exception | None) -> None:
        self._under_way -= 1
        try:
            done(error)
        except Exception:
            self._fault()

    def close(self) -> None:
        """Returns when the threads have ended; they finish what was asked of them first."""
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
