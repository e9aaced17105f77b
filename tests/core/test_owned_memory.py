"""What users share: one may have as much as is left for all others."""

from krappy.core.owned_memory import OwnedMemory


def test_one_owner_may_take_half_and_two_a_third_each() -> None:
    shared = OwnedMemory(12, fair=True)
    assert shared.has_room("ann", 6)
    assert not shared.has_room("ann", 7)
    shared.charge("ann", 4)
    assert shared.has_room("bob", 4)
    assert not shared.has_room("bob", 5)
    assert not shared.refuses_some
    shared.charge("bob", 4)
    assert shared.refuses_some
    assert not shared.has_room("ann", 1)
    assert not shared.has_room("bob", 1)
    assert shared.has_room("carl", 2)


def test_what_is_given_back_counts_for_nobody() -> None:
    shared = OwnedMemory(10, fair=True)
    shared.charge("ann", 5)
    shared.charge("bob", 2)
    assert shared.refuses_some
    shared.charge("ann", -5)
    assert not shared.refuses_some
    assert shared.total == 2
    assert shared.has_room("ann", 4)


def test_the_broker_may_take_all_and_so_may_everybody_where_all_are_equal() -> None:
    assert OwnedMemory(10, fair=True).has_room("", 10)
    assert not OwnedMemory(10, fair=True).has_room("", 11)
    assert OwnedMemory(10, fair=False).has_room("ann", 10)


def test_who_takes_no_more_is_never_refused() -> None:
    shared = OwnedMemory(10, fair=True)
    shared.charge("ann", 11)
    assert shared.has_room("ann", 0)
    assert shared.has_room("ann", -1)


def test_who_has_nothing_is_refused_while_the_broker_has_all_but_one() -> None:
    shared = OwnedMemory(10, fair=True)
    shared.charge("", 9)
    assert not shared.has_room("ann", 1)
    assert shared.refuses_some, "so she is told when something is given back"
    shared.charge("", -1)
    assert shared.has_room("ann", 1)
    assert not shared.refuses_some
