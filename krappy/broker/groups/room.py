"""How many native groups and positions there may be, and how many of them one user may have.

A group counts for who had it made, and each position for who was the first there: so nobody answers for what others
bring to a group that they share. What was loaded counts for nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from krappy.core.owned_memory import OwnedMemory
from krappy.errors import Overloaded

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

MEMORY_SHARE = 2  # groups and their positions may take 1/MEMORY_SHARE of the memory budget, in addition to it
EACH = 1300  # bytes that count for each group, and for each position
RULE = "one user has at most as many as are left for all others: delete some groups"


class GroupRoom:
    """`number`: of native groups, without share groups. `places`: of all groups and positions together."""

    def __init__(self, runtime: Runtime) -> None:
        config = runtime.config
        self.number = OwnedMemory(config.max_groups, fair=config.authorizes)
        self.places = OwnedMemory(config.memory_bytes // MEMORY_SHARE // EACH, fair=config.authorizes)

    def take(self, owner: str, groups: int) -> None:
        """Counts so many native groups more."""
        self.number.charge(owner, groups)
        self.places.charge(owner, groups)

    @property
    def positions(self) -> int:
        """How many positions all groups have in memory. A share group counts as one."""
        return self.places.total - self.number.total

    def check(self, owner: str, more: int, *, is_new: bool) -> None:
        """Raises Overloaded if the owner may not have so many positions more, and one group more if `is_new`."""
        groups = self.number.total
        if is_new and not self.number.has_room(owner, 1):
            raise Overloaded(f"there are {groups} groups of {self.number.most} (max_groups), and {RULE}")
        if not self.places.has_room(owner, is_new + more):
            text = f"there are {groups} groups with {self.positions} positions; memory_bytes allows {self.places.most}"
            raise Overloaded(f"{text} together, and {RULE}")
