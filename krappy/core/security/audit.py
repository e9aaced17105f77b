"""The audit log: who logged in or failed to, what was denied, and what was changed. Which lines are written, and how.

Rules, kept here:

- A line is one JSON object, whatever names peers choose: control characters are escaped, long texts are cut.
- If the same principal is denied the same again, on the same resource, it is only counted. The number (`repeated`) is
  in the next such line, or in a line of its own once `REPEAT_S` are over. That one tells the last of them: who commits
  a group's positions twice does not hide where they are now.
- A change is always told. For everything else a source (a user in a network) has as many lines as its `LinePace` says.
  What is beyond them is counted (`left_out`), and so is what there is no room to remember. Thus nobody can hide what
  others do, or what he changes himself.
- Failures to log in, which anybody can cause, have a trail, a pace and a place of their own. Those of an address that
  are beyond its pace make one line a minute, with their number (`repeated`).
- No line has a secret: callers pass none.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from krappy.core.security.principal import Principal

AUDITOR = "__krappy_audit"  # the transactional id that brokers name when they write lines to each other's topic
REPEAT_S = 60.0
KEPT = 10_000  # repeats, and sources, that are remembered
MOST_POSITIONS = 30  # of a group that a line tells
LONGEST = 255  # characters of a text
LONGEST_BYTES = 1024  # bytes of a text in JSON, which may take twelve bytes for one character
LONGEST_STATE = 4096  # characters of what something was before or after a change
Facts = dict[str, Any]


class LinePace(NamedTuple):
    """The lines of one source: `most` at once, and one more each `seconds`."""

    most: int
    seconds: float


USUAL = LinePace(100, 6.0)
ALLOWED = LinePace(100, 0.1)  # of what was allowed, if that is to be told at all
FAILED = LinePace(10, 6.0)  # of failures to log in


class _Repeated:
    """`source`: whose pace counts when it is told; None: it is told in any case."""

    __slots__ = ("count", "facts", "pace", "since", "source")

    def __init__(self, facts: Facts, since: float, source: Source | None, pace: LinePace) -> None:
        self.facts, self.since = facts, since
        self.source, self.pace = source, pace
        self.count = 0


Source = tuple[Hashable, ...]


class AuditTrail:
    """Decides what is written. Times are seconds of one clock."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._repeated: OrderedDict[Source, _Repeated] = OrderedDict()  # the oldest first
        self._sources: OrderedDict[Source, tuple[float, float]] = OrderedDict()  # when each came last, what it had left
        self._left_out = 0

    def take(
        self,
        facts: Facts,
        source: Source | None,
        now: float,
        repeats: Source | None = None,
        pace: LinePace = USUAL,
        summed: Facts | None = None,
    ) -> Facts | None:
        """The facts to write of an event; None: it is only counted. `source`: who causes it; None: it is told in any
        case. `repeats`: equal for events of which only the first is told at once. `summed`: the facts of the one line
        for all events beyond the pace of their source; None: these are left out."""
        if repeats is not None:
            before = self._repeated.get(repeats)
            if before is not None and now - before.since < REPEAT_S:
                before.count += 1
                before.facts = facts
                return None
            if before is not None:
                del self._repeated[repeats]
                if before.count:
                    facts = {**facts, "repeated": before.count}
            self._remember(repeats, _Repeated(facts, now, source, pace))
        if source is not None and not self._may(source, now, pace):
            if summed is None:
                self._left_out += 1 + int(facts.get("repeated", 0))
                return None
            if (held := self._repeated.get(source)) is None:
                held = _Repeated(summed, now, None, pace)
                self._remember(source, held)
            held.count += 1 + int(facts.get("repeated", 0))
            return None
        return self._with_left_out(facts)

    def due(self, now: float) -> Iterator[Facts]:
        """What was repeated and is to be told now."""
        while self._repeated:
            key, oldest = next(iter(self._repeated.items()))
            if now - oldest.since < REPEAT_S:
                return
            del self._repeated[key]
            if not oldest.count:
                continue
            if oldest.source is None or self._may(oldest.source, now, oldest.pace):
                yield self._with_left_out({**oldest.facts, "repeated": oldest.count})
            else:
                self._left_out += oldest.count

    def _with_left_out(self, facts: Facts) -> Facts:
        if self._left_out:
            facts = {**facts, "left_out": self._left_out}
            self._left_out = 0
        return facts

    def _remember(self, key: Source, repeated: _Repeated) -> None:
        if len(self._repeated) >= self._kept:
            _, oldest = self._repeated.popitem(last=False)
            self._left_out += oldest.count
        self._repeated[key] = repeated

    def _may(self, source: Source, now: float, pace: LinePace) -> bool:
        """Takes one of the source's lines. Returns whether one was left."""
        source = (pace, *source)
        if source not in self._sources and len(self._sources) >= self._kept:
            self._sources.popitem(last=False)  # it begins anew when it comes again
        since, left = self._sources.pop(source, (now, float(pace.most)))
        left = min(float(pace.most), left + (now - since) / pace.seconds)
        may = left >= 1
        self._sources[source] = now, left - 1 if may else left  # at the end
        return may


def who(principal: Principal) -> Facts:
    """The facts of a principal."""
    return {
        "principal": str(principal),
        "groups": list(principal.groups[:20]) or None,
        "host": principal.host,
        "listener": principal.listener or None,
        "mechanism": principal.mechanism,
    }


def state(value: Any) -> Any:
    """What something was before a change, or after it, cut to a size that a line has room for."""
    if value is None:
        return None
    text = json.dumps(value, default=str)
    return json.loads(text) if len(text) <= LONGEST_STATE else text[:LONGEST_STATE]


def positions(held: Iterable[tuple[str, int, int]]) -> Facts | None:
    """Positions of a group as a state, at most `MOST_POSITIONS` of them; None if there are none."""
    found: Facts = {}
    for topic, index, offset in islice(held, MOST_POSITIONS):
        found[f"{topic}-{index}"] = offset
    return found or None


def kept(facts: Mapping[str, Any]) -> Facts:
    """The facts, with long texts cut to what a line shows: peers may send megabytes, and the trail remembers facts."""
    return {name: fact[: LONGEST + 1] if isinstance(fact, str) else fact for name, fact in facts.items()}


def cleaned(facts: Mapping[str, Any]) -> Facts:
    """The facts that are not None, with long texts cut."""
    return {name: _cut(fact) for name, fact in facts.items() if fact is not None}


def line(time: str, event: str, facts: Mapping[str, Any]) -> str:
    """One line of ASCII, without its end. `time`: ISO 8601."""
    return json.dumps({"time": time, "event": event, **cleaned(facts)}, separators=(",", ":"), default=str)


def _cut(fact: Any) -> Any:
    if isinstance(fact, str):
        cut = fact[:LONGEST]
        while len(json.dumps(cut)) > LONGEST_BYTES:
            cut = cut[: len(cut) * 3 // 4]
        return fact if len(cut) == len(fact) else cut + "…"
    if isinstance(fact, list):
        return [_cut(each) for each in fact]
    return fact
