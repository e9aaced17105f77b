"""Assignors: everything is assigned once, evenly, and stays where it is as far as that allows. And topic patterns."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.kafka.assignors import ASSIGNORS, Wants, by_range, uniform
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.topic_regex import TopicRegex

SIZES = st.dictionaries(st.sampled_from([b"t", b"u", b"v"]), st.integers(0, 9))
MEMBERS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(
        lambda topics, holds: (frozenset(topics), frozenset(holds)),
        st.sets(st.sampled_from([b"t", b"u", b"v"])),
        st.sets(st.tuples(st.sampled_from([b"t", b"u", b"v"]), st.integers(0, 9))),
    ),
)


def wants(members: dict[str, tuple[frozenset[bytes], frozenset[tuple[bytes, int]]]]) -> dict[str, Wants]:
    return {name: Wants(topics, holds, name) for name, (topics, holds) in members.items()}


@given(MEMBERS, SIZES)
def test_everything_is_assigned_once_to_who_wants_it(members: dict[str, object], sizes: dict[bytes, int]) -> None:
    asked = wants(members)  # type: ignore[arg-type]
    expected = sorted(
        (topic, at)
        for topic, size in sizes.items()
        for at in range(size)
        if any(topic in w.topics for w in asked.values())
    )
    for assign in ASSIGNORS.values():
        found = assign(asked, sizes)
        assert sorted(partition for each in found.values() for partition in each) == expected
        assert all(topic in asked[name].topics for name, each in found.items() for topic, _ in each)
        assert found == assign(asked, sizes)


@given(MEMBERS, SIZES)
def test_uniform_is_even_and_stays(members: dict[str, object], sizes: dict[bytes, int]) -> None:
    asked = wants(members)  # type: ignore[arg-type]
    found = uniform(asked, sizes)
    for rich, has in found.items():
        for poor, other in found.items():
            if len(has) > len(other) + 1:
                assert not any(topic in asked[poor].topics for topic, _ in has), (rich, poor)
    again = uniform({name: Wants(w.topics, found[name], w.order) for name, w in asked.items()}, sizes)
    assert again == found


def test_uniform_moves_no_more_than_it_must() -> None:
    everything = frozenset((b"t", at) for at in range(12))
    three = {"a": everything, "b": frozenset(), "c": frozenset()}
    found = uniform({name: Wants(frozenset([b"t"]), holds, name) for name, holds in three.items()}, {b"t": 12})
    assert {name: len(each) for name, each in found.items()} == {"a": 4, "b": 4, "c": 4}
    two = uniform({name: Wants(frozenset([b"t"]), found[name], name) for name in "ab"}, {b"t": 12})
    assert two["a"] > found["a"]
    assert two["b"] > found["b"]


def test_range_puts_alike_partitions_together() -> None:
    both = frozenset([b"t", b"u"])
    found = by_range({name: Wants(both, frozenset(), name) for name in "ab"}, {b"t": 3, b"u": 3})
    assert found["a"] == {(b"t", 0), (b"t", 1), (b"u", 0), (b"u", 1)}
    assert found["b"] == {(b"t", 2), (b"u", 2)}


NAMES = ["", "a", "b", "ab", "aab", "abab", "orders", "orders-1", "orders.eu", "a.b", "A", "x_9", "aaa", "-", "10"]
GOOD = [
    *("", "a", "a*", "a+b?", ".*", "^orders.*$", "orders-[0-9]", r"a\.b", "(a|b)+", "(?:ab){2}", "a{2,}", "[^a-z]+"),
    *(
        r"\w+",
        r"\d*",
        "a|",
        "|b",
        "[]a]",
        "[a-]",
        "[-a]+",
        "(a*)*",
        "(a*)*b",
        "orders[.-](eu|[0-9]+)",
        r"[\w.]+",
        "a+?",
    ),
    *("((a))", "(|a)b", r"\W", r"[^\d]", "a{0}", "^$"),
]
BAD = [
    "(",
    ")",
    "a)",
    "[",
    "[a",
    "*",
    "+a",
    "a**",
    "a{",
    "a{x}",
    "a{3,2}",
    "a{99}",
    "(?=a)",
    "(?i)a",
    r"\b",
    "^*",
    "(a$+)",
    "\\",
]
BAD += ["[b-a]", "x" * 501, "((((a{50}){50}){50}){50})", "(" * 60 + ")" * 60]


@pytest.mark.parametrize("pattern", GOOD)
def test_patterns_match_whole_names_as_python_s_do(pattern: str) -> None:
    regex = TopicRegex(pattern)
    for name in NAMES:
        assert regex.matches(name) == (re.fullmatch(pattern, name, re.ASCII) is not None), name
        assert regex.matches(name) == regex.matches(name)


@pytest.mark.parametrize("pattern", BAD)
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(Refused) as refused:
        TopicRegex(pattern)
    assert refused.value.fault is Fault.INVALID_REGULAR_EXPRESSION


@given(st.text(alphabet="ab.*+?|()[]{}^$\\-,12", max_size=12), st.text(alphabet="ab12.-", max_size=6))
def test_any_pattern_matches_as_python_s_or_is_refused(pattern: str, name: str) -> None:
    try:
        found = TopicRegex(pattern).matches(name)
    except Refused:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of Python about sets in sets
        assert found == (re.fullmatch(pattern, name, re.ASCII) is not None)


def test_no_pattern_is_slow() -> None:
    """A backtracking matcher would need 2^40 steps here."""
    assert not TopicRegex("(a*)*(a|aa)+" * 5 + "b").matches("a" * 240)
