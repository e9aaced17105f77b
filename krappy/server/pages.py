"""HTTP's part of the memory budget: answers that are made, and those that are sent, by whose they are.

While it is spent, only those go on who hold little of it, up to a bound. So one user who takes none of what he has
asked for keeps nobody else from an answer.
"""

from __future__ import annotations

from collections import Counter

from krappy.server.budget import Budget

ANSWER = 8 << 20  # bytes charged for an answer while it is made: a page of 2 MiB, and the objects it is made from
LITTLE = 8  # an eighth of it is little


class Pages(Budget):
    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._most = total + max(total, 2 * ANSWER)  # bytes up to which those go on who hold little
        self._of: Counter[str] = Counter()  # bytes by user, or by the address of one who has not logged in

    def has_room(self, who: str) -> bool:
        """Whether an answer to this user, or address, may be made."""
        return not self.spent or (self._holds_little(who) and not self._overdrawn)

    def charge_to(self, who: str, count: int) -> None:
        self._of[who] += count
        self.charge(count)

    def credit_to(self, who: str, count: int) -> None:
        before = self._overdrawn, self._holds_little(who)
        self._of[who] -= count
        if not self._of[who]:
            del self._of[who]
        self.credit(count)
        if self.waiting and before != (self._overdrawn, self._holds_little(who)):
            self.freed.fire()

    def _holds_little(self, who: str) -> bool:
        return self._of[who] < max(1, self.total // LITTLE)

    @property
    def _overdrawn(self) -> bool:
        return self.used >= self._most
