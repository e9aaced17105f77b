"""One poll of a group: it goes through the partitions in turn, reads, leases events, and puts them into one answer.

Events that can be read without waiting (for the disk, or a thread that decodes large batches) are leased and answered
in one turn.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from krappy.broker.groups import group_reads
from krappy.broker.groups.group_reads import LogPiece, Read
from krappy.broker.partition import large
from krappy.core.leases import Lease
from krappy.errors import KrappyError, NotLeader, OffsetOutOfRange
from krappy.ports import GroupPolled
from krappy.types import Span

if TYPE_CHECKING:
    from krappy.broker.groups.group_keeper import GroupKeeper
    from krappy.broker.groups.shared import SharedPartition

AHEAD_RECORDS = 200  # a poll for fewer events, or for redelivered ones, reads so many: the next poll will want them
AHEAD_BYTES = 128 << 10  # but no more bytes than this


class _Taken:
    """What the answer has of one partition so far. Each batch is sent once, even if it was read several times. All of
    it was read from one `log`: in another one, other events may have the same offsets."""

    def __init__(self, log: object) -> None:
        self.log = log
        self.pieces: dict[int, LogPiece] = {}
        self.leases: list[Lease] = []


class GroupPoll:
    """One poll of a member. `among`: the partitions that it goes through, in this order."""

    def __init__(
        self,
        keeper: GroupKeeper,
        member: str,
        lease_ms: int,
        among: Sequence[SharedPartition],
        by_key: bool,
        max_records: int,
        max_bytes: int,
    ) -> None:
        self._keeper = keeper
        self._member = member
        self._lease_ms = lease_ms
        self._among = among
        self._by_key = by_key
        self._left = max_records
        self._room = max_bytes
        self._taken: dict[SharedPartition, _Taken] = {}
        self._keys: dict[SharedPartition, set[Hashable]] = {}  # with key order: the keys of the events leased so far
        # One time for the whole poll: else a short lease could end, and its event be leased twice in one answer.
        self._now = self._keeper.now_ms()

    def gather(self) -> SharedPartition | None:
        """Leases what can be read at once. If that is nothing because it would have to wait, gives the partition for
        which to call `gather_from`. Raises CorruptBatch, StorageError."""
        trouble: KrappyError | None = None
        for shared in self._among:
            try:
                while self._left > 0 and self._room > 0:
                    offset = shared.wanted(self._now, alone=not self._taken)
                    if offset is None:
                        break
                    taken, log = self._taken.get(shared), shared.log
                    if log is None or (taken is not None and taken.log != log):
                        raise BlockingIOError
                    read = self._keeper.reads.find(shared, offset, log)
                    if read is None:
                        span = shared.read_now(offset, *self._limits(shared, offset))
                        read = self._read(offset, span, log)
                    if read.end <= offset:  # the log is being cut: it has not got this any more
                        break
                    if self._taken and read.size_at(offset) > self._room:
                        self._keeper.reads.keep(shared, read)
                        self._room = 0
                        break
                    self._take(shared, offset, read)
            except BlockingIOError:
                if not self._taken:
                    return shared
                break
            except KrappyError as error:
                trouble = error  # of one partition; the others are served
        if trouble is not None and not self._taken:
            raise trouble
        return None

    async def gather_from(self, shared: SharedPartition, closed: Callable[[], bool]) -> None:
        """Leases from one partition, and waits for the disk. `closed()`: whether the member has left meanwhile."""
        async with shared.reading:
            try:
                await shared.find()
                offset, log = shared.wanted(self._now), shared.log
                if offset is None:
                    return
                span = await shared.read(offset, *self._limits(shared, offset))
            except OffsetOutOfRange:
                return  # retention has deleted the events, or the log is being cut: then they are looked for anew
            except NotLeader:
                return  # its leader is away: it has nothing to read until the leader is back, but other partitions may
            try:
                read = self._read(offset, span, log)
            except BlockingIOError:
                read = await large.opened(partial(self._read, offset, span, log, inline=False))
            there = not (closed() or shared.gone) and shared.is_sure
            if there and log is not None and log == shared.log:  # else what it has read may be lost
                self._now = self._keeper.now_ms()
                self._take(shared, offset, read)

    def answer(self, began: int) -> GroupPolled:
        """`began`: when the member began to wait for it, by the clock of leases (ms)."""
        polled = GroupPolled([], [], self._now - began)
        for shared, taken in self._taken.items():
            topic, index = shared.at
            leases = sorted(taken.leases)
            pieces = [taken.pieces[base] for base in sorted(taken.pieces)]
            data = group_reads.join(pieces, leases)
            polled.parts.append((topic, index, leases[0].first, shared.end, data))
            polled.leases.extend((topic, index, *lease) for lease in leases)
        return polled

    def _limits(self, shared: SharedPartition, offset: int) -> tuple[int, int]:
        """Bytes and records of a read."""
        if self._left >= AHEAD_RECORDS and offset >= shared.leases.frontier:
            return self._room, self._left
        return AHEAD_BYTES, AHEAD_RECORDS

    def _read(self, offset: int, span: Span, log: object, *, inline: bool = True) -> Read:
        return Read(offset, span, keys=self._by_key, log=log, inline=inline)

    def _take(self, shared: SharedPartition, offset: int, read: Read) -> None:
        """`read`: of the log as it is now."""
        log, pieces = read.part(offset, self._left, self._room)
        log = shared.with_epochs(log)
        alone = not self._taken
        mine = self._keys.setdefault(shared, set())
        leases = shared.leases.lease(self._now, self._member, self._lease_ms, log, self._left, alone=alone, mine=mine)
        shared.changed()
        count = sum(lease.size for lease in leases)
        there = sum(piece.header.count for piece in pieces)
        if count == there and log.end >= read.end:
            self._keeper.reads.drop(shared)
        else:
            self._keeper.reads.keep(shared, read)
        if not leases:
            return
        taken = self._taken.setdefault(shared, _Taken(read.log))
        taken.leases += leases
        for piece in pieces:
            taken.pieces.setdefault(piece.header.base_offset, piece)
        self._room -= sum(piece.header.size for piece in pieces) * count // there
        self._left = 0 if shared.leases.comes_alone(leases[-1]) else self._left - count
