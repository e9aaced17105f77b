"""A gate: tasks wait at it while it is closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Gate:
    """Open, except for short times. A task that comes while it is open passes without giving up its turn."""

    def __init__(self) -> None:
        self._closed = 0
        self._opened = trio.Event()
        self.holds = 0  # backups that are being taken, or are held
        self.begun = 0  # backups of the cluster that have begun, or wait to begin

    async def wait(self) -> None:
        while self._closed:
            await self._opened.wait()

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return self._opened.statistics().tasks_waiting

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._closed += 1
        try:
            yield
        finally:
            self._closed -= 1
            if not self._closed:
                self._opened.set()
                self._opened = trio.Event()
