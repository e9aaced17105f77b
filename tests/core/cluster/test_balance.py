"""Proposed moves give brokers the same number of replicas and leaders, over racks, with few copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.cluster.balance import ProposedMove, propose
from krappy.core.cluster.image import Image, PartitionImage, Registration, TopicImage
from krappy.errors import InvalidRequest

Placed = Sequence[tuple[int, ...]]


def image_of(racks: Mapping[int, str | None], placed: Placed, draining: Sequence[int] = ()) -> Image:
    brokers = {id: Registration(id, 1, {}, rack, id in draining) for id, rack in racks.items()}
    return Image(brokers, topics={"t": TopicImage("t", bytes(16), tuple(map(PartitionImage, placed)), identified=True)})


def after(placed: Placed, moves: Sequence[ProposedMove]) -> list[tuple[int, ...]]:
    found = list(placed)
    for move in moves:
        assert found[move.partition] == move.before
        found[move.partition] = move.after
    return found


def held(placed: Placed) -> Counter[int]:
    return Counter(broker for replicas in placed for broker in replicas)


NO_RACKS = {1: None, 2: None, 3: None}


def test_what_is_even_stays() -> None:
    assert propose(image_of(NO_RACKS, [(1, 2), (2, 3), (3, 1)])) == []


def test_a_new_broker_gets_its_part() -> None:
    placed = [(1, 2)] * 6
    moves = propose(image_of(NO_RACKS, placed))
    assert sum(len(move.copies) for move in moves) == 4
    found = after(placed, moves)
    assert held(found) == {1: 4, 2: 4, 3: 4}
    assert Counter(replicas[0] for replicas in found) == {1: 2, 2: 2, 3: 2}


def test_leaders_are_only_put_into_another_order() -> None:
    placed = [(1, 2, 3)] * 6
    moves = propose(image_of(NO_RACKS, placed))
    assert not any(move.copies for move in moves)
    assert Counter(replicas[0] for replicas in after(placed, moves)) == {1: 2, 2: 2, 3: 2}


def test_leaders_are_handed_on_over_others() -> None:
    """Broker 1 shares no partition with 3, so 2 passes one on."""
    placed = [(1, 2), (1, 2), (1, 2), (2, 3), (2, 1), (3, 2)]
    moves = propose(image_of(NO_RACKS, placed))
    assert Counter(replicas[0] for replicas in after(placed, moves)) == {1: 2, 2: 2, 3: 2}


def test_replicas_are_spread_over_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    placed = [(1, 2), (2, 1), (3, 4), (4, 3)]
    found = after(placed, propose(image_of(racks, placed)))
    assert all(len({racks[each] for each in replicas}) == 2 for replicas in found)
    assert [replicas[0] for replicas in found] == [1, 2, 3, 4]
    assert held(found) == {1: 2, 2: 2, 3: 2, 4: 2}


def test_racks_come_before_counts() -> None:
    racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    placed = [(1, 4), (2, 4), (3, 4), (1, 4)]
    assert held(after(placed, propose(image_of(racks, placed))))[4] == 4


def test_a_broker_is_emptied() -> None:
    placed = [(1, 2), (2, 3), (3, 1), (3, 2)]
    found = after(placed, propose(image_of({**NO_RACKS, 4: None}, placed), [3]))
    assert 3 not in held(found)
    assert max(held(found).values()) - min(held(found).values()) <= 1
    with pytest.raises(InvalidRequest, match="t-0 has 3 replicas, and without 3 there are only 2 brokers for them"):
        propose(image_of(NO_RACKS, [(1, 2, 3)]), [3])


def test_a_broker_that_is_away_keeps_what_it_has() -> None:
    placed = [(1, 9), (2, 9), (9, 1)]
    assert held(after(placed, propose(image_of(NO_RACKS, placed))))[9] == 3
    assert held(after(placed, propose(image_of(NO_RACKS, placed), [9])))[9] == 0


def test_what_is_on_its_way_stays() -> None:
    moving = PartitionImage((3, 1, 2), adding=(3,), removing=(2,))
    image = Image(
        image_of(NO_RACKS, []).brokers,
        topics={"t": TopicImage("t", bytes(16), (moving, *[PartitionImage((1, 2))] * 5))},
    )
    moves = propose(image)
    assert all(move.partition != 0 for move in moves)
    assert held(after([(3, 1), *[(1, 2)] * 5], moves)) == {1: 4, 2: 4, 3: 4}


@given(st.data())
def test_any_cluster(data: st.DataObject) -> None:
    """Each partition has as many replicas as before, each on another broker, and never on fewer racks. Where there are
    no racks, brokers differ by one replica at most. A second proposal is empty."""
    count = data.draw(st.integers(1, 6))
    with_racks = data.draw(st.booleans())
    racks = {id: data.draw(st.sampled_from("abc")) if with_racks else None for id in range(1, count + 1)}
    known = st.lists(st.integers(1, count + 1), min_size=1, max_size=count, unique=True)  # broker count + 1 is away
    placed = [tuple(each) for each in data.draw(st.lists(known, max_size=20))]
    image = image_of(racks, placed)
    moves = propose(image)
    found = after(placed, moves)
    for before, now in zip(placed, found, strict=True):
        assert len(set(now)) == len(now) == len(before)
        assert len({racks.get(each) for each in now}) >= len({racks.get(each) for each in before})
        assert (count + 1 in before) == (count + 1 in now)
    if not with_racks:
        counts = [held(found)[id] for id in racks]
        assert max(counts) - min(counts) <= 1
    assert propose(image_of(racks, found)) == []
