"""The audit log: who logged in or failed to, what was denied, and what was changed. Which lines are written, and how.

Rules, kept here:

- A line is one JSON object, whatever names peers choose: control characters are escaped, long texts are cut.
- What the same principal is denied again, on the same resource, is counted: in the next such line, or in one of its own
  once `REPEAT_S` are over (`repeated`).
- One source has `MANY` lines in `WINDOW_S`; more are counted (`left_out`). So is what there is no room to remember. So
  a peer can neither fill the disk nor drive others' lines out of a log of limited size.
- There are no secrets: whoever calls gives none.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from krappy.core.security.principal import Principal

AUDITOR = "__krappy_audit"  # the transactional id that brokers name when they write lines to each other's topic
REPEAT_S = 60.0
WINDOW_S, MANY = 10.0, 100
KEPT = 10_000  # repeats, and sources, that are remembered
MOST_POSITIONS = 30  # of a group that a line tells
LONGEST = 255  # characters of a text,
LONGEST_STATE = 4096  # and of what something was before or after a change
Facts = dict[str, Any]


class _Repeated:
    __slots__ = ("count", "facts", "since")

    def __init__(self, facts: Facts, since: float) -> None:
        self.facts, self.since = facts, since
        self.count = 0


class AuditTrail:
    """Decides what is written. Times are seconds of one clock."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._repeated: OrderedDict[tuple[Any, ...], _Repeated] = OrderedDict()  # the oldest first
        self._sources: OrderedDict[str, tuple[float, int]] = OrderedDict()  # when its window began, how many came
        self._left_out = 0

    def take(self, facts: Facts, source: str, now: float, repeats: tuple[Any, ...] | None = None) -> Facts | None:
        """What is written of an event; None: it is counted. `source`: the address that it comes from. `repeats`: equal
        for events that are told once."""
        if repeats is not None:
            before = self._repeated.get(repeats)
            if before is not None and now - before.since < REPEAT_S:
                before.count += 1
                return None
            if before is not None:
                del self._repeated[repeats]
                if before.count:
                    facts = {**facts, "repeated": before.count}
            if len(self._repeated) >= self._kept:
                _, oldest = self._repeated.popitem(last=False)
                self._left_out += oldest.count
            self._repeated[repeats] = _Repeated(facts, now)
        if self._has_many(source, now):
            self._left_out += 1
            return None
        if self._left_out:
            facts = {**facts, "left_out": self._left_out}
            self._left_out = 0
        return facts

    def due(self, now: float) -> Iterator[Facts]:
        """What was repeated and is to be told now."""
        while self._repeated:
            key, oldest = next(iter(self._repeated.items()))
            if now - oldest.since < REPEAT_S:
                return
            del self._repeated[key]
            if oldest.count:
                yield {**oldest.facts, "repeated": oldest.count}

    def lost(self, facts: Facts) -> None:
        """There is no room for what `take` gave. What it had counted is counted again."""
        self._left_out += 1 + int(facts.get("left_out", 0)) + int(facts.get("repeated", 0))

    def _has_many(self, source: str, now: float) -> bool:
        if source not in self._sources and len(self._sources) >= self._kept:
            if now - next(iter(self._sources.values()))[0] >= WINDOW_S:
                self._sources.popitem(last=False)
            else:
                source = ""  # which those share for whom there is no room
        since, count = self._sources.get(source, (now, 0))
        if now - since >= WINDOW_S:
            since, count = now, 0
            self._sources.pop(source, None)  # to the end
        self._sources[source] = since, count + 1
        return count >= MANY


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


def cleaned(facts: Mapping[str, Any]) -> Facts:
    """Without what is None, and with texts cut."""
    return {name: _cut(fact) for name, fact in facts.items() if fact is not None}


def line(time: str, event: str, facts: Mapping[str, Any]) -> str:
    """One line of ASCII, without its end. `time`: ISO 8601."""
    return json.dumps({"time": time, "event": event, **cleaned(facts)}, separators=(",", ":"), default=str)


def _cut(fact: Any) -> Any:
    if isinstance(fact, str):
        return fact if len(fact) <= LONGEST else fact[:LONGEST] + "…"
    if isinstance(fact, list):
        return [_cut(each) for each in fact]
    return fact
