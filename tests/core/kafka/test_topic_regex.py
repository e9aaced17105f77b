"""`^` and `$` inside of a pattern: clients join several patterns to one, each in a group of its own."""

from __future__ import annotations

import pytest

from krappy.core.kafka.topic_regex import TopicRegex


@pytest.mark.parametrize(
    "pattern",
    ["^.*_17", "(^.*_17)", "(^orders_17)|(^.*_17$)", "^(?:.*(?:_17).*)$", "^(^other|.*)_17$", "(^|x)orders_17($|y)"],
)
def test_anchors_may_stand_in_groups(pattern: str) -> None:
    regex = TopicRegex(pattern)
    assert regex.matches("orders_17")
    assert not regex.matches("orders_18")
    assert not regex.matches("")


@pytest.mark.parametrize("pattern", ["a^b", "a$b", "(a$)b", "$a", "b^"])
def test_an_anchor_where_the_name_goes_on_matches_nothing(pattern: str) -> None:
    regex = TopicRegex(pattern)
    assert not any(map(regex.matches, ["ab", "a", "b", "a^b", "a$b", "$a", "b^", ""]))


def test_nothing_at_all_starts_and_ends_at_once() -> None:
    assert TopicRegex("^$").matches("")
    assert TopicRegex("$^").matches("")
    assert not TopicRegex("^$").matches("a")
