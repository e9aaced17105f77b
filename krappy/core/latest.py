"""`TOPIC@latest`: a topic's table as a Kafka consumer reads it. Its names, and each reader's position.

A reader has a boundary offset. Below it, it gets only the latest event of each key, at its own offset, as from a
compacted topic; from the boundary on it gets every event. An event may be left out if a later one of its key follows,
for the reader gets that one. So any boundary is right, and "latest" may be judged at any moment not before the
boundary: the reader always ends with the table.

A tombstone may be left out only if the reader can't have seen the event that it deletes: it began at the log's start,
on this connection, and has read on without a gap. Other readers get all tombstones from their position on.
"""

from __future__ import annotations

from collections import OrderedDict

SUFFIX = "@latest"  # '@' is in no topic's name, so such a topic can't exist
_TWIN = int.from_bytes(bytes.fromhex("6c617465737400000b616f662074626c"), "big")
_ALIAS_TWIN = _TWIN ^ (1 << 60)
RAW_LAG = 65_536  # a returning reader within so many offsets of the end gets every event


def table_of(name: str, alias: str = "") -> str | None:
    """The topic whose table has this name; None for any other name.

    `alias`: a second ending with the meaning of SUFFIX; empty: none. The caller looks for a real topic of the name
    first.
    """
    for ending in (SUFFIX, alias):
        if ending and name.endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)]
    return None


def twin_id(topic_id: bytes, *, aliased: bool = False) -> bytes:
    """The id of a topic's table from the topic's id, and the reverse. 16 bytes each.

    Under its alias (`aliased`) the table is another topic to clients, and has another id.
    """
    return (int.from_bytes(topic_id, "big") ^ (_ALIAS_TWIN if aliased else _TWIN)).to_bytes(16, "big")


class TableReading:
    """The position of one connection in one partition of a table.

    `boundary`: from this offset on every event is given; None: the next read fixes it. `blank`: tombstones below this
    offset are left out; None: fixed together with the boundary.
    """

    __slots__ = ("_begun", "_earliest", "_from", "_to", "blank", "boundary")

    def __init__(self) -> None:
        self.boundary: int | None = None
        self.blank: int | None = None
        self._begun = False
        self._from = self._to = 0  # a reader that goes on below the boundary asks for an offset in this range
        self._earliest = -1

    def told_earliest(self, offset: int) -> None:
        """The reader asked where the log starts: if it reads from there next, it begins anew."""
        self._earliest = offset

    def lost(self) -> None:
        """To be called when the reader asks for an offset that the log no longer has: it has read older events, so it
        gets every tombstone."""
        self.blank = 0

    def at(self, offset: int, start: int, end: int) -> bool:
        """Notes a fetch at `offset`, of a log from `start` to `end`. Returns whether it reads below the boundary.

        If so, and the boundary is None, call `fix` before anything is read. A second call for the same fetch changes
        nothing.
        """
        if self._begun:
            if self.boundary is not None and offset >= self.boundary:
                return False
            if self._from <= offset <= self._to:
                return True
        self._begun = True
        self._from = self._to = offset
        anew = offset == start and offset in (0, self._earliest)
        if not anew:
            self.blank = 0  # for good: it may have read events elsewhere
        if end > offset and (anew or end - offset > RAW_LAG):
            self.boundary = None
            return True
        self.fix(offset)
        self.boundary = offset
        return False

    def fix(self, boundary: int) -> None:
        """Sets `boundary` and `blank` to this offset, where they are None."""
        if self.boundary is None:
            self.boundary = boundary
        if self.blank is None:
            self.blank = boundary

    def given(self, record: int, following: int) -> None:
        """Notes that the reader was given the records up to offset `record`; none is between that and `following`."""
        self._from, self._to = record + 1, following


class Readings:
    """The positions of one connection; the least recently used is forgotten first.

    A forgotten reader counts as a returning one: it gets more events, never fewer.
    """

    __slots__ = ("__weakref__", "_held")

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[bytes, int], TableReading] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def find(self, topic_id: bytes, partition: int, most: int) -> TableReading:
        """The position in this partition of the topic with this id (a topic that was made again has another id).

        `most`: how many positions to keep.
        """
        at = (topic_id, partition)
        found = self._held.get(at)
        if found is None:
            found = self._held[at] = TableReading()
            while len(self._held) > most:
                self._held.popitem(last=False)
        else:
            self._held.move_to_end(at)
        return found
