"""How many native groups and positions there may be, and how many of them one user may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krappy.broker.owned_memory import Holding, OwnedMemory
from krappy.errors import Overloaded

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

MEMORY_SHARE = 2  # groups and their positions may take 1/MEMORY_SHARE of the memory budget, in addition to it
EACH = 1300  # bytes that count for each group, and for each position
RULE = "one user has at most as many as are left for all others: delete some groups"


class GroupRoom:
    """`number`: of native groups, without share groups. `places`: of all groups and positions together."""

    def __init__(self, runtime: Runtime) -> None:
        self.number = OwnedMemory(runtime.config.max_groups)
        self.places = OwnedMemory(runtime.config.memory_bytes // MEMORY_SHARE // EACH)

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


class GroupHolding:
    """What one native group takes of the room: for who has joined, or committed by hand, last."""

    def __init__(self, room: GroupRoom) -> None:
        self._number = Holding(room.number)
        self.places = Holding(room.places)

    def begin(self) -> None:
        """The group is there from now on."""
        self._number.take(1)
        self.places.take(1)

    def own(self, owner: str) -> None:
        self._number.own(owner)
        self.places.own(owner)

    def free(self) -> None:
        self._number.free()
        self.places.free()
