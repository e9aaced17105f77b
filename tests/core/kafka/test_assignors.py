"""Assignors: every partition is assigned once, evenly, and stays where it is as far as that allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from krappy.core.kafka.assignors import ASSIGNORS, Wants, by_range, uniform

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


@given(MEMBERS, SIZES)
def test_uniform_moves_the_fewest_where_all_subscribe_alike(
    members: dict[str, object], sizes: dict[bytes, int]
) -> None:
    """Every member keeps what it had, up to its share. Moves are saved by giving the larger shares to those who have
    more."""
    asked = {name: Wants(frozenset(sizes), w.holds, w.order) for name, w in wants(members).items()}  # type: ignore[arg-type]
    found = uniform(asked, sizes)
    had: dict[str, set[tuple[bytes, int]]] = {}
    seen: set[tuple[bytes, int]] = set()
    for name in sorted(asked):  # if two say that they have a partition, it belongs to the first one
        had[name] = {(topic, at) for topic, at in asked[name].holds if at < sizes.get(topic, 0)} - seen
        seen |= had[name]
    if asked:
        share, more = divmod(sum(sizes.values()), len(asked))
        saved = min(more, sum(len(each) > share for each in had.values()))
        assert sorted(map(len, found.values())) == [share] * (len(asked) - more) + [share + 1] * more
        kept = sum(len(found[name] & had[name]) for name in asked)
        assert kept == sum(min(len(each), share) for each in had.values()) + saved


@given(MEMBERS, SIZES)
def test_uniform_moves_to_a_newcomer_what_it_gets_and_nothing_else(
    members: dict[str, object], sizes: dict[bytes, int]
) -> None:
    """Where the newcomer could take any partition, and the others were level before."""
    asked = wants(members)  # type: ignore[arg-type]
    before = uniform(asked, sizes)
    settled = {name: Wants(each.topics, before[name], name) for name, each in asked.items()}
    after = uniform(settled | {"new": Wants(frozenset(sizes), frozenset(), "new")}, sizes)
    for name, had in before.items():
        assert after[name] <= had
    assert all(len(each) <= len(after["new"]) + 1 for each in after.values())


@given(MEMBERS, SIZES, st.sampled_from("abcdef"))
def test_uniform_lets_others_keep_what_they_have_when_nothing_has_to_level(
    members: dict[str, object], sizes: dict[bytes, int], leaving: str
) -> None:
    """The member that leaves was the only one to want what it had: the others are not concerned."""
    asked = wants(members)  # type: ignore[arg-type]
    own = {b"own-" + topic: size for topic, size in sizes.items()}
    asked[leaving] = Wants(frozenset(own), frozenset(), leaving)
    before = uniform(asked, sizes | own)
    rest = {name: Wants(each.topics, before[name], name) for name, each in asked.items() if name != leaving}
    after = uniform(rest, sizes | own)
    assert after == {name: before[name] for name in rest}


def test_uniform_gives_no_more_than_it_must_where_subscriptions_differ() -> None:
    """There are ten members, each with half of the topics; another one joins, and leaves again."""
    topics = [b"%d" % number for number in range(20)]
    sizes = dict.fromkeys(topics, 10)
    subscribed = {f"m{at}": frozenset(topics[(at * 3 + step) % 20] for step in range(10)) for at in range(10)}
    none: frozenset[tuple[bytes, int]] = frozenset()
    first = uniform({name: Wants(wanted, none, name) for name, wanted in subscribed.items()}, sizes)
    assert sorted(map(len, first.values())) == [20] * 10
    joined = {name: Wants(wanted, first[name], name) for name, wanted in subscribed.items()}
    second = uniform(joined | {"n": Wants(frozenset(topics[:10]), none, "n")}, sizes)
    assert len(second["n"]) == 18
    assert sum(len(first[name] - second[name]) for name in first) == 18
    left = {name: Wants(wanted, second[name], name) for name, wanted in subscribed.items()}
    third = uniform(left, sizes)
    assert sorted(map(len, third.values())) == [20] * 10
    assert all(second[name] <= third[name] for name in first)


@given(MEMBERS, SIZES)
def test_range_gives_runs(members: dict[str, object], sizes: dict[bytes, int]) -> None:
    asked = wants(members)  # type: ignore[arg-type]
    found = by_range(asked, sizes)
    for topic, size in sizes.items():
        takers = [name for name in sorted(asked) if topic in asked[name].topics]
        runs = [sorted(at for each, at in found[name] if each == topic) for name in takers]
        assert [at for run in runs for at in run] == [*range(size)] * bool(takers)
        lengths = [len(run) for run in runs]
        assert lengths == sorted(lengths, reverse=True)
        assert not lengths or lengths[0] - lengths[-1] <= 1


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
