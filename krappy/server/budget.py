"""One byte budget for the whole server: requests in flight, large frames being read, answers that wait to be sent.

When the budget is spent, the server reads from no connection until something was answered or sent. Only a connection
that holds less than `FAIR` may go on, so that a few that hold much do not starve the others. So the server holds at
most `total`, plus `FAIR` and one answer for each connection, plus half of `total` and one large request for requests
that wait. What peers send in part who have not logged in counts apart (`strangers.StrangerBytes`).

A large frame is read only once there is room for the whole frame; so is one of more than `FAIR` while half of the
budget is taken (`scarce`). While one waits for room, memory is `short`, and the server ends connections that hold
memory without using it (`Server._look_after`). Large frames of one user, or address, have as much room as is left for
all others: half of it, if there is no other. So who announces many, and sends them slowly, makes nobody else wait;
meanwhile only his own connections count as slow. Who has less than half, and waits for what others have taken, has no
connections ended of those who have reserved less than he.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter

from krappy.core.owned_memory import OwnedMemory
from krappy.waiting import Signal, wait_any

FAIR = 64 << 10  # bytes that a connection may always hold; a waiting request up to this size counts as small
SHARE = 8  # one answer takes at most an eighth of the budget


class Budget:
    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.waiting = 0  # how many wait until it is not spent any more; for them the server may end connections
        self.parked = 0  # bytes of waiting requests, counted apart: they may wait long, and must not block the others
        # Bytes of `parked` in requests that are not small, by user or address; most wait until their answer is made.
        self.heavy = OwnedMemory(total // 4, fair=True)
        self.stalls = 0  # how often a connection had to wait
        self.freed = Signal()  # the budget was spent, and is not any more; or a large waiting request has ended
        self._room = Signal()  # bytes were given back while a reservation waits
        # The sizes of the reservations that wait, by user or address, in order; none is empty.
        self._wanted: dict[str, list[int]] = {}
        self._reserved: Counter[str] = Counter()  # bytes that are reserved now, by user or address
        self._first: int | None = None  # the smallest reservation that may be made; None: it has to be looked for

    @property
    def spent(self) -> bool:
        return self.used >= self.total

    @property
    def scarce(self) -> bool:
        """Half of it is taken."""
        return self.used >= self.total // 2

    @property
    def crowded(self) -> bool:
        """Waiting requests take half of `total`: no other should begin to wait."""
        return self.parked >= self.total // 2

    def laden_for(self, owner: str) -> bool:
        """Whether no other large request of this user or address should begin to wait: those of all may take a quarter
        of `total`, and those of one as much as is left for others. So nobody waits behind hundreds of one user's."""
        return not self.heavy.has_room(owner, 1)

    @property
    def short(self) -> bool:
        """Somebody waits for bytes that others hold."""
        return self.least_waiting < math.inf

    @property
    def least_waiting(self) -> float:
        """The least that anybody has reserved who waits for bytes that others hold; inf: nobody waits for such."""
        if self.waiting and self.spent:
            return 0
        waits = (self._reserved[owner] for owner, sizes in self._wanted.items() if self._waits_for_others(owner, sizes))
        return min(waits, default=math.inf)

    def _waits_for_others(self, owner: str, sizes: list[int]) -> bool:
        # A reservation that has room by now does not wait for others any more: it goes on in the next round. One of
        # somebody who would have more than half with it waits for his own.
        held = self._reserved[owner]
        if not held:
            return self.used + sizes[-1] > self.total
        return not self._may_reserve(sizes[0], owner) and held + sizes[0] <= self.total // 2

    def reserved_by(self, owner: str) -> int:
        """Bytes that are reserved for this user or address."""
        return self._reserved[owner]

    @property
    def short_for(self) -> set[str]:
        """The users and addresses that wait for bytes which they hold themselves."""
        return {owner for owner, sizes in self._wanted.items() if not self._may_reserve(sizes[-1], owner)}

    @property
    def answer_bytes(self) -> int:
        """How many bytes an answer that is made now should have at most."""
        return max(FAIR, min(self.total // SHARE, self.total - self.used))

    def charge(self, count: int) -> None:
        self.used += count
        self._first = None

    def credit(self, count: int) -> None:
        was_spent = self.used >= self.total
        self.used -= count
        self._first = None
        if was_spent and self.used < self.total:
            self.freed.fire()
        self._wake()

    def park(self, count: int, owner: str) -> None:
        """A request of `count` bytes begins to wait; a negative count: it ends. `owner`: the user, or the address."""
        self.parked += count
        if abs(count) > FAIR:
            somebody_waits = self.heavy.refuses_some
            self.heavy.charge(owner, count)
            if somebody_waits and count < 0:
                self.freed.fire()

    async def reserve(self, count: int, owner: str) -> None:
        """Waits until there is room for `count` bytes, then charges them, until `release`. `owner`: the user, or the
        address. The smallest reservation of those whose owners may have more comes first.

        One larger than `total` would wait until nothing is charged; the frame limit keeps them smaller.
        """

        def possible() -> bool:
            if not self.used:
                return True
            fits = self.used + count <= self.total and self._may_reserve(count, owner)
            return fits and count <= self._smallest()

        sizes = self._wanted.setdefault(owner, [])
        insort(sizes, count)
        self._first = None
        try:
            if not possible():
                self.stalls += 1
                await wait_any([self._room], possible)
            self._reserved[owner] += count
            self.charge(count)
        finally:
            sizes.remove(count)
            if not sizes:
                del self._wanted[owner]
            self._first = None
            self._wake()

    def _wake(self) -> None:
        """Lets reservations go on, if one may. Else hundreds that wait for their owner's own would be woken each time
        that anything is answered."""
        if self._wanted and (not self.used or 0 < self._smallest() <= self.total - self.used):
            self._room.fire()

    def _may_reserve(self, count: int, owner: str) -> bool:
        """Whether so much would be left for all others as the owner had then. Anybody may have one."""
        held = self._reserved[owner]
        return not held or held + count <= self.total - self.used - count

    def _smallest(self) -> int:
        """The smallest of those that wait and may be made. Hundreds may ask at once, so it is looked for once."""
        if self._first is None:
            first = (sizes[0] for owner, sizes in self._wanted.items() if self._may_reserve(sizes[0], owner))
            self._first = min(first, default=0)
        return self._first

    def release(self, count: int, owner: str) -> None:
        """Gives a reservation back."""
        self._reserved[owner] -= count
        if not self._reserved[owner]:
            del self._reserved[owner]
        self.credit(count)
