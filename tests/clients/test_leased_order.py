"""Leased events are handed out in the order of their offsets, however often each was delivered before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from krappy.clients.events import EventBatch, leased


def test_deliveries_do_not_change_the_order() -> None:
    keys = [b"b", b"a", b"c", b"a", b"d", b"d"]
    batch = EventBatch("t", 0, range(10, 16), [0] * 6, keys, [b""] * 6)
    found = list(leased(batch, [(10, 10, 1), (11, 11, 2), (12, 13, 1), (15, 15, 1)]))
    assert [(list(each.offsets), each.deliveries) for each in found] == [([10], 1), ([11], 2), ([12, 13, 15], 1)]


def test_a_batch_looks_at_its_own_leases_only() -> None:
    """A poll may bring thousands of batches of one event, of which every second one is leased."""
    looked: list[int] = []

    class Leases(Sequence[tuple[int, int, int]]):
        def __len__(self) -> int:
            return 5_000

        def __getitem__(self, at: Any) -> Any:
            if at >= len(self):
                raise IndexError
            looked.append(at)
            return 2 * at, 2 * at, 1

    batch = EventBatch("t", 0, range(5_000, 5_001), [0], [b"a"], [b""])
    [found] = leased(batch, Leases())
    assert list(found.offsets) == [5_000]
    assert len(looked) < 20
