"""One byte budget for the whole server: requests in flight and replies that wait to be sent.

When it is spent, connections are not read from until something has been answered or sent. A connection that
holds less than `FAIR` may go on even then, so that a few that hold much do not starve the others. What the
server holds is thus bounded by `total` + `FAIR` for each connection + one frame.
"""

from __future__ import annotations

from krappy.waiting import Signal, wait_any

FAIR = 64 << 10


class Budget:
    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.stalls = 0  # how often somebody had to wait
        self.freed = Signal()

    @property
    def spent(self) -> bool:
        return self.used >= self.total

    def charge(self, count: int) -> None:
        self.used += count

    def credit(self, count: int) -> None:
        was_spent = self.spent
        self.used -= count
        if was_spent and not self.spent:
            self.freed.fire()

    async def reserve(self, count: int) -> None:
        """Charges `count` bytes once there is room for them. A count beyond the total waits for an idle server."""
        while self.used and self.used + count > self.total:
            self.stalls += 1
            before = self.used
            await wait_any([self.freed], lambda before=before: self.used < before or not self.used)  # type: ignore[misc]
        self.charge(count)
