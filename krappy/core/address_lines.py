"""Waiting lines, one for each address. The addresses take turns: each has one before any has its second.

However many wait at one address, the first of another address waits at most for the turn that is under way, and for one
turn of each other address. Peers that have not logged in yet are served in this order: only their addresses are known.
For peers that have logged in, a user's name stands in place of the address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from krappy.errors import Overloaded
from krappy.hosts import network

T = TypeVar("T")


class AddressLines(Generic[T]):
    """`most`: how many of one address may wait at a time. None: something else bounds their number."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._lines: dict[str, dict[T, None]] = {}  # no line is empty; the first line has the next turn

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, host: str, item: T) -> None:
        """Adds one that waits, of the address `host`. Raises Overloaded if `most` of that address wait already."""
        line = self._lines.setdefault(network(host), {})
        if len(line) == self._most:
            raise Overloaded(f"{self._most} of {host} wait for their turn")
        line[item] = None

    def drop(self, host: str, item: T) -> None:
        """Removes one that waits no more."""
        line = self._lines.get(network(host), {})
        line.pop(item, None)
        if not line:
            self._lines.pop(network(host), None)

    def pop(self) -> T | None:
        """Takes the one whose turn it is; None: nobody waits."""
        return self._take(next(iter(self._lines))) if self._lines else None

    def pop_for(self, may: Callable[[str], bool]) -> tuple[str, T] | None:
        """Takes the first one of an address, or a network, that `may` go on, and tells which; None: there is none."""
        for address in self._lines:
            if may(address):
                return address, self._take(address)
        return None

    def pop_of_most(self) -> T:
        """Takes the one that has waited longest in the longest line. Somebody must be waiting."""
        return self._take(max(self._lines, key=lambda address: len(self._lines[address])))

    def _take(self, address: str) -> T:
        line = self._lines.pop(address)
        item = next(iter(line))
        del line[item]
        if line:
            self._lines[address] = line  # behind the others
        return item
