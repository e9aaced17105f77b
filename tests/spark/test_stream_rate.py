"""How far a micro-batch goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from krappy.spark.stream_rate import Patience, behind, rationed
from krappy.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b-c.d", 0)
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 20))


def test_a_limit_is_shared_in_proportion() -> None:
    assert rationed({A0: 0, A1: 100}, {A0: 300, A1: 200}, 40) == {A0: 30, A1: 110}
    assert rationed({A0: 0, A1: 100}, {A0: 300, A1: 200}, 400) == {A0: 300, A1: 200}
    assert rationed({A0: 5}, {A0: 6, A1: 1_000_000}, 10) == {A0: 6, A1: 9}, "a small one is not starved"
    assert rationed({}, {A0: 10, A1: 10, B0: 10}, 1) == {A0: 1, A1: 1, B0: 1}, "each gets one at least"
    assert rationed({A0: 9, A1: 0}, {A0: 4, A1: 100}, 10) == {A0: 4, A1: 10}, "what was made anew lags nothing"


@given(st.dictionaries(PARTITIONS, st.tuples(st.integers(0, 10**6), st.integers(0, 10**9))), st.integers(1, 10**7))
def test_limits_hold(lags: dict[TopicPartition, tuple[int, int]], most: int) -> None:
    begin = {each: start for each, (start, _) in lags.items()}
    ends = {each: start + size for each, (start, size) in lags.items()}
    got = rationed(begin, ends, most)
    assert got.keys() == ends.keys()
    assert all(begin[each] <= got[each] <= ends[each] for each in got)
    late, taken = behind(begin, ends), behind(begin, got)
    assert taken.keys() == late.keys(), "all that lag get on"
    assert sum(taken.values()) == min(sum(late.values()), max(most, len(late)))


def test_a_batch_waits_for_enough_but_not_forever() -> None:
    patience = Patience(60.0)
    assert not patience.waits(100, 1, now=1000.0), "the first batch never waits"
    assert patience.waits(100, 99, now=1001.0)
    assert patience.waits(100, 99, now=1059.9)
    assert not patience.waits(100, 99, now=1060.0)
    assert patience.waits(100, 99, now=1060.1), "and the time begins again"
    assert not patience.waits(100, 100, now=1060.2)
    assert not patience.waits(None, 1, now=1060.3)
