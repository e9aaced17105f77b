"""Positions in a checkpoint, and how far a micro-batch goes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.spark.stream_offsets import Patience, Position, behind, decoded, encoded, initial, lag, limited
from krappy.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b-c.d", 0)
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 20))


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (Position({A1: 7, A0: 12, B0: 0}), '{"a": {"0": 12, "1": 7}, "b-c.d": {"0": 0}}'),
        (Position({A0: 12}, first={A0: 9}), '{"a": {"0": 12}, "$first": {"offsets": {"a": {"0": 9}}}}'),
        (Position({A0: 1}, snapshots={"a": "0f"}), '{"a": {"0": 1}, "$first": {"snapshots": {"a": "0f"}}}'),
        (Position({}), "{}"),
    ],
)
def test_a_position_has_one_text(position: Position, text: str) -> None:
    assert json.dumps(encoded(position)) == text
    assert decoded(json.loads(text)) == position


def test_an_initial_offset_stands_for_no_offsets_yet() -> None:
    assert initial("latest") == {"$start": "latest"}
    assert not decoded(initial("latest")).begun
    assert decoded({}).begun


@pytest.mark.parametrize("text", ['{"logOffset": 3}', '{"a": {"x": 1}}', '{"a": {"0": null}}', '{"$first": 4}'])
def test_a_position_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the checkpointLocation of another query"):
        decoded(json.loads(text))


def test_a_limit_is_shared_in_proportion() -> None:
    assert limited({A0: 0, A1: 100}, {A0: 300, A1: 200}, 40) == {A0: 30, A1: 110}
    assert limited({A0: 0, A1: 100}, {A0: 300, A1: 200}, 400) == {A0: 300, A1: 200}
    assert limited({A0: 5}, {A0: 6, A1: 1_000_000}, 10) == {A0: 6, A1: 9}, "a small one is not starved"
    assert limited({}, {A0: 10, A1: 10, B0: 10}, 1) == {A0: 1, A1: 1, B0: 1}, "each gets one at least"
    assert limited({A0: 9, A1: 0}, {A0: 4, A1: 100}, 10) == {A0: 4, A1: 10}, "what was made anew lags nothing"


@given(st.dictionaries(PARTITIONS, st.tuples(st.integers(0, 10**6), st.integers(0, 10**9))), st.integers(1, 10**7))
def test_limits_hold(lags: dict[TopicPartition, tuple[int, int]], most: int) -> None:
    begin = {each: start for each, (start, _) in lags.items()}
    ends = {each: start + size for each, (start, size) in lags.items()}
    got = limited(begin, ends, most)
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


def test_lag_is_read_from_a_querys_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.2.0")
    source = {
        "description": "krappy",
        "startOffset": '{"$start": "latest"}',
        "endOffset": '{"a": {"0": 12, "1": 7}, "$first": {"offsets": {"a": {"0": 0, "1": 0}}}}',
        "latestOffset": '{"a": {"0": 20, "1": 7, "2": 3}}',
    }
    other = {"description": "rate", "endOffset": "4", "latestOffset": "null"}
    assert lag({"sources": [source, other]}) == {"a": {"0": 8, "1": 0, "2": 3}}
    assert lag(source) == {"a": {"0": 8, "1": 0, "2": 3}}
    assert lag({"sources": [{**source, "latestOffset": None}]}) == {}
    assert lag(None) == {}, "a query that has just begun"
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    assert lag({"sources": [{**source, "latestOffset": source["endOffset"]}]}) == {}, "it would be 0, whatever waits"
