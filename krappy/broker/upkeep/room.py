"""Room on the disk: how much there is, what is kept of it for what makes room, and when publishes are refused.

A part of the disk is held by a file (store/ballast.py). Let `kept` be its size:

- While less than an eighth of `kept` is free, events are refused with the reason, before the last byte is gone; all
  else goes on: reads, lookups, commits, topics, deletions, retention, compaction.
- When less than a sixteenth is free, because others fill the disk too, the file is given up. So it is at a start, and
  before a deletion. Events are then refused until it is made again, with `kept` and a quarter free.

Without it (`ballast_bytes` is 0) nothing is refused before the disk does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from krappy.errors import StorageError
from krappy.store.ballast import Ballast, Space, space

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

LOOK_S = 0.5  # between two looks at how much is free
IN_LOG_AND_TABLE = 2  # times that an event may come to stand on the disk


class Room:
    def __init__(self, runtime: Runtime, drop_all: Callable[[], None]) -> None:
        """`drop_all`: gives up files that can be made again."""
        self._drop_all = drop_all
        self.refusal = ""  # why events are refused; empty: they are taken
        self.space = Space(0, 0)  # as of the last look
        self.kept = 0  # bytes that the ballast is to have
        self.held = 0  # and that it has
        self._left: float = math.inf  # bytes that may be taken before the next look
        self._told = False  # whether events were refused as of the last look
        self._runtime = runtime
        self._folder = runtime.config.data
        self._ballast = Ballast(self._folder, runtime.config.ballast_bytes)
        self._limiter = trio.CapacityLimiter(1)  # its own: one look at a time, also when all other threads wait

    def check(self, size: int) -> None:
        """Before events of `size` bytes are taken. Raises StorageError when they are not."""
        if not self.refusal:
            self._left -= IN_LOG_AND_TABLE * size
            if self._left < 0:
                self.refusal = self._full(self.space)
        if self.refusal:
            raise StorageError(self.refusal)

    async def look(self) -> None:
        """How much is free now; gives the ballast up, or makes it. Raises StorageError."""
        await trio.to_thread.run_sync(self._look, limiter=self._limiter)
        if self._told != bool(self.refusal):
            self._told = bool(self.refusal)
            if self._told:
                self._runtime.report("events_refused", error=self.refusal)
                self._drop_all()
            else:
                self._runtime.report("events_taken_again", space=str(self.space))

    async def watch(self) -> None:
        """Until cancelled."""
        failed = ""
        while True:
            await trio.sleep(LOOK_S)
            try:
                await self.look()
                failed = ""
            except StorageError as error:
                if str(error) != failed:
                    self._runtime.report("housekeeping_failed", part="room", error=str(error))
                failed = str(error)

    def _look(self) -> None:
        found = space(self._folder)
        kept = self.kept = self._ballast.wanted(found.total)
        if not kept:
            self._ballast.remove()
            self.space, self.refusal, self.held, self._left = found, "", 0, math.inf
            return
        held = self._ballast.held()
        if held and found.free < kept // 16:
            self._ballast.give_up()
            found, held = space(self._folder), 0
        elif held != kept and found.free + held >= kept + kept // 4:
            held = kept if self._ballast.make(kept) else 0
            found = space(self._folder)
        self.space, self.held = found, held
        lacking = self._ballast.given_up() or found.free < kept // 8
        self.refusal = self._full(found) if lacking else ""
        self._left = found.free - kept // 8

    def _full(self, found: Space) -> str:
        return (
            f"the disk of {self._folder} is full: {found}, and the rest is kept for deletions. Delete topics or "
            "events, let them expire sooner, or enlarge the volume: events are taken again once there is room"
        )
