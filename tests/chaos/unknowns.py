"""Makes histories of registers easier to check if they have operations of unknown outcome.

An unknown write may be done at any time after its call, or never. So each unknown write doubles the work of porcupine.
But no value is written twice, and that tells more:

- If somebody has read a value, or a compare-and-set has found it, it was written before that answer came.
- If nobody found a value, it may still be the reason why a compare-and-set was refused. Up to `FEW` such writes of a
  key stay as they are. If there are more, the later ones are left out, and so are the refusals that they may explain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tests.chaos.histories import Operation, Outcome

FEW = 6


def decided(operations: Sequence[Operation]) -> tuple[list[Operation], int]:
    """(a history that is linearizable if this one is, how many refusals were left out). The given operations stay as
    they are."""
    found: list[Operation] = []
    left_out = 0
    for key in sorted({each.key for each in operations}):
        kept, dropped = _of_key([each for each in operations if each.key == key])
        found += kept
        left_out += dropped
    return found, left_out


def _of_key(operations: Sequence[Operation]) -> tuple[list[Operation], int]:
    seen = _seen(operations)
    known: list[Operation] = []
    unknown: list[Operation] = []
    for each in operations:
        if each.outcome is not Outcome.UNKNOWN:
            known.append(each)
        elif each.value in seen and seen[each.value] > each.called:
            known.append(replace(each, outcome=Outcome.OK, returned=seen[each.value]))
        else:
            unknown.append(each)
    unknown.sort(key=lambda each: each.called)
    many = unknown[FEW:]
    kept = [
        each for each in known if not (many and each.outcome is Outcome.MISMATCH and each.returned > many[0].called)
    ]
    return kept + unknown[:FEW], len(known) - len(kept)


def _seen(operations: Iterable[Operation]) -> dict[str, int]:
    """By value, the time of the first answer that shows that the value was there."""
    found: dict[str, int] = {}
    for each in operations:
        if each.outcome is Outcome.OK:
            value = each.value if each.kind == "read" else each.expected if each.kind == "cas" else ""
            if value:
                found[value] = min(found.get(value, each.returned), each.returned)
    return found
