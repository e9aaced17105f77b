"""One byte budget for the whole server: requests in flight, large frames on their way, replies that wait to be sent.

When it is spent, connections are not read from until something has been answered or sent. A connection that
holds less than `FAIR` may go on even then, so that a few that hold much do not starve the others. What the
server holds is thus bounded by `total` + `FAIR` and one answer for each connection, half of `total` more for requests
that wait, and the last large one of those.

A large frame is read once there is room for the whole of it. While one waits for that, memory is `short`, and the
server parts with those who hold some without making use of it (`Server._relieve`).
"""

from __future__ import annotations

from krappy.waiting import Signal, wait_any

FAIR = 64 << 10  # and what a waiting request may take to count as a small one
SHARE = 8  # one answer takes no more than this part of the budget


class Budget:
    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.waiting = 0  # who waits for it not to be spent, and would have others be parted with
        self.parked = 0  # what waiting requests take, apart: they may wait for long, and must not keep others from it
        self.heavy = 0  # of that, what those take that are not small: they wait for their answer to be made, mostly
        self.stalls = 0  # how often somebody had to wait
        self.freed = Signal()  # it was spent or laden, and is no more
        self._room = Signal()  # something was given back, while somebody waits to reserve
        self._wanted: list[int] = []  # what they want

    @property
    def spent(self) -> bool:
        return self.used >= self.total

    @property
    def crowded(self) -> bool:
        """No more requests should begin to wait: they take half as much as all else may."""
        return self.parked >= self.total // 2

    @property
    def laden(self) -> bool:
        """No other large request should begin to wait: those that do take as much as they may together."""
        return self.heavy >= self.total // 4

    @property
    def short(self) -> bool:
        """Somebody waits for room that there could be, and does not get it."""
        return bool(self.waiting and self.spent) or any(count <= self.total for count in self._wanted)

    @property
    def answer_bytes(self) -> int:
        """How large an answer that is made now should be at the most."""
        return max(FAIR, min(self.total // SHARE, self.total - self.used))

    def charge(self, count: int) -> None:
        self.used += count

    def credit(self, count: int) -> None:
        was_spent = self.used >= self.total
        self.used -= count
        if was_spent and self.used < self.total:
            self.freed.fire()
        if self._wanted:
            self._room.fire()

    def park(self, count: int) -> None:
        """A request begins to wait (or ends, with a negative count)."""
        self.parked += count
        if abs(count) > FAIR:
            was_laden = self.laden
            self.heavy += count
            if was_laden and not self.laden:
                self.freed.fire()

    async def reserve(self, count: int) -> None:
        """Charges `count` bytes once there is room for them; the smallest reservation comes first.

        One beyond the total waits for an idle server; the limit of frames lets none be so large.
        """

        def possible() -> bool:
            return (self.used + count <= self.total and count <= min(self._wanted)) or not self.used

        self._wanted.append(count)
        try:
            if not possible():
                self.stalls += 1
                await wait_any([self._room], possible)
            self.charge(count)
        finally:
            self._wanted.remove(count)
            self._room.fire()
