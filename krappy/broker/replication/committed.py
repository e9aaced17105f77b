"""Notes on disk how far each replica here is committed (`DATA/reached`).

So after a kill a follower still knows which events it must not cut off (follower.py): checkpoints, which tell it, too,
are far between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from krappy.store.log import Log

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

NOTE_S = 0.5
SYNC_S = 5.0  # after a loss of power, what was noted later may be gone


class CommittedNotes:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def run(self) -> None:
        """Until cancelled."""
        runtime, sync_at, noted = self._runtime, trio.current_time() + SYNC_S, False
        while True:
            await trio.sleep(NOTE_S)
            owing = [each.log for each in runtime.topics.local() if not each.offline and each.log.owes_committed]
            noted |= bool(owing)
            if owing:
                await runtime.in_thread(lambda owing=owing: _note(owing))  # type: ignore[misc]
            if noted and trio.current_time() >= sync_at:
                await runtime.in_thread(runtime.reached.sync)
                sync_at, noted = trio.current_time() + SYNC_S, False


def _note(logs: Sequence[Log]) -> None:
    for each in logs:
        each.note_committed()
