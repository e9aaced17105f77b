"""Notes what was sent to a broker and what it acknowledged, and checks that its log agrees.

Every event carries a mark, which says who sent it: `lane` (a producer registration's events to one partition, in the
order sent) and its number in that lane. The rules for a partition whose log was read as a whole:

- an acknowledged event is at its offset, and no other event is there
- an event that a reader got before the crash is still in the log
- each event of the log was sent, and is there only once
- of each lane, the log has a prefix of the events that were sent and not refused
- no refused event is in the log
- offsets ascend, without a gap unless the cleaner runs, and the log's end never goes back

Retention may have deleted events before the log's start. If the cleaner runs, an event may be gone if a later one of
its key is there; and all events of a key may be gone if the last one was a tombstone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from struct import Struct

from krappy.types import Headers
from tests.peer import Stored

MARK = Struct(">IQ")
MARK_HEADER = "mark"


@dataclass(slots=True, eq=False)
class Event:
    """One event that was sent, and the answer. `offset` None and `refused` empty: there is no answer yet."""

    lane: int
    place: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    offset: int | None = None
    moment: int = 0  # of the answer, by the book's clock
    refused: str = ""
    expected: int | None = None  # conditional: the offset that the key had to be at

    def stored(self, offset: int, moment: int) -> None:
        """Notes that it was acknowledged."""
        self.offset = offset
        self.moment = self.moment or moment

    def as_of(self, moment: int) -> Event:
        """A copy, with what was known at that moment. Ten times as fast as `dataclasses.replace`."""
        offset = self.offset if self.moment <= moment else None
        return Event(
            self.lane,
            self.place,
            self.key,
            self.value,
            self.timestamp,
            offset,
            self.moment,
            self.refused,
            self.expected,
        )

    @property
    def mark(self) -> bytes:
        return MARK.pack(self.lane, self.place)


@dataclass
class Lane:
    number: int
    events: list[Event] = field(default_factory=list)

    def event(self, key: bytes | None, body: bytes | None, timestamp: int) -> Event:
        """Makes the next event of this lane. Its value begins with the mark; a tombstone has the mark in a header."""
        place = len(self.events)
        value = None if body is None else MARK.pack(self.number, place) + body
        made = Event(self.number, place, key, value, timestamp)
        self.events.append(made)
        return made


def headers_for(event: Event) -> Headers:
    return ((MARK_HEADER, event.mark),) if event.value is None else ()


def mark_of(stored: Stored) -> tuple[int, int]:
    """(lane, number in it) of an event of the log."""
    data = dict(stored.headers).get(MARK_HEADER) if stored.value is None else stored.value
    assert data is not None, f"an event without a mark: {stored}"
    assert len(data) >= MARK.size, f"an event without a mark: {stored}"
    lane, place = MARK.unpack_from(data)
    return lane, place


@dataclass
class PartitionLedger:
    """The ledger of one partition. `compact`: the cleaner runs. `forgets`: the cleaner may remove tombstones, too.
    `expires`: retention runs. `torn`: power was lost, so offsets of lost events may stay empty."""

    name: str
    compact: bool = False
    torn: bool = False
    forgets: bool = False
    expires: bool = False
    lanes: dict[int, Lane] = field(default_factory=dict)
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset -> mark of an event that a reader got
    seen_at: dict[int, int] = field(default_factory=dict)  # offset -> when, by the book's clock
    end: int = 0  # the highest log end that any answer had
    start: int = 0

    def lane(self, number: int) -> Lane:
        return self.lanes.setdefault(number, Lane(number))

    def saw(self, events: Sequence[Stored], moment: int = 0) -> None:
        """Notes that a reader got these events: they are committed."""
        for stored in events:
            mark = mark_of(stored)
            self.seen_at.setdefault(stored.offset, moment)
            assert self.seen.setdefault(stored.offset, mark) == mark, f"{self.name}: offset {stored.offset} changed"
            self.end = max(self.end, stored.offset + 1)

    def as_of(self, moment: int) -> PartitionLedger:
        """A copy with what was known at that moment. Events that were acknowledged or read later may be in the log, or
        not."""
        seen = {offset: mark for offset, mark in self.seen.items() if self.seen_at[offset] <= moment}
        lanes = {}
        for number, lane in self.lanes.items():
            lanes[number] = Lane(number, [event.as_of(moment) for event in lane.events])
        return replace(self, lanes=lanes, seen=seen, end=max(seen, default=-1) + 1, start=0)

    @property
    def acknowledged(self) -> set[int | None]:
        """The offsets of events that writers or readers were told."""
        return {*self.seen, *(event.offset for lane in self.lanes.values() for event in lane.events)}

    def check(self, log: Sequence[Stored], start: int, end: int) -> None:
        """Raises AssertionError if a rule is broken. `log`: all events from `start` to `end`, as polls returned
        them."""
        name = self.name
        assert end >= self.end, f"{name}: the log ends at {end}; it went to {self.end} before"
        assert start >= self.start, f"{name}: the log starts at {start}; it started at {self.start} before"
        assert self.expires or start == 0, f"{name}: the log starts at {start} without any retention"
        self.start, self.end = start, end
        offsets = [stored.offset for stored in log]
        assert all(a < b for a, b in pairwise(offsets)), f"{name}: offsets do not ascend"
        if not self.compact and not self.torn:
            assert offsets == list(range(start, end)), f"{name}: offsets are missing between {start} and {end}"
        found = self._known(log)
        self._check_acknowledged(found, {stored.offset: mark_of(stored) for stored in log}, log)
        self._check_prefixes(found)

    def _known(self, log: Sequence[Stored]) -> dict[tuple[int, int], int]:
        """The offsets of the log's events by mark. Raises AssertionError if one was not sent, or is there twice."""
        found: dict[tuple[int, int], int] = {}
        for stored in log:
            mark = lane, place = mark_of(stored)
            assert mark not in found, f"{self.name}: event {mark} is at {found[mark]} and at {stored.offset}"
            found[mark] = stored.offset
            assert lane in self.lanes, f"{self.name}: offset {stored.offset} was sent by nobody: {stored}"
            assert place < len(self.lanes[lane].events), f"{self.name}: {mark} was never sent"
            sent = self.lanes[lane].events[place]
            assert not sent.refused, f"{self.name}: {mark} was refused ({sent.refused}) and is at {stored.offset}"
            assert (sent.key, sent.value, sent.timestamp) == (stored.key, stored.value, stored.timestamp), (
                f"{self.name}: offset {stored.offset} is {stored}, sent was {sent}"
            )
            assert sent.offset in (None, stored.offset), (
                f"{self.name}: {mark} was acknowledged at {sent.offset} and is at {stored.offset}"
            )
        return found

    def _check_acknowledged(
        self, found: dict[tuple[int, int], int], at: dict[int, tuple[int, int]], log: Sequence[Stored]
    ) -> None:
        known = dict(self.seen)
        for lane in self.lanes.values():
            for event in lane.events:
                if event.offset is not None:
                    mark = (lane.number, event.place)
                    assert known.setdefault(event.offset, mark) == mark, (
                        f"{self.name}: {mark} was acknowledged at {event.offset}, where {known[event.offset]} is"
                    )
        last = {stored.key: stored for stored in log}
        deletions = self._deletions() if self.forgets else {}
        for offset, mark in sorted(known.items()):
            if offset < self.start:
                continue
            assert offset < self.end, f"{self.name}: {mark} was acknowledged at {offset}; the log ends at {self.end}"
            if offset in at:
                assert at[offset] == mark, f"{self.name}: offset {offset} was {mark} and is {at[offset]}"
                continue
            event = self.lanes[mark[0]].events[mark[1]]
            after = last.get(event.key)
            excused = self.compact and (
                (after is not None and after.offset > offset) or offset <= deletions.get(event.key, -1)
            )
            assert excused, f"{self.name}: {mark}, acknowledged at {offset}, is not there; of its key there is {after}"

    def _deletions(self) -> dict[bytes | None, int]:
        """By key, the offset up to which its events may be gone without a trace. This is the offset of its last
        tombstone; there is no bound if a tombstone was not answered."""
        found: dict[bytes | None, int] = {}
        for lane in self.lanes.values():
            for event in lane.events:
                if event.value is None and not event.refused:
                    upto = 2**63 if event.offset is None else event.offset
                    found[event.key] = max(upto, found.get(event.key, -1))
        return found

    def settle(self, found: Sequence[Stored], open_lanes: set[int]) -> None:
        """After a restart: notes which unanswered events are in the log (`found`). The others never come, unless their
        lane is in `open_lanes`."""
        at = {mark_of(stored): stored.offset for stored in found}
        for lane in self.lanes.values():
            if lane.number in open_lanes:
                continue
            for event in lane.events:
                if event.offset is None and not event.refused:
                    event.offset = at.get((lane.number, event.place))
                    if event.offset is None and not self.compact and not self.expires:
                        event.refused = "lost with the broker that was killed"

    def _check_prefixes(self, found: dict[tuple[int, int], int]) -> None:
        for lane in self.lanes.values():
            stored = [(event.place, found.get((lane.number, event.place), event.offset)) for event in lane.events]
            places = [(place, offset) for place, offset in stored if offset is not None]
            assert all(a[1] < b[1] for a, b in pairwise(places)), (
                f"{self.name}: the events of registration {lane.number} are not in the order sent"
            )
            if self.compact or not places:
                continue
            first = 0 if not self.expires else next((place for place, at in places if at >= self.start), len(stored))
            for event in lane.events[first : places[-1][0]]:
                assert event.refused or (lane.number, event.place) in found, (
                    f"{self.name}: event {event.place} of registration {lane.number} is missing before others of it"
                )


def fold(log: Sequence[Stored]) -> dict[bytes, Stored]:
    """The latest event of each key, which a table must show."""
    return {stored.key: stored for stored in log if stored.key is not None}
