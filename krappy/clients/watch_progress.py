"""What a watch has handed out. No I/O.

If the connection is lost before the snapshot is complete, the watch takes a new snapshot and leaves out what was handed
out and has not changed since: entries whose key had its turn and whose offset is below the old snapshot's. It asks for
the new snapshot with tombstones, because the caller must see that a key which was handed out has been deleted since.
While keys are scattered, the tombstone may come from another partition than the key's value did.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from krappy.clients.tables import entries
from krappy.errors import ProtocolError
from krappy.types import Entry
from krappy.wire import messages


class SnapshotEnd(NamedTuple):
    """The mark between a watch's snapshot and its changes. `offsets`: by partition, the snapshot includes all events
    before this offset."""

    offsets: dict[int, int]


class Piece(NamedTuple):
    """How far a watch has come in a partition: the next offset once its snapshot is complete, before that the levels
    that `Progress` explains. `epoch`: the leader epoch of the last event before the next offset; -1: not known."""

    live: int | None = None
    levels: tuple[tuple[bytes | None, int], ...] = ()
    epoch: int = -1


class Progress:
    """Tracks what a watch has handed out, so that a repeated snapshot brings only what is new. No I/O.

    For each partition it keeps levels. A level (key, offset) says: every key up to this one was handed out as it was
    before that offset. A key of None stands for all keys. Levels ascend by key; the first one that reaches a key counts
    for it.
    """

    def __init__(self, tombstones: bool, pieces: Mapping[int, Piece] = MappingProxyType({})) -> None:
        """`pieces`: by partition, how far the watch has come already: all of them live, or none."""
        self._tombstones = tombstones
        self._levels = {partition: list(piece.levels) for partition, piece in pieces.items() if piece.levels}
        offsets = {partition: piece.live for partition, piece in pieces.items() if piece.live is not None}
        self.live = offsets or None  # by partition, the next offset; None while the snapshot is incomplete
        self.epochs = {partition: piece.epoch for partition, piece in pieces.items() if piece.epoch >= 0}
        self._turn: tuple[int, int] | None = None  # the partition whose entries come now, and its snapshot's offset
        self._again = False

    def restart(self) -> None:
        """To be called when the stream begins anew."""
        self._again = self.live is None and bool(self._levels)
        self._turn = None

    def piece(self, partition: int) -> Piece:
        """How far it has come in one partition."""
        if self.live is not None:
            # 0: it was added a moment ago
            return Piece(self.live.get(partition, 0), epoch=self.epochs.get(partition, -1))
        return Piece(None, tuple(self._levels.get(partition, ())))

    @property
    def tombstones(self) -> bool:
        """Whether to ask for tombstones: the caller wants them, or the snapshot is a repeated one."""
        return self._tombstones or self._again

    def take(self, watched: messages.Watched) -> list[Entry] | SnapshotEnd:
        """The new entries of an answer, or the end of the snapshot. Raises ProtocolError."""
        found = entries(watched.partition, watched.entries)
        if watched.event == "changes":
            if self.live is None:
                raise ProtocolError("changes before the end of a snapshot")
            if watched.epochs is not None:
                self.epochs |= watched.epochs
            elif self.live.get(watched.partition) != watched.next_offset:
                self.epochs.pop(watched.partition, None)
            self.live[watched.partition] = watched.next_offset
            return found
        if watched.event == "end_of_snapshot":
            self.live, self.epochs = dict(watched.offsets or ()), dict(watched.epochs or ())
            return SnapshotEnd(dict(self.live))
        if watched.event != "snapshot":
            raise ProtocolError(f"a watch with an event {watched.event!r:.40}")
        return self._snapshot(watched.partition, watched.next_offset, found, watched.scattered)

    def _snapshot(self, partition: int, exact: int, found: list[Entry], scattered: bool) -> list[Entry]:
        if self._turn is not None and self._turn[0] != partition:
            before, offset = self._turn
            self._levels[before] = [(None, offset)]
        self._turn = partition, exact
        fresh = [entry for entry in found if self._is_new(entry, scattered)] if self._again else found
        if found:
            last = found[-1].key
            further = [each for each in self._levels.get(partition, ()) if each[0] is None or each[0] > last]
            self._levels[partition] = [(last, exact), *further]
        return fresh

    def _is_new(self, entry: Entry, scattered: bool) -> bool:
        offset = self._had_turn(entry.partition, entry.key)
        if offset is not None:
            return entry.offset >= offset
        if self._tombstones or entry.value is not None:
            return True
        return scattered and any(self._had_turn(other, entry.key) is not None for other in self._levels)

    def _had_turn(self, partition: int, key: bytes) -> int | None:
        """The offset of the snapshot that handed out this key's range in this partition; None: it had no turn yet."""
        return next((offset for upto, offset in self._levels.get(partition, ()) if upto is None or key <= upto), None)
