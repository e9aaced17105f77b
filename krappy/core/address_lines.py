"""Lines of those who wait for a turn, one for each address: each address has a turn before one has its second.

So however many of one address wait, one of another address waits for a turn of each other address at most, and for the
one that is under way. What serves peers before they have logged in is given so: by then only their addresses are known.
For peers that have logged in, a user's name stands in place of the address.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from krappy.errors import Overloaded
from krappy.hosts import network

T = TypeVar("T")


class AddressLines(Generic[T]):
    """`most`: how many of one address wait at a time; None: their number has another bound."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._lines: dict[str, dict[T, None]] = {}  # none is empty; the one whose turn is next is first

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, host: str, item: T) -> None:
        """`host`: the address of the one that waits. Raises Overloaded."""
        line = self._lines.get(network(host), {})
        if len(line) == self._most:
            raise Overloaded(f"{self._most} of {host} wait for their turn")
        line[item] = None
        self._lines[network(host)] = line

    def drop(self, host: str, item: T) -> None:
        """It waits no more."""
        line = self._lines.get(network(host), {})
        line.pop(item, None)
        if not line:
            self._lines.pop(network(host), None)

    def pop(self) -> T | None:
        """Takes the one whose turn it is; None: nobody waits."""
        return self._take(next(iter(self._lines))) if self._lines else None

    def pop_of_most(self) -> T:
        """Takes the one that has waited longest of those of the address of which most wait. Somebody does."""
        return self._take(max(self._lines, key=lambda address: len(self._lines[address])))

    def _take(self, address: str) -> T:
        line = self._lines.pop(address)
        item = next(iter(line))
        del line[item]
        if line:
            self._lines[address] = line  # behind the others
        return item
