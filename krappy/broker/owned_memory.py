"""Memory, or a number of things, that users take, and share fairly."""

from __future__ import annotations

from collections import Counter


class OwnedMemory:
    """Bytes of memory, or a number of things, by their owner (`Principal.owner`). One owner may take as much as is left
    for all others: half, if there is no other. For "", the broker itself, only the total counts. `total`: what all
    take; `most`: what they may take."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._of: Counter[str] = Counter()

    def has_room(self, owner: str, more: int) -> bool:
        """Whether the owner may take so much more."""
        held = self._of[owner] + more if owner else 0
        return more <= 0 or held <= self.most - self.total - more

    def charge(self, owner: str, size: int) -> None:
        """Counts what the owner takes; a negative size: what it gives back."""
        self.total += size
        self._of[owner] += size
        if not self._of[owner]:
            del self._of[owner]


class Holding:
    """What one thing, a group for example, takes of it. `owner`: "": it was only loaded."""

    __slots__ = ("_memory", "owner", "size")

    def __init__(self, memory: OwnedMemory, owner: str = "") -> None:
        self._memory = memory
        self.owner = owner
        self.size = 0

    def take(self, more: int) -> None:
        """Takes so much more; negative: gives so much back."""
        self.size += more
        self._memory.charge(self.owner, more)

    def free(self) -> None:
        """Gives everything back."""
        self.take(-self.size)

    def own(self, owner: str) -> None:
        """From now on all of it counts as this owner's. "": the broker itself takes nothing from its owner."""
        if owner and owner != self.owner:
            size = self.size
            self.free()
            self.owner = owner
            self.take(size)
