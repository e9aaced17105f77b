"""The high watermark is the least that the replicas in sync have, and never goes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.cluster.replica_set import ReplicaSet
from krappy.core.cluster.roles import Role, role
from krappy.core.cluster.state import PartitionState


@given(
    st.sets(st.integers(1, 3), min_size=1),
    st.integers(1, 3),
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), max_size=30),
)
def test_what_is_committed(isr: set[int], min_isr: int, start: int, reports: list[tuple[int, int]]) -> None:
    leader = min(isr)
    replicas = ReplicaSet(leader, isr, min_isr, start)
    told = dict.fromkeys(isr, start)
    for replica, offset in reports:
        before = replicas.high_watermark
        offset = max(offset, told.get(replica, 0))
        moved = replicas.synced(offset) if replica == leader else replicas.fetched(replica, 1, offset, 20, 0)
        if replica in told:
            told[replica] = offset
        least = min(told.values())
        assert replicas.high_watermark == (least if len(isr) >= min_isr else start)
        assert moved == (replicas.high_watermark > before)


def test_one_replica_commits_what_it_has() -> None:
    alone = ReplicaSet(7, [7], 1, 3)
    assert [alone.synced(offset) for offset in (3, 5, 4, 9)] == [False, True, False, True]
    assert alone.high_watermark == 9


def test_a_dead_follower_does_not_come_back_while_its_registration_lives() -> None:
    """The controller takes the broker out of the ISR when its lease is silent, which is seconds before its session
    ends."""
    replicas = ReplicaSet(1, (1, 2, 3), 2, 10, 10, 0.0)
    for follower in (2, 3):
        replicas.fetched(follower, 0, 10, 10, 20_000.0)
    replicas.take((1, 3), 2)
    registered = {1: 0, 2: 0, 3: 0}
    replicas.fetched(3, 0, 10, 10, 22_000.0)
    assert replicas.propose(registered, 22_500.0) is None
    replicas.fetched(2, 0, 10, 10, 23_000.0)
    proposal = replicas.propose(registered, 23_000.0)
    assert proposal is not None
    assert proposal.added == {2: 0}


def test_who_was_away_is_known_by_its_broker_epoch_or_its_silence() -> None:
    replicas = ReplicaSet(1, (1, 2), 1, 10, 20, 0.0)
    assert replicas.slowest(0, 1000) == float("inf")
    assert replicas.is_new(3, 7, 0, 1000)
    assert not replicas.is_new(2, 7, 0, 1000)  # it is in sync, so it has all that is committed
    replicas.fetched(3, 7, 4, 20, 100.0)
    replicas.fetched(2, 7, 20, 20, 100.0)
    assert not replicas.is_new(3, 7, 1100, 1000)
    assert replicas.is_new(3, 7, 1101, 1000)
    assert replicas.is_new(3, 8, 100, 1000)
    assert replicas.slowest(1100, 1000) == 4
    assert replicas.slowest(1101, 1000) == float("inf")
    replicas.propose({1: 0, 2: 7, 3: 7}, 200.0)
    replicas.fetched(3, 7, 20, 20, 300.0)
    replicas.propose({1: 0, 2: 7, 3: 7}, 300.0)
    assert not replicas.is_new(3, 7, 5000, 1000)  # it may be in sync already


def test_who_has_not_deleted_what_was_deleted_does_not_come_back() -> None:
    replicas = ReplicaSet(1, (1, 2), 1, 10, 20, 0.0, 5)
    registered = {1: 0, 2: 0, 3: 0}
    for start, comes in ((0, False), (4, False), (5, True)):
        replicas.fetched(3, 0, 20, 20, 100.0, start)
        proposal = replicas.propose(registered, 100.0)
        assert (proposal is not None) is comes
    replicas.take((1, 2), 1)
    assert not replicas.has_deleted(5)
    replicas.fetched(2, 0, 20, 20, 100.0, 5)
    assert replicas.has_deleted(5)
    replicas.delete(8)
    assert not replicas.has_deleted(8)
    assert replicas.propose(registered, 100.0) is None
    replicas.fetched(2, 0, 20, 20, 100.0, 8)
    assert replicas.has_deleted(8)
    replicas.fetched(3, 0, 20, 20, 100.0, 8)
    assert replicas.propose(registered, 100.0) is not None
    replicas.fetched(3, 0, 20, 20, 100.0, 7)
    assert not replicas.has_deleted(8)  # it may be in sync by now
    replicas.take((1,), 2)
    assert not replicas.has_deleted(8)  # a candidate outside the ISR may have them


@pytest.mark.parametrize(
    ("leader", "incarnation", "expected"), [(1, 4, Role.LEADER), (1, 3, Role.OFFLINE), (2, 4, Role.FOLLOWER)]
)
def test_who_leads(leader: int, incarnation: int, expected: Role) -> None:
    assert role(PartitionState(leader, 0, incarnation), 1, 4) is expected
