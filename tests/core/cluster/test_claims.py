"""What becomes of committed events that a leader lacks."""

from __future__ import annotations

import pytest

from krappy.core.cluster.claims import Claim, Cut, judge
from krappy.core.cluster.state import PartitionState, read_state, unclean, write_state

NONE = (-1, 0)


@pytest.mark.parametrize(
    ("last", "known", "cut", "committed", "claim", "leader", "verdict"),
    [
        (-1, (), 10, (5, 10), NONE, 10, Cut.GO),  # what goes was never committed
        (-1, (), 10, (5, 20), NONE, 10, Cut.AHEAD),
        (5, (), 10, (5, 20), NONE, 10, Cut.AHEAD),  # it was written after the unclean election
        (6, (), 10, (5, 20), NONE, 10, Cut.GO),
        (-1, (), 10, (5, 20), NONE, 20, Cut.ASIDE),  # the leader has committed as many others
        (-1, (5, 10), 10, (5, 20), NONE, 10, Cut.AHEAD),  # it has all that the last one had who took the lead
        (-1, (5, 11), 10, (6, 20), NONE, 10, Cut.ASIDE),  # and here it has not
        (-1, (), 10, (5, 10), (5, 20), 10, Cut.AHEAD),
        (-1, (), 10, (5, 10), (5, 20), 11, Cut.ASIDE),  # the leader has committed others in their place
        (-1, (6, 5), 10, (5, 10), (5, 20), 10, Cut.GO),  # somebody has taken the lead by a later log
        (-1, (5, 19), 10, (5, 10), (5, 20), 10, Cut.AHEAD),
        (6, (), 10, (5, 10), (5, 20), 10, Cut.GO),
    ],
)
def test_what_becomes_of_events_that_a_leader_lacks(
    last: int, known: tuple[int, ...], cut: int, committed: Claim, claim: Claim, leader: int, verdict: Cut
) -> None:
    state = PartitionState(isr=(1,), min_isr=2, unclean=last, claim=known)
    assert judge(state, 2, cut, committed, claim, leader) is verdict


@pytest.mark.parametrize(
    ("isr", "min_isr", "verdict"),
    [((1, 3), 2, Cut.ASIDE), ((1, 2, 3), 2, Cut.AHEAD), ((1,), 2, Cut.AHEAD), ((1,), 1, Cut.AHEAD)],
)
def test_a_leader_that_may_commit_others_meanwhile_stays(isr: tuple[int, ...], min_isr: int, verdict: Cut) -> None:
    assert judge(PartitionState(isr=isr, min_isr=min_isr), 2, 10, (5, 10), (5, 20), 10) is verdict


def test_an_unclean_election_ends_all_claims() -> None:
    state = unclean(PartitionState(leader_epoch=7, claim=(6, 5)), 2)
    assert (state.unclean, state.claim) == (8, ())
    kept = state._replace(claim=(9, 3))
    assert read_state(write_state(kept)) == kept
