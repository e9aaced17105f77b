"""What the broker counts of itself."""

from __future__ import annotations

from krappy.measures import Histogram, RequestTimes


def test_a_bucket_holds_what_is_at_most_its_bound() -> None:
    found = Histogram((0.1, 1.0))
    for value in (0.1, 0.05, 0.2, 1.0, 5.0):
        found.observe(value)
    found.observe(0.5, times=3)
    assert found.counts == [2, 5, 1]
    assert found.count == 8
    assert round(found.sum, 9) == 7.85


def test_requests_are_told_apart() -> None:
    times = RequestTimes()
    times.observe(4, 0.1, 3)
    times.observe(5, 0.1)
    assert {kind: histogram.count for kind, histogram in times.by_kind.items()} == {4: 3, 5: 1}
