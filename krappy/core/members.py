"""The names of a group's members: `<group>_<n>`, with the lowest free n."""

from __future__ import annotations

import heapq

from krappy.errors import GroupFull

LIMIT = 1000


class Members:
    def __init__(self, group: str, limit: int = LIMIT) -> None:
        self._group = group
        self._limit = limit
        self._free: list[int] = []  # numbers below `_next` that were given back; a heap
        self._next = 0

    def __len__(self) -> int:
        return self._next - len(self._free)

    def join(self) -> str:
        """A name that no other member has. Raises GroupFull."""
        if self._free:
            return f"{self._group}_{heapq.heappop(self._free)}"
        if self._next >= self._limit:
            raise GroupFull(
                f"the group '{self._group}' has {self._limit} members, as many as it may have", limit=self._limit
            )
        self._next += 1
        return f"{self._group}_{self._next - 1}"

    def leave(self, name: str) -> None:
        """Frees a name that `join` gave."""
        heapq.heappush(self._free, int(name.rpartition("_")[2]))
