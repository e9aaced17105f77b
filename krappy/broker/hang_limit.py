"""A limit for calls that wait for the disk. One that hangs counts no more: so if the disk hangs at some files, all
others have as many calls as before."""

from __future__ import annotations

import trio

MOST_HUNG = 120  # calls that do not count
LOOK_S = 1.0  # a call that is under way at two looks hangs


class HangLimit:
    """`limiter`: of the calls. `most`: how many may be under way, beside those that hang."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.limiter = trio.CapacityLimiter(most)
        self._hung = 0
        self._seen: set[object] = set()  # the calls that were under way at the last look

    def look(self) -> None:
        """To be called every `LOOK_S`."""
        found = set[object](self.limiter.statistics().borrowers)
        self._hung, self._seen = min(MOST_HUNG, len(found & self._seen)), found
        self.set_limit()

    def set_limit(self) -> None:
        """To be called when `most` has changed."""
        self.limiter.total_tokens = self.most + self._hung

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            self.look()
