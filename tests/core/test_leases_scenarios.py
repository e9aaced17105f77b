"""Runs tests/scenarios/leases_*.txt: each is a script of what members of one group do with one partition, and what
came of it. Written to be read in review.

After a change of behaviour: KRAPPY_REWRITE_SCENARIOS=1 pytest tests/core/test_leases_scenarios.py, then read the diff.

A scenario is blocks of command lines, `----`, and what they said and left behind. The commands:

    group max_deliveries=3 order=key lease_ms=1000 limit=2 window=5    begins anew
    publish 5 | publish a b - a       five events without keys, or one event for each key (`-`: none)
    lose 3 5-7                        the cleaner takes these events out of the log
    join                              a member registers
    poll MEMBER [RECORDS [BATCH]]     at most so many events, the log being read so many at a time
    ack|nack|extend MEMBER RANGES [delay=MS | lease_ms=MS]
    leave MEMBER                      it unregisters, or its connection is lost
    time MS                           passes
    bury                              the dead-letter topic has the dead events now
    restart                           the broker comes back with the bytes that it had written last
    retain OFFSET                     the log begins at this offset now
    cut OFFSET                        the log ends at this offset now (a power loss without fsync)
    reset OFFSET
"""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from krappy.core.keyed_leases import KeyedLeases
from krappy.core.leases import Leases, LogSlice
from krappy.core.members import Members
from krappy.core.runs import DEAD, DELAYED, LEASED
from krappy.errors import GroupFull
from tests.core.scenarios import check

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("leases_*.txt"))


class Group:
    def __init__(self) -> None:
        self.run_group([], {})

    def run_group(self, words: list[str], options: dict[str, str]) -> list[str]:
        self.now = 0
        self.log: dict[int, str] = {}
        self.end = self.start = 0
        self.lease_ms = int(options.get("lease_ms", 1000))
        self.max_deliveries = int(options.get("max_deliveries", 10))
        self.window = int(options.get("window", 10_000))
        self.kind: type[Leases] = KeyedLeases if options.get("order") == "key" else Leases
        self.leases = self.kind(0, max_deliveries=self.max_deliveries, window=self.window)
        self.members = Members("g", int(options.get("limit", 1000)))
        return []

    def run_publish(self, words: list[str], options: dict[str, str]) -> list[str]:
        keys = ["-"] * int(words[0]) if words[0].isdigit() else words
        for key in keys:
            self.log[self.end] = key
            self.end += 1
        return [f"log {self.start} to {self.end - 1}"]

    def run_lose(self, words: list[str], options: dict[str, str]) -> list[str]:
        for first, last in map(_range, words):
            for offset in range(first, last + 1):
                self.log.pop(offset)
        return []

    def run_join(self, words: list[str], options: dict[str, str]) -> list[str]:
        try:
            return [self.members.join()]
        except GroupFull as error:
            return [f"{error.name}: {error}"]

    def run_leave(self, words: list[str], options: dict[str, str]) -> list[str]:
        for unseen in words[1:]:
            self.leases.uncount(words[0], *_range(unseen))
        self.leases.release(words[0])
        self.members.leave(words[0])
        return []

    def run_poll(self, words: list[str], options: dict[str, str]) -> list[str]:
        member = words[0]
        left = int(words[1]) if len(words) > 1 else 500
        batch = int(words[2]) if len(words) > 2 else 100
        got: list[str] = []
        while left:
            offset = self.leases.wanted(self.now, alone=not got)
            if offset is None or offset >= self.end:
                break
            read = self._read(offset, min(self.end, offset + batch))
            found = self.leases.lease(self.now, member, self.lease_ms, read, left, alone=not got)
            for lease in found:
                left -= lease.size
                got.append(_show(lease.first, lease.last, lease.deliveries))
            if found and self.leases.comes_alone(found[-1]):
                break
        return [f"{member} gets {', '.join(got) or 'nothing'}"]

    def _read(self, start: int, end: int) -> LogSlice:
        offsets = [offset for offset in range(start, end) if offset in self.log]
        keys = [None if self.log[offset] == "-" else self.log[offset] for offset in offsets]
        spans: list[tuple[int, int]] = []
        for offset in offsets:
            if spans and spans[-1][1] == offset - 1:
                spans[-1] = spans[-1][0], offset
            else:
                spans.append((offset, offset))
        return LogSlice(start, end, spans, keys)

    def run_ack(self, words: list[str], options: dict[str, str]) -> list[str]:
        return self._lost([self.leases.ack(words[0], *_range(word)) for word in words[1:]])

    def run_nack(self, words: list[str], options: dict[str, str]) -> list[str]:
        delay = int(options.get("delay", 0))
        return self._lost([self.leases.nack(self.now, words[0], *_range(word), delay) for word in words[1:]])

    def run_extend(self, words: list[str], options: dict[str, str]) -> list[str]:
        lease_ms = int(options["lease_ms"])
        return self._lost([self.leases.extend(self.now, words[0], *_range(word), lease_ms) for word in words[1:]])

    def _lost(self, found: list[list[tuple[int, int]]]) -> list[str]:
        lost = [_show(first, last) for spans in found for first, last in spans]
        return [f"lost: {', '.join(lost)}"] if lost else []

    def run_time(self, words: list[str], options: dict[str, str]) -> list[str]:
        self.now += int(words[0])
        self.leases.expire(self.now)
        return []

    def run_bury(self, words: list[str], options: dict[str, str]) -> list[str]:
        graves = self.leases.graves()
        for grave in graves:
            self.leases.bury(grave.first, grave.last)
        return ["buried " + (", ".join(_show(*grave) for grave in graves) or "nothing")]

    def run_restart(self, words: list[str], options: dict[str, str]) -> list[str]:
        state = msgpack.packb(self.leases.dump())
        flat = msgpack.unpackb(state)
        self.leases = self.kind.load(flat, max_deliveries=self.max_deliveries, window=self.window)
        self.members = Members("g")
        return [f"from {len(state)} bytes: {flat}"]

    def run_retain(self, words: list[str], options: dict[str, str]) -> list[str]:
        self.start = int(words[0])
        self.log = {offset: key for offset, key in self.log.items() if offset >= self.start}
        self.leases.trim(self.start)
        return []

    def run_cut(self, words: list[str], options: dict[str, str]) -> list[str]:
        self.end = int(words[0])
        self.log = {offset: key for offset, key in self.log.items() if offset < self.end}
        self.leases.cut(self.end)
        return []

    def run_reset(self, words: list[str], options: dict[str, str]) -> list[str]:
        self.leases.reset(int(words[0]))
        return []

    def state(self) -> list[str]:
        lines = [f"{self.now} ms: floor {self.leases.floor}, frontier {self.leases.frontier}"]
        for run in self.leases.runs():
            if run.state == LEASED:
                how = f"leased to {run.member} until {run.due}"
            elif run.state == DELAYED:
                how = f"waiting until {run.due}"
            else:
                how = "dead" if run.state == DEAD else "waiting"
            lines.append(f"  {_show(run.first, run.last, run.deliveries)} {how}")
        return lines


def _range(word: str) -> tuple[int, int]:
    first, _, last = word.partition("-")
    return int(first), int(last or first)


def _show(first: int, last: int, deliveries: int | None = None) -> str:
    text = str(first) if first == last else f"{first}-{last}"
    return text if deliveries is None else f"{text} x{deliveries}"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check(path, Group())


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 10
