"""Lines by address: whose turn it is, and who gives way."""

from __future__ import annotations

import pytest

from krappy.core.address_lines import AddressLines
from krappy.errors import Overloaded


def test_each_address_has_a_turn_before_one_has_its_second() -> None:
    lines = AddressLines[int]()
    for number, host in enumerate(("10.0.0.1", "10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "10.0.0.1")):
        lines.add(host, number)
    lines.drop("10.0.0.1", 1)
    lines.drop("10.0.0.1", 1)
    lines.drop("10.0.0.9", 1)
    assert len(lines) == 5
    assert [lines.pop() for _ in range(6)] == [0, 2, 3, 5, 4, None]


def test_the_oldest_of_the_address_with_most_is_found() -> None:
    lines = AddressLines[int]()
    for number, host in enumerate("abbcccb"):
        lines.add(host, number)
    assert [lines.pop_of_most() for _ in range(7)][:4] == [1, 3, 2, 4]
    assert not len(lines)


def test_there_is_a_bound_for_each_address() -> None:
    lines = AddressLines[int](most=1)
    lines.add("a", 1)
    lines.add("b", 2)
    with pytest.raises(Overloaded, match="1 of a wait"):
        lines.add("a", 3)
    assert [lines.pop(), lines.pop(), lines.pop()] == [1, 2, None]
