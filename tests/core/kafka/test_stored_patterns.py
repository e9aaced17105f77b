"""Patterns of members that were stored, and what members share of what they match."""

from __future__ import annotations

import pytest

from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern import KnownTopic, ModernGroup, ModernRules
from krappy.core.kafka.modern_member import JOINING, Beat
from krappy.core.kafka.name_regex import topic_regex

TOPICS = {"x1": KnownTopic(b"1" * 16, 2)}


def joining(member: str, pattern: str) -> Beat:
    return Beat(member, JOINING, rebalance_ms=1000, regex=pattern)


def test_a_member_whose_pattern_is_refused_by_now_is_left_out() -> None:
    """The others go on, and get what it had. It is removed from the store, and is told why when it joins again."""
    group = ModernGroup(ModernRules())
    for who in ("one", "two"):
        group.beat(0, joining(who, "x.*"), TOPICS)
    stored = [each.dump() for each in group.members.values()]
    stored[1][stored[1].index("x.*")] = "("
    group = ModernGroup.load(group.dump(), stored, ModernRules(), 0)
    assert list(group.members) == ["one"]
    assert group.dirty == {"two"}
    assert group.dump_member("two") is None
    group.beat(1, Beat("one", group.members["one"].epoch), TOPICS)
    assert group.members["one"].assigned == group.target["one"] == {(b"1" * 16, 0), (b"1" * 16, 1)}
    with pytest.raises(Refused) as refused:
        group.beat(2, joining("two", "("), TOPICS)
    assert refused.value.fault is Fault.INVALID_REGULAR_EXPRESSION
    assert list(group.members) == ["one"]


def test_names_of_topics_that_are_gone_are_forgotten() -> None:
    regex = topic_regex("x[0-9]*")
    names = [f"x{number}" for number in range(100)]
    assert regex.is_behind(names)
    assert sum(1 for _ in regex.match(names)) == 101
    assert topic_regex("x[0-9]*") is regex
    assert not regex.is_behind(names)
    before, few = regex.size, names[:3]
    assert regex.is_behind(few)
    assert sum(1 for _ in regex.match(few)) == 1
    assert regex.size == before * 3 / 100
