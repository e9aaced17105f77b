"""What the audit log writes: repeats are counted, sources bounded, lines whole."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from krappy.core.security.audit import LONGEST, LONGEST_STATE, MANY, REPEAT_S, WINDOW_S, AuditTrail, line, state, who
from krappy.core.security.principal import Principal


def test_a_repeat_is_counted_and_told_with_the_next() -> None:
    trail = AuditTrail()
    assert trail.take({"n": 0}, "a", 0.0, ("denied", "ada")) == {"n": 0}
    assert [trail.take({"n": 1}, "a", at, ("denied", "ada")) for at in (1.0, 2.0)] == [None, None]
    assert trail.take({"n": 2}, "a", 2.0, ("denied", "bob")) == {"n": 2}
    assert trail.take({"n": 3}, "a", REPEAT_S, ("denied", "ada")) == {"n": 3, "repeated": 2}


def test_a_repeat_is_told_by_itself_after_a_while() -> None:
    trail = AuditTrail()
    for n in range(3):
        trail.take({"n": n}, "a", 0.0, ("once",))
    trail.take({"n": 9}, "a", 1.0, ("never again",))
    assert list(trail.due(REPEAT_S - 1)) == []
    assert list(trail.due(REPEAT_S + 1)) == [{"n": 0, "repeated": 2}]
    assert list(trail.due(REPEAT_S + 1)) == []


def test_a_source_has_so_many_lines() -> None:
    trail = AuditTrail()
    written = [trail.take({"n": n}, "a", 0.0, ("denied", n)) for n in range(MANY + 5)]
    assert written.count(None) == 5
    assert trail.take({"of": "another"}, "b", 0.0) == {"of": "another", "left_out": 5}
    assert trail.take({"later": 1}, "a", WINDOW_S) == {"later": 1}


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 9), st.floats(0, 30)), min_size=1, max_size=300
    )
)
def test_nothing_is_lost_and_memory_is_bounded(events: list[tuple[str, int | None, float]]) -> None:
    """Each event is in a line, or counted in one."""
    trail, now, told = AuditTrail(kept=4), 0.0, 0
    for source, repeats, pause in events:
        now += pause
        found = trail.take({}, source, now, None if repeats is None else (repeats,))
        told += 0 if found is None else 1 + found.get("repeated", 0) + found.get("left_out", 0)
        told += sum(each["repeated"] for each in trail.due(now))
        assert len(trail._repeated) <= 4
        assert len(trail._sources) <= 5
    told += sum(each["repeated"] for each in trail.due(now + 2 * REPEAT_S))
    assert told + trail._left_out == len(events)


@given(st.text() | st.just("\n\r\x00\x1b[2J\ud800" * 200), st.text())
def test_a_line_is_one_line_of_ascii(name: str, value: str) -> None:
    written = line("2026", "denied", {"resource": name, "before": state({name: value}), "gone": None})
    assert written.isascii()
    assert written.isprintable()
    read = json.loads(written)
    assert read["resource"].removesuffix("…") == name[:LONGEST].removesuffix("…")
    assert "gone" not in read
    assert len(written) < 12 * (LONGEST + LONGEST_STATE) + 200


def test_what_is_large_is_cut() -> None:
    assert len(line("t", "e", {"x": "y" * 10_000})) < LONGEST + 100
    assert len(state(["x" * 100_000])) == LONGEST_STATE
    assert state({"a": 1}) == {"a": 1}
    assert who(Principal(name="ada", host="1.2.3.4"))["principal"] == "User:ada"
