"""Memory, or a number of things, that users take, and share fairly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class OwnedMemory:
    """Bytes of memory, or a number of things, by their owner (`Principal.owner`). One owner may take as much as is left
    for all others: half, if there is no other. For "", the broker itself, only the total counts; so it does for all if
    it is not `fair`: where everybody may do everything, they are not kept apart. `total`: what all take; `most`: what
    they may take."""

    def __init__(self, most: int, *, fair: bool) -> None:
        self.most, self.fair = most, fair
        self.total = 0
        self._of: Counter[str] = Counter()

    def has_room(self, owner: str, more: int) -> bool:
        """Whether the owner may take so much more."""
        held = self._of[owner] + more if owner and self.fair else 0
        return more <= 0 or held <= self.most - self.total - more

    @property
    def refuses_some(self) -> bool:
        """Whether there is somebody who may take no more: one of its owners, or whoever has nothing yet."""
        return self.total + 1 >= self.most or any(not self.has_room(owner, 1) for owner in self._of)

    def charge(self, owner: str, size: int) -> None:
        """Counts what the owner takes; a negative size: what it gives back."""
        self.total += size
        self._of[owner] += size
        if not self._of[owner]:
            del self._of[owner]

    @contextmanager
    def reserved(self, owner: str, size: int) -> Iterator[None]:
        """Counts what the owner is about to take, during the body: others may ask for room meanwhile."""
        self.charge(owner, size)
        try:
            yield
        finally:
            self.charge(owner, -size)
