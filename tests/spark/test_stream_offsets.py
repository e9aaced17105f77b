"""Positions in a checkpoint, and what lies between two of them."""

from __future__ import annotations

import json

import pytest

from krappy.spark.stream_offsets import StreamPosition, begins, decoded, encoded, initial, lag, losses
from krappy.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b-c.d", 0)


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (StreamPosition({A1: 7, A0: 12, B0: 0}), '{"a": {"0": 12, "1": 7}, "b-c.d": {"0": 0}}'),
        (StreamPosition({A0: 12}, first={A0: 9}), '{"a": {"0": 12}, "$first": {"offsets": {"a": {"0": 9}}}}'),
        (StreamPosition({A0: 1}, snapshots={"a": "0f"}), '{"a": {"0": 1}, "$first": {"snapshots": {"a": "0f"}}}'),
        (
            StreamPosition({A0: 1, B0: 2}, {"b-c.d": "y", "a": "x"}),
            '{"a": {"0": 1}, "b-c.d": {"0": 2}, "$ids": {"a": "x", "b-c.d": "y"}}',
        ),
        (StreamPosition({}), "{}"),
    ],
)
def test_a_position_has_one_text(position: StreamPosition, text: str) -> None:
    assert json.dumps(encoded(position)) == text
    assert decoded(json.loads(text)) == position


def test_an_initial_offset_stands_for_no_offsets_yet() -> None:
    assert initial("latest") == {"$start": "latest"}
    assert not decoded(initial("latest")).begun
    assert decoded({}).begun


@pytest.mark.parametrize(
    "text", ['{"logOffset": 3}', '{"a": {"x": 1}}', '{"a": {"0": null}}', '{"$first": 4}', '{"$ids": 4}']
)
def test_a_position_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the checkpointLocation of another query"):
        decoded(json.loads(text))


@pytest.mark.parametrize(
    ("before", "after", "now", "begin", "lost"),
    [
        ("x", "x", 9, 7, ""),
        ("x", "x", 5, 5, "ends at 5 now: the broker has lost events of it"),
        ("x", "y", 5, 0, "its topic was deleted and made anew since"),
        ("x", "y", 7, 0, "its topic was deleted and made anew since"),
        ("x", "y", 9, 0, "its topic was deleted and made anew since"),
        (None, "y", 9, 7, ""),
        (None, "y", 5, 0, "ends at 5 now: its topic was deleted and made anew since"),
        ("x", None, None, None, "is gone"),
    ],
)
def test_where_a_stream_goes_on_and_what_it_has_lost(
    before: str | None, after: str | None, now: int | None, begin: int | None, lost: str
) -> None:
    """Ids tell a topic from another topic of its name, whatever offsets that one has; an old position has no ids."""
    at = StreamPosition({A0: 7}, {} if before is None else {"a": before})
    to = StreamPosition({} if now is None else {A0: now, B0: 3}, {} if after is None else {"a": after, "b-c.d": "z"})
    assert begins(at, to) == ({} if begin is None else {A0: begin, B0: 0})
    told = list(losses(at, to, lambda each: True))
    assert len(told) == bool(lost)
    assert all(each.startswith("a-0 was read up to offset 7, and ") and lost in each for each in told)
    assert list(losses(at, to, lambda each: False)) == ["a-0 was read up to offset 7, and is no topic of this query's"]


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
