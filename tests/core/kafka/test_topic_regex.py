"""Topic patterns, and `^` and `$` inside of them: clients join several patterns to one, each in a group of its own."""

from __future__ import annotations

import re
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.name_regex import NameRegex


@pytest.mark.parametrize(
    "pattern",
    ["^.*_17", "(^.*_17)", "(^orders_17)|(^.*_17$)", "^(?:.*(?:_17).*)$", "^(^other|.*)_17$", "(^|x)orders_17($|y)"],
)
def test_anchors_may_stand_in_groups(pattern: str) -> None:
    regex = NameRegex(pattern)
    assert regex.matches("orders_17")
    assert not regex.matches("orders_18")
    assert not regex.matches("")


@pytest.mark.parametrize("pattern", ["a^b", "a$b", "(a$)b", "$a", "b^"])
def test_an_anchor_where_the_name_goes_on_matches_nothing(pattern: str) -> None:
    regex = NameRegex(pattern)
    assert not any(map(regex.matches, ["ab", "a", "b", "a^b", "a$b", "$a", "b^", ""]))


def test_nothing_at_all_starts_and_ends_at_once() -> None:
    assert NameRegex("^$").matches("")
    assert NameRegex("$^").matches("")
    assert not NameRegex("^$").matches("a")


NAMES = ["", "a", "b", "ab", "aab", "abab", "orders", "orders-1", "orders.eu", "a.b", "A", "x_9", "aaa", "-", "10"]
GOOD = [
    *("", "a", "a*", "a+b?", ".*", "^orders.*$", "orders-[0-9]", r"a\.b", "(a|b)+", "(?:ab){2}", "a{2,}", "[^a-z]+"),
    *(r"\w+", r"\d*", "a|", "|b", "[]a]", "[a-]", "[-a]+", "(a*)*", "(a*)*b", "orders[.-](eu|[0-9]+)", r"[\w.]+"),
    *("a+?", "((a))", "(|a)b", r"\W", r"[^\d]", "a{0}", "^$", "(?i)ORDERS", r"\borders\b.*"),
    *("(?P<where>orders).*", "a{99}", "[a&]+", r"[a\&\&\[]+", "a&&b", r"\[a&&b\]", "[]&]&&", r"[\]]&&[&]"),
]
BAD = ["(", ")", "a)", "[", "[a", "*", "+a", "a**", "a{3,2}", "a{1001}", "(?=a)", "(?!a)", r"(a)\1", "\\", "[b-a]"]
BAD += [
    "[a-z&&[^b]]",
    "[a-z&&b]",
    r"[\]&&]",
    "[]&&]",
    "[^]&&]",
    r"\Qx\E[a&&b]",
    "[[:alpha:]&&b]",
    "[a-d[x-z]]",
    "[[a]]",
]
BAD += ["x" * 4097, "((((a{50}){50}){50}){50})", r"(\pL{1,30}){30}"]


@pytest.mark.parametrize("pattern", GOOD)
def test_patterns_match_whole_names(pattern: str) -> None:
    """They match as Python's own expressions do, where the two have the same syntax."""
    regex = NameRegex(pattern)
    for name in NAMES:
        assert regex.matches(name) == (re.fullmatch(pattern, name, re.ASCII) is not None), name
        assert regex.matches(name) == regex.matches(name)


def test_what_re2_alone_has() -> None:
    assert NameRegex(r"\Qa.b\E").matches("a.b")
    assert not NameRegex(r"\Qa.b\E").matches("axb")
    assert NameRegex("[[:alpha:]]+").matches("orders")
    assert NameRegex(r"\pL+").matches("orders")
    assert NameRegex(r"a\z").matches("a")


@pytest.mark.parametrize("pattern", BAD)
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(Refused, match=r"can't be used: .") as refused:
        NameRegex(pattern)
    assert refused.value.fault is Fault.INVALID_REGULAR_EXPRESSION


@given(st.text(max_size=40) | st.text(alphabet="ab.*+?|()[]{}^$\\-,12", max_size=12), st.text(max_size=6))
def test_nothing_but_a_refusal_comes_of_any_pattern(pattern: str, name: str) -> None:
    with suppress(Refused):
        assert NameRegex(pattern).matches(name) in (True, False)


def test_no_pattern_is_slow() -> None:
    """A backtracking matcher would need 2^40 steps here."""
    assert not NameRegex("(a*)*(a|aa)+" * 5 + "b").matches("a" * 240)


def test_what_a_thousand_groups_match_is_not_looked_for() -> None:
    """That would take half a second for each name."""
    regex = NameRegex("(a?)" * 1000 + "b")
    began = time.process_time()
    assert not any(regex.matches("a" * size) for size in range(230, 250))
    assert regex.matches("a" * 200 + "b")
    assert time.process_time() - began < 2
