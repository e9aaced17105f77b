"""Snapshots that the broker holds for several readers; reading snapshots and logs as blocks of columns.

Every request is complete in itself: it names the snapshot or the topic, and where to go on. So a lost connection loses
only the answer in flight, and a reader that just stops leaves nothing behind at the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from krappy.clients import blocks
from krappy.clients.blocks import ColumnBlock
from krappy.clients.link import Link, ReplySlot
from krappy.clients.tables import KeyRangeChoice
from krappy.errors import ConnectionLost, InvalidRequest, RequestTimeout
from krappy.wire import messages
from krappy.wire.messages import Answer, Request

A = TypeVar("A", bound=Answer)
BLOCK_BYTES = 1 << 20


class KeyRange(NamedTuple):
    """Part of a partition's table: keys from `start` (inclusive) to `end` (exclusive); None: no bound."""

    partition: int
    start: bytes | None = None
    end: bytes | None = None


@dataclass(frozen=True)
class Snapshot:
    """A table as of one moment, held by the broker. Plain values: it may be pickled and sent to other processes."""

    id: str
    topic: str
    offsets: dict[int, int]  # by partition: the snapshot includes exactly the events before this offset
    ranges: list[KeyRange]  # together the whole table, without overlap
    size: int | None = None  # bytes of its keys and entries; None: not asked for


async def open_snapshot(
    link: Link,
    topic: str,
    partitions: Sequence[int] | None,
    splits: int,
    ttl: float,
    chosen: KeyRangeChoice,
    tombstones: bool,
    topic_id: str | None,
    measure: int | None = None,
) -> Snapshot:
    """Opens a snapshot of about `splits` ranges, which ends when it is not used for `ttl` seconds.

    `measure`: bytes up to which `size` is exact; None: no size. Raises InvalidRequest."""
    request = messages.OpenSnapshot(
        topic=topic,
        partitions=None if partitions is None else list(partitions),
        splits=_at_least_one(splits, "splits"),
        ttl_ms=_milliseconds(ttl),
        prefix=chosen.prefix,
        start=chosen.start,
        end=chosen.end,
        tombstones=tombstones,
        topic_id=topic_id,
        measure=measure,
    )

    def abandoned(answer: messages.SnapshotOpened) -> None:
        link.tell(messages.CloseSnapshot(answer.snapshot), messages.SnapshotClosed)

    found = await link.ask(request, messages.SnapshotOpened, abandoned=abandoned)
    return Snapshot(found.snapshot, topic, dict(found.offsets), [KeyRange(*each) for each in found.ranges], found.size)


async def keep_snapshot(link: Link, id: str, ttl: float | None) -> None:
    """Lets a snapshot live for `ttl` more seconds from now; None: for its own time to live."""
    request = messages.KeepSnapshot(id, None if ttl is None else _milliseconds(ttl))
    await link.ask(request, messages.SnapshotKept)


async def close_snapshot(link: Link, id: str) -> None:
    await link.ask(messages.CloseSnapshot(id), messages.SnapshotClosed)


def _at_least_one(number: int, what: str) -> int:
    if type(number) is not int or not 1 <= number < 2**31:
        raise InvalidRequest(f"{what}={number!r}: give a whole number of at least 1")
    return number


def _milliseconds(ttl: float) -> int:
    if not 0 < ttl <= 86_400:
        raise InvalidRequest(f"ttl={ttl!r}: give seconds, more than 0 and no more than a day")
    return max(1, round(ttl * 1000))


class SnapshotPages(Generic[A]):
    """Reads blocks one after the other. It asks for the next one while the caller works on the one before."""

    def __init__(self, link: Link, answer: type[A], block_bytes: int) -> None:
        self._link = link
        self._answer = answer
        self._block_bytes = _at_least_one(block_bytes, "block_bytes")
        self._ahead: tuple[Request, ReplySlot, int] | None = None
        self._ended = False

    def _request(self) -> Request:
        """The request for the next part."""
        raise NotImplementedError

    def _take(self, answer: A) -> ColumnBlock:
        """The block of an answer. Notes where to go on, or that this was the last."""
        raise NotImplementedError

    async def block(self) -> ColumnBlock | None:
        """The next rows. None: there are no more."""
        while not self._ended:
            block = await self._next()
            if block.rows:
                return block
        return None

    async def _next(self) -> ColumnBlock:
        answer = await self._came()
        if answer is None:
            answer = await self._link.ask(self._request(), self._answer)
        block = self._take(answer)
        if not self._ended:
            self._ask()
        return block

    def _ask(self) -> None:
        request, slot = self._request(), ReplySlot(self._link.runtime.signal())
        with suppress(ConnectionLost, RequestTimeout):
            self._ahead = request, slot, self._link.post(request, self._answer, slot, patience=self._link.timeout)

    async def _came(self) -> A | None:
        """The answer to the request sent ahead; None when there was none, or it failed: ask again."""
        if self._ahead is None:
            return None
        _, slot, id = self._ahead
        if not await slot.wait(0.0 if self._link.closed else self._link.timeout):
            self._link.forget(id)
        self._ahead = None
        return slot.result if isinstance(slot.result, self._answer) else None

    def abandon(self) -> None:
        """As `close`, for a finalizer: if the lock is taken, an answer still to come is kept until it comes."""
        self._link.runtime.if_free(self.close)

    def close(self) -> None:
        """Stops reading: an answer still to come is dropped."""
        self._ended = True
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._link.forget(ahead[2])


class SnapshotReading(SnapshotPages[messages.SnapshotRead]):
    """Reads one range of a snapshot. `tombstones` None: as the snapshot was opened. Raises InvalidRequest."""

    def __init__(
        self,
        link: Link,
        id: str,
        key_range: KeyRange,
        tombstones: bool | None,
        columns: Sequence[str],
        block_bytes: int,
    ) -> None:
        super().__init__(link, messages.SnapshotRead, block_bytes)
        self._id, self._tombstones = id, tombstones
        self._partition, self._start, self._end = key_range
        self._columns = blocks.check_columns(columns)

    def _request(self) -> messages.ReadSnapshot:
        return messages.ReadSnapshot(
            self._id,
            self._partition,
            self._start,
            self._end,
            self._columns,
            self._tombstones,
            self._block_bytes,
        )

    def _take(self, answer: messages.SnapshotRead) -> ColumnBlock:
        self._start = answer.next
        self._ended = answer.next is None
        return blocks.of_answer(self._partition, answer)


class LogReading(SnapshotPages[messages.LogRead]):
    """Reads a part of one partition's log."""

    def __init__(self, link: Link, span: messages.ReadLog, columns: Sequence[str]) -> None:
        """`span`: all offsets to read, `max_bytes` of them in a block. Raises InvalidRequest."""
        super().__init__(link, messages.LogRead, span.max_bytes)
        if not 0 <= span.offset <= span.end:
            raise InvalidRequest(
                f"offsets from {span.offset} to {span.end}: both must be at least 0, and the end not below the start"
            )
        self._span, self._offset = span, span.offset
        self._columns = frozenset(blocks.check_columns(columns))
        self._ended = span.offset == span.end

    def _request(self) -> messages.ReadLog:
        span = self._span
        return messages.ReadLog(span.topic, span.partition, self._offset, span.end, self._block_bytes, span.topic_id)

    def _take(self, answer: messages.LogRead) -> ColumnBlock:
        from krappy.clients import events  # imports the codecs of record batches, which only logs need

        span = self._span
        found, _ = events.read(span.topic, span.partition, answer.records, self._offset, span.end)
        self._offset = answer.next_offset
        self._ended = self._offset >= span.end
        return blocks.of_events(span.partition, found, self._columns)
