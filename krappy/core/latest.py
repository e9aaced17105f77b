"""`TOPIC@latest`: a topic's table as a Kafka consumer reads it. The names, and where one reader stands.

What a reader is given has a boundary. Below it only the events that are the latest of their keys, at their own
offsets, as from a compacted topic; from it on every event. An event may be left out when a later one of its key is
still to come, for the reader gets that one: so the boundary, and the moment that "latest" is judged at, may be any
that is not before the boundary, and the reader ends with the table all the same.

A deletion may be left out only where the reader can't have seen what it deletes: where it began at the log's start,
on this connection, and has gone on from there without a gap. Whoever else comes is given all deletions that it has
not passed yet.
"""

from __future__ import annotations

from collections import OrderedDict

SUFFIX = "@latest"  # '@' is in no topic's name, so such a topic can't exist
_TWIN = int.from_bytes(bytes.fromhex("6c617465737400000b616f662074626c"), "big")
_ALIAS_TWIN = _TWIN ^ (1 << 60)
RAW_LAG = 65_536  # a reader that comes back within so many offsets of the end is given every event


def table_of(name: str, alias: str = "") -> str | None:
    """The topic whose table this name stands for; None for any other name.

    `alias`: an ending that stands for SUFFIX, if there is one. A topic that has such a name is meant by it itself.
    """
    for ending in (SUFFIX, alias):
        if ending and name.endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)]
    return None


def twin_id(topic_id: bytes, *, aliased: bool = False) -> bytes:
    """The id of a topic's table, made from the topic's; and the topic's, made from its table's. 16 bytes each.

    Under its other name (`aliased`) the table is another topic to clients, and has another id.
    """
    return (int.from_bytes(topic_id, "big") ^ (_ALIAS_TWIN if aliased else _TWIN)).to_bytes(16, "big")


class TableReading:
    """Where one connection stands in one partition of a table.

    `boundary`: every event from there on is given; None: to be fixed, at the moment of the next read.
    `blank`: deletions below it are left out; None: to be fixed together with the boundary.
    """

    __slots__ = ("_begun", "_earliest", "_from", "_to", "blank", "boundary")

    def __init__(self) -> None:
        self.boundary: int | None = None
        self.blank: int | None = None
        self._begun = False
        self._from = self._to = 0  # who goes on below the boundary asks for an offset from the one to the other
        self._earliest = -1

    def told_earliest(self, offset: int) -> None:
        """The reader asked where the log starts: if it reads from there next, it begins anew."""
        self._earliest = offset

    def lost(self) -> None:
        """The reader asked for an offset that the log does not have any more: it knows what it read before that."""
        self.blank = 0

    def at(self, offset: int, start: int, end: int) -> bool:
        """A fetch at `offset`, of a log that has `start` to `end`. Whether it reads below the boundary.

        When it does, and the boundary is None, `fix` is to be called before anything is read. Asking again about the
        same fetch changes nothing.
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
            self.blank = 0  # for good: what it has seen elsewhere is not known
        if end > offset and (anew or end - offset > RAW_LAG):
            self.boundary = None
            return True
        self.fix(offset)
        self.boundary = offset
        return False

    def fix(self, boundary: int) -> None:
        """The boundary, and where deletions begin to matter, if these are not known yet."""
        if self.boundary is None:
            self.boundary = boundary
        if self.blank is None:
            self.blank = boundary

    def given(self, record: int, following: int) -> None:
        """It was given the records up to offset `record`, and there is none from there up to `following`."""
        self._from, self._to = record + 1, following


class Readings:
    """Those of one connection, the least recently used forgotten first.

    A reader that is forgotten is taken for one that comes back: it is given more, never less.
    """

    __slots__ = ("__weakref__", "_held")

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[bytes, int], TableReading] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def find(self, topic_id: bytes, partition: int, most: int) -> TableReading:
        """The one of this partition of the topic with this id (a topic deleted and made again is another).

        `most`: how many may be kept.
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
