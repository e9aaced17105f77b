"""The state of a share group in a partition: it is read back as it was written; and who may write it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.share_state import NOT_BEGUN, ShareState, leases_of
from krappy.core.leases import Leases, LogSlice

STEPS = st.lists(
    st.tuples(st.sampled_from(["lease", "ack", "nack"]), st.integers(0, 40), st.integers(0, 9)), max_size=20
)


@given(st.integers(0, 5), STEPS)
def test_the_batches_of_a_state_say_all_of_it(floor: int, steps: list[tuple[str, int, int]]) -> None:
    leases = Leases(floor, max_deliveries=100)
    log = LogSlice(floor, 60, [(floor, 59)], epochs=[(3, floor), (5, floor + 7)])
    for now, (kind, first, more) in enumerate(steps):
        if kind == "lease":
            leases.lease(now, "m", 1_000_000, log, more + 1)
        elif kind == "ack":
            leases.ack("m", first, first + more)
        else:
            leases.nack(now, "m", first, first + more)
    state = ShareState(7, 3, 9, leases.dump())
    batches = state.batches()
    assert leases_of(state.start, batches, state.lineage) == leases.dump()
    assert ShareState.load(state.dump()) == state
    assert (state.start, state.complete) == (leases.floor, leases.frontier - leases.floor - leases.unsettled)
    assert all(one[1] + 1 == next[0] for one, next in pairwise(batches))


def test_a_state_that_no_leader_has_begun_and_one_of_a_broker_that_is_alone() -> None:
    state = ShareState(7, 3, 0)
    assert ShareState.load(state.dump()) == state._replace(leases=[])
    assert (state.start, state.complete, state.batches()) == (NOT_BEGUN, 0, [])
    assert leases_of(NOT_BEGUN, []) == []
    alone = Leases(5, max_deliveries=5).dump()  # as a broker that is alone wrote it
    assert ShareState.load(alone) == ShareState(0, NOT_BEGUN, 0, alone)
    for damaged in ([], [1], [2, 1, 1], [2, 1, 1, 1, 7]):
        with pytest.raises(ValueError, match=r"state|unpack"):
            ShareState.load(damaged)


@pytest.mark.parametrize(
    ("start", "batches"),
    [
        (-2, []),
        (5, [(6, 7, 0, 1)]),
        (5, [(5, 4, 0, 1)]),
        (5, [(5, 6, 0, 1), (6, 7, 0, 1)]),
        (5, [(5, 6, 0, 1), (8, 9, 0, 1)]),
        (5, [(5, 6, 0, -1)]),
        (5, [(5, 6, 2, 0), (7, 8, 0, 1)]),
        (5, [(5, 6, 2, 0)]),
        (0, [(at, at, 0, 1) for at in range(40_000)]),
    ],
)
def test_invalid_states(start: int, batches: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(Refused):
        leases_of(start, batches)


@pytest.mark.parametrize("lineage", [[1], [0, 1], [0, 1, 2, 3], [-1, 0, 0], [3, 1, 2], [0, 7, 5], [0, *range(1, 11)]])
def test_invalid_leader_epochs(lineage: list[int]) -> None:
    with pytest.raises(Refused, match="leader epochs"):
        leases_of(5, [], lineage)
    assert leases_of(5, [], [0, 1, 0, 2, 4]) == [3, 5, 0, 1, 0, 2, 4, 1, 5, 0]


def test_who_may_write_after_whom() -> None:
    before = ShareState(7, 3, 9)
    for after, fault in (
        (ShareState(6, 4, 10), Fault.FENCED_STATE_EPOCH),
        (ShareState(8, 4, 10), Fault.FENCED_STATE_EPOCH),
        (ShareState(7, 2, 10), Fault.FENCED_LEADER_EPOCH),
    ):
        with pytest.raises(Refused) as refused:
            after.check_after(before)
        assert refused.value.fault is fault
    for after, late in (
        (ShareState(7, 3, 10), False),
        (ShareState(7, 3, 9), True),
        (ShareState(7, 3, 8), True),
        (ShareState(7, 4, 1), False),
    ):
        after.check_after(before)
        assert after.is_late(before) == late
