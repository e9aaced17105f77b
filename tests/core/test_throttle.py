"""No more bytes a second than allowed, on average, whatever the pieces."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from krappy.core.throttle import ReplicationQuota, Throttle


def test_without_a_limit_there_is_no_pause() -> None:
    throttle = Throttle()
    assert [throttle.spend(10**9, 0, now) for now in (0.0, 0.0, 1.0)] == [0.0, 0.0, 0.0]


@example([(1, 0.0)], 312_487)  # 3.2 us on a clock that shows 100 s: rounding is a part of it, not of 1e-9 of it
@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 5)), min_size=1, max_size=50), st.integers(1, 10**7))
def test_the_average_holds(pieces: list[tuple[int, float]], rate: int) -> None:
    """Whoever pauses as told has spent at least size / rate, and no more than that and the time that the work took."""
    throttle, now, worked, done = Throttle(), 100.0, 0.0, 0
    for size, took in pieces:
        now += took
        worked += took
        done += size
        now += throttle.spend(size, rate, now)
        rounding = 1e-9 + 1e-9 * now  # seconds, of a sum of up to 100 floats as large as the clock
        assert now - 100 >= done / rate - rounding
        assert now - 100 <= done / rate + worked + rounding


def test_idle_time_is_not_saved_up() -> None:
    throttle = Throttle()
    assert throttle.spend(100, 100, 0.0) == pytest.approx(1.0)
    assert throttle.spend(100, 100, 1000.0) == pytest.approx(1.0)


def test_a_new_rate_holds_from_the_next_piece_on() -> None:
    throttle = Throttle()
    assert throttle.spend(100, 100, 0.0) == pytest.approx(1.0)
    assert throttle.spend(100, 1000, 1.0) == pytest.approx(0.1)
    assert throttle.spend(100, 0, 1.1) == 0.0


def test_a_quota_without_a_rate_holds_nothing() -> None:
    quota = ReplicationQuota()
    quota.spend(10**12, 5.0)
    assert quota.pause(5.0) == 0
    assert quota.share(3) is None


def test_a_quota_keeps_the_average() -> None:
    quota, now, done = ReplicationQuota(), 100.0, 0
    quota.rate = 1000
    while now < 200:
        quota.spend(3300, now)
        done += 3300
        assert quota.pause(now) == pytest.approx(3.3)
        assert quota.pause(now + 1.3) == pytest.approx(2.0)
        now += quota.pause(now)
    assert done == pytest.approx(100_000, rel=0.05)
    assert quota.share(4) == 250


def test_a_quota_forgets_when_its_rate_changes() -> None:
    quota = ReplicationQuota()
    quota.rate = 10
    quota.spend(1000, 1.0)
    assert quota.pause(1.0) == 100
    quota.rate = 10
    assert quota.pause(1.0) == 100
    quota.rate = 20
    assert quota.pause(1.0) == 0
    quota.spend(1000, 1.0)
    quota.rate = None
    assert quota.pause(1.0) == 0


def test_a_quota_of_nothing() -> None:
    quota = ReplicationQuota()
    quota.rate = 0
    assert quota.pause(1e9) == float("inf")
    assert quota.share() == 1
