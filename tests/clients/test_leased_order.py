"""What a member is leased is handed out in the order of offsets, however often each was delivered before."""

from __future__ import annotations

from krappy.clients.events import EventBatch, leased


def test_deliveries_do_not_change_the_order() -> None:
    keys = [b"b", b"a", b"c", b"a", b"d", b"d"]
    batch = EventBatch("t", 0, range(10, 16), [0] * 6, keys, [b""] * 6)
    found = list(leased(batch, [(10, 10, 1), (11, 11, 2), (12, 13, 1), (15, 15, 1)]))
    assert [(list(each.offsets), each.deliveries) for each in found] == [([10], 1), ([11], 2), ([12, 13, 15], 1)]
