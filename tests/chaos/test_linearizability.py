"""Porcupine refuses histories of registers that are wrong, each in its way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.histories import Operation, Outcome
from tests.chaos.linearizability import NotBuilt, build, judge
from tests.chaos.unknowns import FEW, decided


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return build()
    except NotBuilt as reason:
        pytest.skip(str(reason))


def op(
    kind: str, value: str, called: int, returned: int, outcome: Outcome = Outcome.OK, expected: str = ""
) -> Operation:
    return Operation(called, "k", kind, called, value, expected, returned, outcome)


FIRST = op("write", "a", 0, 10)
SECOND = op("write", "b", 20, 30)
UNKNOWN = op("write", "c", 20, 0, Outcome.UNKNOWN)
RIGHT = {
    "in turn": [op("read", "", 0, 1), FIRST, op("read", "a", 11, 12), SECOND, op("read", "b", 31, 32)],
    "at the same time": [FIRST, SECOND, op("read", "a", 22, 40), op("read", "b", 21, 40)],
    "unknown, done later": [FIRST, UNKNOWN, op("read", "a", 40, 41), op("read", "c", 50, 51)],
    "unknown, never done": [FIRST, UNKNOWN, op("read", "a", 40, 41), op("read", "a", 50, 51)],
    "compare-and-set": [FIRST, op("cas", "b", 20, 30, expected="a"), op("read", "b", 40, 41)],
    "a refused one": [FIRST, op("cas", "b", 20, 30, Outcome.MISMATCH, "x"), op("read", "a", 40, 41)],
    "an unknown compare-and-set": [FIRST, op("cas", "b", 20, 0, Outcome.UNKNOWN, "a"), op("read", "b", 40, 41)],
}
WRONG = {
    "stale": [FIRST, SECOND, op("read", "a", 31, 32)],
    "lost": [FIRST, op("read", "", 11, 12)],
    "back again": [FIRST, SECOND, op("read", "b", 21, 22), op("read", "a", 23, 24)],
    "unknown, undone": [FIRST, UNKNOWN, op("read", "c", 40, 41), op("read", "a", 50, 51)],
    "from nowhere": [FIRST, op("read", "z", 40, 41)],
    "both compare-and-set": [
        FIRST,
        op("cas", "b", 20, 30, expected="a"),
        op("cas", "c", 20, 30, expected="a"),
    ],
    "refused, although it fits": [FIRST, op("cas", "b", 20, 30, Outcome.MISMATCH, "a"), op("read", "a", 40, 41)],
    "refused, but done": [FIRST, op("cas", "b", 20, 30, Outcome.MISMATCH, "a"), op("read", "b", 40, 41)],
    "an unknown one that could not be": [
        FIRST,
        op("cas", "b", 20, 0, Outcome.UNKNOWN, "x"),
        op("read", "b", 40, 41),
    ],
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_history(name: str, program: Path, tmp_path: Path) -> None:
    assert judge(program, RIGHT[name], tmp_path) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_history(name: str, program: Path, tmp_path: Path) -> None:
    assert [each.kind for each in judge(program, WRONG[name], tmp_path)] == ["not linearizable"]
    assert (tmp_path / "not-linearizable-k.html").exists()


def test_many_unknown_writes_are_judged_in_time(program: Path, tmp_path: Path) -> None:
    """A wrong read among them is found."""
    unknown = [op("write", f"u{n}", 40 + n, 0, Outcome.UNKNOWN) for n in range(200)]
    refused = op("cas", "z", 300, 310, Outcome.MISMATCH, "a")  # one of the unknown writes may explain it
    assert judge(program, [FIRST, *unknown, refused, op("read", "u7", 400, 410)], tmp_path, 20) == []
    undone = op("read", "a", 420, 430)
    [found] = judge(program, [FIRST, *unknown, refused, op("read", "u7", 400, 410), undone], tmp_path, 20)
    assert found.kind == "not linearizable"


def test_unknown_writes_are_decided_by_what_was_read() -> None:
    late = op("read", "c", 50, 51)
    [_, made, read], left_out = decided([FIRST, UNKNOWN, late])
    assert (made.outcome, made.returned, read, left_out) == (Outcome.OK, 51, late, 0)
    assert UNKNOWN.outcome is Outcome.UNKNOWN
    early = op("read", "c", 11, 12)  # read before it was written: that must be found wrong
    assert UNKNOWN in decided([FIRST, UNKNOWN, early])[0]


def test_refusals_are_left_out_only_where_many_may_explain_them() -> None:
    unknown = [op("write", f"u{n}", 40 + n, 0, Outcome.UNKNOWN) for n in range(FEW + 1)]
    before = op("cas", "z", 30, 40 + FEW, Outcome.MISMATCH, "a")
    after = op("cas", "z", 30, 41 + FEW, Outcome.MISMATCH, "a")
    kept, left_out = decided([FIRST, *unknown, before, after])
    assert left_out == 1
    assert before in kept
    assert len(kept) == 2 + FEW
    assert decided([FIRST, *unknown[:FEW], before, after])[1] == 0


def test_each_key_is_judged_by_itself(program: Path, tmp_path: Path) -> None:
    other = Operation(1, "other", "read", 31, "a", "", 32, Outcome.OK)
    [found] = judge(program, [FIRST, SECOND, other], tmp_path)
    assert "other" in found.text
