"""Room on the disk: how much is free, what is reserved for work that frees space, and when publishes are refused.

A file, the ballast, reserves a part of the disk (store/ballast.py). Let `kept` be its size:

- While less than an eighth of `kept` is free, events are refused with the reason. All else goes on: reads, lookups,
  commits, changes of topics, deletions, retention, compaction.
- When less than a sixteenth is free, because others fill the disk too, the ballast is deleted; this is checked at the
  start and before a deletion too. Then events are refused until the ballast is made again, which is done once `kept`
  and a quarter of it are free.

Without a ballast (`ballast_bytes` is 0) events are refused only when the disk refuses them.

Events are also refused while the folder of the logs is not where it was: a file that is open would take them, and they
would be lost with it. A broker of a cluster leaves the cluster meanwhile (krappy/cluster/member.py). If another folder
with data stands in its place, the broker ends as if it were killed (`abort`): RocksDB, new segments and deletions use
paths, so they would change the other folder, and what they stored there would be missing in the broker's own.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import trio

from krappy.errors import StorageError
from krappy.settings.server import ServerConfig
from krappy.store.ballast import Ballast, Space, space
from krappy.store.refusals import refusals
from krappy.waiting import Signal

LOOK_S = 0.5  # how often it looks how much is free
IN_LOG_AND_TABLE = 2  # how many times an event may be stored on the disk


class RoomLender(Protocol):
    """What a broker lends."""

    config: ServerConfig

    def report(self, event: str, **facts: Any) -> None: ...


class Room:
    def __init__(self, runtime: RoomLender, drop_all: Callable[[], None]) -> None:
        """`drop_all`: deletes files that can be made again."""
        self._drop_all = drop_all
        self.refusal = ""  # why events are refused; empty: they are taken
        self.space = Space(0, 0)  # as of the last look
        self.kept = 0  # bytes that the ballast should have
        self.held = 0  # bytes that it has
        self._left: float = math.inf  # bytes of events that may be accepted before the next look
        self.away = False  # whether the folder of the logs was not there at the last look
        self.moved = Signal()  # fired when that has changed
        self.abort: Callable[[], None] = lambda: None  # ends the process at once; a broker within a program ignores it
        self._replaced = False  # whether something else was in its place at the last look
        self._told = False, False  # whether events were refused, and the folder was away, as of the last look
        self._runtime = runtime
        self._folder = runtime.config.data
        # The folder of the logs, and the data folder. They are kept open once they were seen: so no other folder gets
        # their inodes.
        self._logs = self._home = -1
        self._ballast = Ballast(self._folder, runtime.config.ballast_bytes)
        self._limiter = trio.CapacityLimiter(1)  # its own: one look at a time, also when all other threads wait

    def check(self, size: int) -> None:
        """Call it before accepting events of `size` bytes. Raises StorageError when they are refused."""
        if not self.refusal:
            self._left -= IN_LOG_AND_TABLE * size
            if self._left < 0:
                self.refusal = self._full(self.space)
        if self.refusal:
            raise StorageError(self.refusal)

    async def look(self) -> None:
        """Looks how much is free, and deletes or makes the ballast. Raises StorageError, also while the folder of the
        logs is not where it was."""
        await trio.to_thread.run_sync(self._look, limiter=self._limiter)
        if self._told != (bool(self.refusal), self.away):
            moved = self._told[1] != self.away
            self._told = bool(self.refusal), self.away
            if moved:
                self.moved.fire()
            if self.away:
                self._runtime.report("data_folder_away", error=self.refusal)
            elif self.refusal:
                self._runtime.report("events_refused", error=self.refusal)
                self._drop_all()
            else:
                self._runtime.report("events_taken_again", space=str(self.space))
        if self._replaced:
            self.abort()
        if self.away:
            raise StorageError(self.refusal)

    async def watch(self) -> None:
        """Until cancelled."""
        failed = ""
        while True:
            await trio.sleep(LOOK_S)
            try:
                await self.look()
                failed = ""
            except StorageError as error:
                if str(error) != failed and not self.away:  # that is told already
                    self._runtime.report("housekeeping_failed", part="room", error=str(error))
                failed = str(error)

    def _look(self) -> None:
        self.away = self._is_away()
        if self.away:
            self.refusal = (
                f"the folder {self._folder} was moved, removed or unmounted: events are taken again once it is back"
            )
            self._replaced = self._is_replaced()
            return
        self._replaced = False
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

    def _is_away(self) -> bool:
        """Whether the folder of the logs is not where it was. Raises StorageError."""
        folder = self._folder / "topics"
        with refusals(folder):
            try:
                if self._logs < 0:
                    logs = self._open(folder)
                    self._home, self._logs = self._open(self._folder), logs
                return not os.path.samestat(os.stat(folder), os.fstat(self._logs))
            except OSError as error:  # no folder, or a file or a broken link in its place, a stale mount
                if self._logs < 0 and not isinstance(error, FileNotFoundError):  # before the first start there is none
                    raise
                return self._logs >= 0

    def _open(self, folder: Path) -> int:
        found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, found)
        return found

    def _is_replaced(self) -> bool:
        """Called while the logs are not where they were: whether the paths lead to folders that are not this broker's.
        The logs may come back at any moment."""
        if os.path.lexists(self._folder / "topics"):
            return self._is_away()
        others = any(os.path.lexists(self._folder / each) for each in ("meta", "views"))
        try:
            return others and not os.path.samestat(os.stat(self._folder), os.fstat(self._home))
        except OSError:
            return others

    def _full(self, found: Space) -> str:
        return (
            f"the disk of {self._folder} is full: {found}, and the rest is kept for deletions. Delete topics or "
            "events, let them expire sooner, or enlarge the volume: events are taken again once there is room"
        )
