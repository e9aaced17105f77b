"""What is written for a replica whose log is in trouble."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.core.cluster.healing import Deed, LogTrouble, lead_anew, next_step, take_over
from krappy.core.cluster.image import Image, PartitionImage, Registration, TopicImage
from krappy.core.cluster.state import NOBODY, PartitionState, read_state
from krappy.core.cluster.tree import Put

REFUSES, DAMAGED, LOST, _ = LogTrouble
LED = PartitionState(leader=1, leader_epoch=6, leader_inc=4, isr=(1, 2, 3), min_isr=2)


def step_of(
    state: PartitionState,
    broker: int,
    trouble: LogTrouble,
    *,
    empties: bool = True,
    waits: bool = False,
    there: tuple[int, ...] = (1, 2, 3),
    damaged: tuple[int, ...] = (),
    again: bool = True,
) -> tuple[Deed, PartitionState] | None:
    topic = TopicImage("t", bytes(16), (PartitionImage((1, 2, 3), state, 0),), identified=True)
    troubles = {each: {"t-0": str(DAMAGED)} if each in damaged else {} for each in there}
    image = Image({each: Registration(each, 4, {}, spoiled=troubles[each]) for each in there}, topics={"t": topic})
    step = next_step(image, topic, 0, broker, trouble, empties=empties, waits=waits, again=again)
    if step is None:
        return None
    put = step.operations[-1]
    assert isinstance(put, Put)
    return step.deed, read_state(put.data)


@pytest.mark.parametrize("trouble", [REFUSES, DAMAGED])
def test_a_leader_hands_over_and_stays_in_the_isr_so_long(trouble: LogTrouble) -> None:
    assert step_of(LED, 1, trouble) == (Deed.HAND_OVER, LED._replace(leader=2, leader_epoch=7))


def test_a_damaged_follower_is_made_anew_in_a_new_epoch() -> None:
    wanted = LED._replace(isr=(1, 3), emptied=(2,), leader_epoch=7)
    assert step_of(LED, 2, DAMAGED) == (Deed.BEGIN_ANEW, wanted)
    assert step_of(wanted, 2, DAMAGED) == (Deed.BEGIN_ANEW, wanted._replace(leader_epoch=8))
    # It was made anew not long ago: then it only leaves.
    assert step_of(LED, 2, DAMAGED, empties=False) == (Deed.LEAVE, LED._replace(isr=(1, 3)))
    assert step_of(wanted, 2, DAMAGED, empties=False) is None


def test_a_damaged_follower_is_no_candidate_where_the_others_are_too_few() -> None:
    few = LED._replace(isr=(1, 2))
    assert step_of(few, 2, DAMAGED, waits=True) is None
    assert step_of(few, 2, DAMAGED) == (Deed.BEGIN_ANEW, few._replace(isr=(1,), emptied=(2,), leader_epoch=7))
    out = few._replace(isr=(1,), last_known_elr=(2,))
    assert step_of(few, 2, DAMAGED, empties=False) == (Deed.LEAVE, out)


def test_a_damaged_leader_prefers_a_whole_successor() -> None:
    for again in (True, False):
        to_third = LED._replace(leader=3, leader_epoch=7)
        assert step_of(LED, 1, DAMAGED, damaged=(1, 2), again=again) == (Deed.HAND_OVER, to_third)
    two = LED._replace(isr=(1, 2))
    assert step_of(two, 1, DAMAGED, damaged=(1, 2)) == (Deed.HAND_OVER, two._replace(leader=2, leader_epoch=7))
    assert step_of(two, 1, DAMAGED, damaged=(1, 2), again=False) is None
    assert step_of(LED._replace(isr=(1,), elr=(3,)), 1, DAMAGED, again=False) is None


def test_nobody_is_made_anew_from_a_damaged_leader() -> None:
    for state in (LED, LED._replace(isr=(1, 2)), LED._replace(isr=(1, 3))):
        assert step_of(state, 2, DAMAGED, damaged=(1, 2)) is None
    assert step_of(LED, 2, REFUSES, damaged=(1, 2)) == (Deed.LEAVE, LED._replace(isr=(1, 3)))


def test_a_follower_whose_disk_refuses_stays_a_candidate() -> None:
    few = LED._replace(isr=(1, 2))
    assert step_of(few, 2, REFUSES, waits=True) == (Deed.LEAVE, few._replace(isr=(1,), elr=(2,)))
    assert step_of(few._replace(isr=(1,), elr=(2,)), 2, REFUSES) is None


@pytest.mark.parametrize("trouble", [REFUSES, DAMAGED])
@pytest.mark.parametrize(
    ("state", "broker", "there"),
    [
        (LED._replace(isr=(1,)), 1, (1, 2, 3)),  # it is the only one in the ISR
        (LED, 1, (1,)),  # no other broker is there
        (LED._replace(leader=NOBODY, leader_inc=-1), 2, (1, 2, 3)),
        (LED, 2, (2, 3)),  # the leader is away, so this one may have to lead
        (LED._replace(leader_inc=3), 2, (1, 2, 3)),  # the leader was started again
    ],
)
def test_nothing_is_written_while_others_may_need_it(
    trouble: LogTrouble, state: PartitionState, broker: int, there: tuple[int, ...]
) -> None:
    assert step_of(state, broker, trouble, there=there) is None


def test_a_damaged_leader_gives_the_lead_to_one_of_the_elr() -> None:
    """And it stays in the ISR: it may hold a read lease, so nothing may be acknowledged before it follows."""
    alone = LED._replace(isr=(1,), elr=(3,))
    wanted = alone._replace(leader=3, leader_inc=4, leader_epoch=7, isr=(1, 3), elr=())
    assert step_of(alone, 1, DAMAGED) == (Deed.HAND_OVER, wanted)
    assert step_of(alone, 1, REFUSES) is None
    assert step_of(alone, 1, DAMAGED, there=(1, 2)) is None


@pytest.mark.parametrize("state", [LED, LED._replace(isr=(1,), elr=()), LED._replace(leader=NOBODY, elr=(1,), isr=())])
def test_who_has_lost_events_is_no_candidate_whoever_else_is(state: PartitionState) -> None:
    found = step_of(state, 1, LOST, there=(1,))
    assert found is not None
    assert found[0] is Deed.LEAVE
    assert 1 not in (*found[1].isr, *found[1].elr, found[1].leader)
    assert found[1].leader_epoch == state.leader_epoch + 1  # so what its leader hears late does not bring it back


def test_a_leader_that_opens_its_log_anew_leads_in_a_new_epoch() -> None:
    def led(**changed: Any) -> list[Any]:
        state = LED._replace(**changed)
        return lead_anew(TopicImage("t", bytes(16), (PartitionImage((1, 2, 3), state, 0),), identified=True), 0, 1)

    [*_, put] = led()
    assert read_state(put.data) == LED._replace(leader_epoch=7)
    assert led(leader=2) == []


def test_a_replica_with_events_that_its_leader_lacks_takes_the_lead_alone() -> None:
    def state_after(broker: int, state: PartitionState, there: tuple[int, ...] = (1, 2)) -> PartitionState | None:
        topic = TopicImage("t", bytes(16), (PartitionImage((1, 2, 3), state, 0),), identified=True)
        image = Image({each: Registration(each, 4, {}) for each in there}, topics={"t": topic})
        operations = take_over(image, topic, 0, broker, (5, 20), state)
        assert not take_over(image, topic, 0, broker, (5, 20), state._replace(isr=()))
        if not operations:
            return None
        put = operations[-1]
        assert isinstance(put, Put)
        return read_state(put.data)

    led = LED._replace(isr=(1,), elr=(2, 3), claim=(4, 30))
    after = led._replace(leader=2, leader_epoch=7, isr=(2,), elr=(), claim=(5, 20))
    assert state_after(2, led) == after
    assert state_after(2, led._replace(claim=(6, 1))) == after._replace(claim=(6, 1))
    assert [state_after(*each) for each in ((1, led), (3, led), (2, led._replace(leader=NOBODY)))] == [None] * 3
    assert state_after(4, led, (1, 2, 4)) is None
