"""Gives freed memory back to the system, once the broker has no more use for it.

`keep_freed_memory` lets the process keep freed memory, which lies between memory in use: after a burst of large batches
a broker held 45 MB that were free. While the broker works hard it keeps them, since getting them anew takes 0.7 ms for
each MB.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import trio

from krappy import memory

EVERY_SECONDS = 2.0
WORTH = 8 << 20  # bytes
BUSY = 0.5  # the share of one processor's time above which the broker works hard


async def give_back(resident: Callable[[], int], cpu_seconds: Callable[[], float] = process_time) -> None:
    """Works until it is cancelled. `resident()`: bytes of the process that are in RAM; `cpu_seconds()`: processor time
    that it has taken so far.

    RAM also holds what is not allocated: code, stacks and much else. So what counts is how much the difference has
    grown since the last time.
    """
    beside = resident() - memory.allocated()
    while True:
        before = cpu_seconds()
        await trio.sleep(EVERY_SECONDS)
        unused = resident() - memory.allocated() - beside
        if unused > WORTH and cpu_seconds() - before < BUSY * EVERY_SECONDS:
            await trio.to_thread.run_sync(memory.give_back)
            beside = resident() - memory.allocated()
        else:
            beside += min(0, unused)
