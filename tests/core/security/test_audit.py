"""What the audit log writes: changes always, repeats counted, sources bounded, lines whole."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from krappy.core.security.audit import (
    FAILED,
    LONGEST,
    LONGEST_BYTES,
    LONGEST_STATE,
    REPEAT_S,
    USUAL,
    AuditTrail,
    line,
    state,
    who,
)
from krappy.core.security.principal import Principal

ADA, BOB = ("ada", "10.0.0.1"), ("bob", "10.0.0.1")


def test_a_repeat_is_counted_and_told_with_the_next() -> None:
    trail = AuditTrail()
    assert trail.take({"n": 0}, ADA, 0.0, ("denied", "ada")) == {"n": 0}
    assert [trail.take({"n": 1}, ADA, at, ("denied", "ada")) for at in (1.0, 2.0)] == [None, None]
    assert trail.take({"n": 2}, ADA, 2.0, ("denied", "bob")) == {"n": 2}
    assert trail.take({"n": 3}, ADA, REPEAT_S, ("denied", "ada")) == {"n": 3, "repeated": 2}


def test_a_repeat_is_told_by_itself_after_a_while() -> None:
    """The last one is: nobody moves a group unseen, by doing it once more soon after."""
    trail = AuditTrail()
    for n in range(3):
        trail.take({"n": n}, ADA, 0.0, ("once",))
    trail.take({"n": 9}, ADA, 1.0, ("never again",))
    assert list(trail.due(REPEAT_S - 1)) == []
    assert list(trail.due(REPEAT_S + 1)) == [{"n": 2, "repeated": 2}]
    assert list(trail.due(REPEAT_S + 1)) == []


def test_a_source_has_so_many_lines() -> None:
    trail = AuditTrail()
    written = [trail.take({"n": n}, ADA, 0.0, ("denied", n)) for n in range(USUAL.most + 5)]
    assert written.count(None) == 5
    assert trail.take({"of": "another"}, BOB, 0.0) == {"of": "another", "left_out": 5}
    assert trail.take({"too soon": 1}, ADA, USUAL.seconds / 2) is None
    assert trail.take({"later": 1}, ADA, USUAL.seconds) == {"later": 1, "left_out": 1}
    assert trail.take({"too soon": 1}, ADA, USUAL.seconds) is None


def test_a_change_is_told_whatever_else_comes() -> None:
    trail = AuditTrail(kept=4)
    for n in range(1000):
        trail.take({}, ADA, 0.0, ("denied", n))
        assert trail.take({"changed": n}, None, 0.0) is not None
    assert trail.take({}, BOB, 0.0) is not None


def test_repeats_are_no_way_around_the_pace() -> None:
    """There are 10,000 denials, each twice: what is told a minute later is bounded, too."""
    trail = AuditTrail()
    for _ in range(2):
        for n in range(5000):
            trail.take({}, ADA, 0.0, ("denied", n))
    told = list(trail.due(REPEAT_S))
    assert len(told) <= USUAL.most + REPEAT_S / USUAL.seconds
    [last] = [each for each in (trail.take({}, None, REPEAT_S),) if each]
    written = min(USUAL.most, 5000)
    counted = sum(each["repeated"] + each.get("left_out", 0) for each in told) + last["left_out"]
    assert counted == 10_000 - written


def test_failures_of_an_address_are_summed() -> None:
    trail, summed = AuditTrail(), {"host": "10.0.0.1"}
    written = [trail.take({"user": n}, ("10.0.0.1",), 0.0, None, FAILED, summed) for n in range(500)]
    assert [each for each in written if each] == [{"user": n} for n in range(FAILED.most)]
    assert trail.take({"user": "other"}, ("10.0.0.2",), 0.0, None, FAILED, summed) == {"user": "other"}
    assert list(trail.due(REPEAT_S)) == [{"host": "10.0.0.1", "repeated": 500 - FAILED.most}]


@given(
    st.lists(
        st.tuples(st.none() | st.sampled_from("abcdef"), st.none() | st.integers(0, 9), st.floats(0, 3), st.booleans()),
        min_size=1,
        max_size=400,
    )
)
def test_nothing_is_lost_and_memory_is_bounded(events: list[tuple[str | None, int | None, float, bool]]) -> None:
    """Each event has a line, or is counted in one."""
    trail, now, told = AuditTrail(kept=4), 0.0, 0
    for source, repeats, pause, summed in events:
        now += pause
        key, of = None if repeats is None else (repeats,), None if source is None else (source,)
        found = trail.take({}, of, now, key, FAILED, {} if summed else None)
        assert found is not None or source is not None or repeats is not None
        told += 0 if found is None else 1 + found.get("repeated", 0) + found.get("left_out", 0)
        told += sum(each["repeated"] + each.get("left_out", 0) for each in trail.due(now))
        assert len(trail._repeated) <= 4
        assert len(trail._sources) <= 4
    told += sum(each["repeated"] + each.get("left_out", 0) for each in trail.due(now + 2 * REPEAT_S))
    assert told + trail._left_out == len(events)


@given(st.text() | st.just("\n\r\x00\x1b[2J\ud800" * 200), st.text())
def test_a_line_is_one_line_of_ascii(name: str, value: str) -> None:
    written = line("2026", "denied", {"resource": name, "before": state({name: value}), "gone": None})
    assert written.isascii()
    assert written.isprintable()
    read = json.loads(written)
    whole, cut = read["resource"] == name, read["resource"].removesuffix("…")
    assert whole or (name.startswith(cut) and (len(cut) == LONGEST or len(json.dumps(name[:LONGEST])) > LONGEST_BYTES))
    assert "gone" not in read
    assert len(written) < LONGEST_BYTES + 12 * LONGEST_STATE + 200


def test_what_is_large_is_cut() -> None:
    assert len(line("t", "e", {"x": "y" * 10_000})) < LONGEST + 100
    assert len(line("t", "e", {"x": "\U0001f600" * 10_000})) < LONGEST_BYTES + 100
    assert len(state(["x" * 100_000])) == LONGEST_STATE
    assert state({"a": 1}) == {"a": 1}
    assert who(Principal(name="ada", host="1.2.3.4"))["principal"] == "User:ada"
