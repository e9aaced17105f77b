"""HTTP's part of the memory budget: answers that are made, and those that are sent, by whose they are.

One user may hold as much as is left for all others: half, if there is no other. While less than that is free, those go
on who hold little, up to a bound. Those who wait for room get it by user, one of each in turn. So one user who takes
none of what he has asked for, or whose answers are long in coming, keeps nobody else from an answer.
"""

from __future__ import annotations

from collections import Counter

import trio

from krappy.core.address_lines import AddressLines
from krappy.hosts import network
from krappy.server.budget import Budget

ANSWER = 8 << 20  # bytes charged for an answer while it is made: a page of 2 MiB, and the objects it is made from
LITTLE = 8  # an eighth of it is little


class Pages(Budget):
    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._most = total + max(total, 2 * ANSWER)  # bytes up to which those go on who hold little
        self._of: Counter[str] = Counter()  # bytes by user, or by the address of one who has not logged in
        self._lines: AddressLines[trio.Event] = AddressLines()  # of those who wait for room

    @property
    def short(self) -> bool:
        """Somebody waits for bytes that are held."""
        return self.waiting > 0

    def has_room(self, who: str) -> bool:
        """Whether an answer to this user, or address, may be made."""
        held = self._of[network(who)]
        holds_little = held < max(1, self.total // LITTLE)
        return held < self.total - self.used or (holds_little and self.used < self._most)

    async def take_room(self, who: str, seconds: float) -> bool:
        """Waits for room for an answer, up to `seconds`. Returns whether there is; then `ANSWER` bytes are charged."""
        if self.has_room(who):
            self.charge_to(who, ANSWER)
            return True
        turn = trio.Event()
        self._lines.add(who, turn)
        self.waiting += 1
        try:
            with trio.move_on_after(seconds):
                await turn.wait()
            return turn.is_set()
        except BaseException:  # its peer has left
            if turn.is_set():
                self.credit_to(who, ANSWER)
            raise
        finally:
            self.waiting -= 1
            self._lines.drop(who, turn)

    def charge_to(self, who: str, count: int) -> None:
        self._of[network(who)] += count
        self.charge(count)

    def credit_to(self, who: str, count: int) -> None:
        who = network(who)
        self._of[who] -= count
        if not self._of[who]:
            del self._of[who]
        self.credit(count)
        while (found := self._lines.pop_for(self.has_room)) is not None:
            whose, turn = found
            self.charge_to(whose, ANSWER)
            turn.set()
