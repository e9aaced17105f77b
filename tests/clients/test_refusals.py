"""What a client does after a broker has answered with an error."""

from __future__ import annotations

import pytest

from krappy.clients.refusals import repeats
from krappy.errors import (
    ConnectionLost,
    InvalidRequest,
    KrappyError,
    NotCoordinator,
    NotLeader,
    Overloaded,
    RequestTimeout,
)

CUT_OFF, UNSURE = ConnectionLost("no ZooKeeper", sent=False), ConnectionLost("no ZooKeeper", sent=True)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize(
    ("error", "repeated"),
    [
        (InvalidRequest("no"), False),
        (NotLeader("2 leads", leader=2), False),
        (NotLeader("others lead some", partitions=[1]), False),
        (NotCoordinator("2 coordinates"), False),
        (NotLeader("nobody leads"), True),
        (Overloaded("not now"), True),
    ],
    ids=["final", "another leader", "other leaders", "another coordinator", "no leader", "for now"],
)
def test_what_a_broker_has_not_done_and_others_would_not_do_either(
    error: KrappyError, repeated: bool, again: bool, here: bool, others: bool
) -> None:
    assert repeats(error, again=again, here=here, others=others) == repeated


@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_what_a_broker_may_have_done_is_repeated_if_that_does_no_harm(here: bool, others: bool) -> None:
    for error in (UNSURE, RequestTimeout("not in time")):
        assert not repeats(error, again=False, here=here, others=others)
    assert repeats(RequestTimeout("not in time"), again=True, here=here, others=others)
    assert repeats(UNSURE, again=True, here=here, others=others) == (not here)


@pytest.mark.parametrize("again", [False, True])
def test_a_broker_that_is_cut_off_is_asked_again_if_no_other_is(again: bool) -> None:
    assert repeats(CUT_OFF, again=again, here=False, others=False)
    assert not repeats(CUT_OFF, again=again, here=False, others=True)
    assert not repeats(CUT_OFF, again=again, here=True, others=False)
