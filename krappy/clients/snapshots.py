"""Snapshots that the broker holds for several readers; reading snapshots and logs as blocks of columns.

Every request is complete in itself: it names the snapshot or the topic, and where to go on. So a lost connection loses
only the answer in flight, and a reader that just stops leaves nothing behind at the broker.

In a cluster each leader holds a snapshot of the partitions that it leads, and the id names all these snapshots. A
broker holds its own for its time to live, even when it does not lead the partitions any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from krappy.clients import blocks
from krappy.clients.blocks import ColumnBlock
from krappy.clients.link import Link
from krappy.clients.replies import ReplySlot
from krappy.clients.router import PATIENCE, Router
from krappy.clients.runtime import ClientRuntime
from krappy.clients.scattering import check_in_place, counted
from krappy.clients.tables import KeyRangeChoice
from krappy.errors import (
    ConnectionLost,
    InvalidRequest,
    NotLeader,
    RequestTimeout,
    SnapshotGone,
    UnknownPartition,
)
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


class Holder(NamedTuple):
    """A snapshot at one broker. `broker`: its id, -1: the only one. `partitions`: those that it has; empty: all."""

    broker: int
    id: str
    partitions: frozenset[int] = frozenset()


def joined(holders: Sequence[Holder]) -> str:
    """One id for the snapshots of several brokers."""
    return "+".join(f"{each.broker}:{each.id}:{'.'.join(map(str, sorted(each.partitions)))}" for each in holders)


def holders_of(id: str) -> list[Holder]:
    """Raises SnapshotGone for what can't be the id of a snapshot."""
    if ":" not in id:
        return [Holder(-1, id)]
    try:
        parts = [each.split(":") for each in id.split("+")]
        return [Holder(int(at), held, frozenset(map(int, some.split(".")))) for at, held, some in parts]
    except ValueError:
        raise SnapshotGone(f"there is no snapshot '{id:.40}': it is not an id that a broker gives") from None


async def open_snapshot(
    router: Router,
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

    `measure`: bytes up to which `size` is exact; None: no size. Raises InvalidRequest, PolicyViolation."""
    splits, ttl_ms = _at_least_one(splits, "splits"), _milliseconds(ttl)

    def request(some: Sequence[int] | None, splits: int, among: int | None = None) -> messages.OpenSnapshot:
        return messages.OpenSnapshot(
            topic=topic,
            partitions=None if some is None else list(some),
            splits=splits,
            ttl_ms=ttl_ms,
            prefix=chosen.prefix,
            start=chosen.start,
            end=chosen.end,
            tombstones=tombstones,
            topic_id=topic_id,
            measure=measure,
            among=among,
        )

    if not router.known.several:
        try:
            return _snapshot(topic, *await _open_alone(router.home, request(partitions, splits)))
        except NotLeader as error:
            router.note(error)
            if not router.known.several:
                raise
    deadline = router.runtime.now() + router.timeout

    async def ask(count: int, among: int | None) -> list[tuple[Link, list[int], messages.SnapshotOpened]]:
        wanted = list(range(count)) if partitions is None else list(dict.fromkeys(partitions))
        if len(await router.split(topic, wanted, deadline)) > 1:
            await check_in_place(router, topic, deadline)
        opened: list[tuple[Link, list[int], messages.SnapshotOpened]] = []
        told = among if partitions is None else None
        try:
            await router.of_leaders(
                topic,
                wanted,
                lambda some: request(some, max(1, round(splits * len(some) / len(wanted))), told),
                messages.SnapshotOpened,
                opened,
            )
        except BaseException:
            for link, _, answer in opened:
                link.tell(messages.CloseSnapshot(answer.snapshot), messages.SnapshotClosed)
            raise
        return opened

    opened = await counted(router, topic, deadline, ask)
    holders = [Holder(router.links.id_of(link), answer.snapshot, frozenset(some)) for link, some, answer in opened]
    return _snapshot(topic, joined(holders), [answer for _, _, answer in opened])


async def _open_alone(link: Link, request: messages.OpenSnapshot) -> tuple[str, list[messages.SnapshotOpened]]:
    def abandoned(answer: messages.SnapshotOpened) -> None:
        link.tell(messages.CloseSnapshot(answer.snapshot), messages.SnapshotClosed)

    found = await link.ask(request, messages.SnapshotOpened, abandoned=abandoned)
    return found.snapshot, [found]


def _snapshot(topic: str, id: str, opened: Sequence[messages.SnapshotOpened]) -> Snapshot:
    offsets = {index: offset for each in opened for index, offset in each.offsets}
    ranges = [KeyRange(*some) for each in opened for some in each.ranges]
    sizes = [each.size for each in opened if each.size is not None]
    return Snapshot(id, topic, offsets, ranges, sum(sizes) if sizes else None)


async def keep_snapshot(router: Router, id: str, ttl: float | None) -> None:
    """Lets a snapshot live for `ttl` more seconds from now; None: for its own time to live."""
    ttl_ms = None if ttl is None else _milliseconds(ttl)
    for holder in holders_of(id):
        await HolderSource(router, holder).ask(messages.KeepSnapshot(holder.id, ttl_ms), messages.SnapshotKept)


async def close_snapshot(router: Router, id: str) -> None:
    """Closes a snapshot. A broker of a cluster that can't be reached closes its own part after the time to live."""
    for holder in holders_of(id):
        source = HolderSource(router, holder, None if holder.broker < 0 else PATIENCE)
        try:
            await source.ask(messages.CloseSnapshot(holder.id), messages.SnapshotClosed)
        except (ConnectionLost, RequestTimeout):
            if holder.broker < 0:
                raise


def _at_least_one(number: int, what: str) -> int:
    if type(number) is not int or not 1 <= number < 2**31:
        raise InvalidRequest(f"{what}={number!r}: give a whole number of at least 1")
    return number


def _milliseconds(ttl: float) -> int:
    if not 0 < ttl <= 86_400:
        raise InvalidRequest(f"ttl={ttl!r}: give seconds, more than 0 and no more than a day")
    return max(1, round(ttl * 1000))


class PageSource(Protocol):
    """Where pages are read from."""

    async def ask(self, request: Request, answer: type[A]) -> A:
        """For requests that may be sent twice."""

    def now(self) -> Link | None:
        """The link to it, if that is connected."""


class HolderSource:
    """The broker that holds a snapshot. Implements `PageSource`."""

    def __init__(self, router: Router, holder: Holder, timeout: float | None = None) -> None:
        self._router, self._broker = router, holder.broker
        self._timeout = router.timeout if timeout is None else timeout

    async def ask(self, request: Request, answer: type[A]) -> A:
        deadline = self._router.runtime.now() + self._timeout
        link = self._router.home
        if self._broker >= 0:
            link = await self._router.broker(self._broker, deadline)
        return await link.ask(request, answer, timeout=max(0.0, deadline - self._router.runtime.now()))

    def now(self) -> Link | None:
        return self._router.home if self._broker < 0 else self._router.broker_now(self._broker)


class LeaderSource:
    """The leader of a partition, whichever broker that is. Implements `PageSource`."""

    def __init__(self, router: Router, topic: str, partition: int) -> None:
        self._router, self._topic, self._partition = router, topic, partition

    async def ask(self, request: Request, answer: type[A]) -> A:
        return await self._router.ask(request, answer, self._topic, self._partition)

    def now(self) -> Link | None:
        return self._router.leader_now(self._topic, self._partition)


class SnapshotPages(Generic[A]):
    """Reads blocks one after the other. It asks for the next one while the caller works on the one before."""

    def __init__(self, source: PageSource, runtime: ClientRuntime, answer: type[A], block_bytes: int) -> None:
        self._source = source
        self._runtime = runtime
        self._answer = answer
        self._block_bytes = _at_least_one(block_bytes, "block_bytes")
        self._ahead: tuple[Link, ReplySlot, int] | None = None
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
            answer = await self._source.ask(self._request(), self._answer)
        block = self._take(answer)
        if not self._ended:
            self._ask()
        return block

    def _ask(self) -> None:
        link = self._source.now()
        if link is not None:
            slot = ReplySlot(self._runtime.signal())
            with suppress(ConnectionLost, RequestTimeout):
                self._ahead = link, slot, link.post(self._request(), self._answer, slot, patience=link.timeout)

    async def _came(self) -> A | None:
        """The answer to the request sent ahead; None when there was none, or it failed: ask again."""
        if self._ahead is None:
            return None
        link, slot, id = self._ahead
        if not await slot.wait(0.0 if link.closed else link.timeout):
            link.forget(id)
        self._ahead = None
        return slot.result if isinstance(slot.result, self._answer) else None

    def abandon(self) -> None:
        """As `close`, for a finalizer: if the lock is taken, an answer still to come is kept until it comes."""
        self._runtime.if_free(self.close)

    def close(self) -> None:
        """Stops reading: an answer still to come is dropped."""
        self._ended = True
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead[0].forget(ahead[2])


class SnapshotReading(SnapshotPages[messages.SnapshotRead]):
    """Reads one range of a snapshot. `tombstones` None: as the snapshot was opened. Raises InvalidRequest,
    SnapshotGone, UnknownPartition."""

    def __init__(
        self,
        router: Router,
        id: str,
        key_range: KeyRange,
        tombstones: bool | None,
        columns: Sequence[str],
        block_bytes: int,
    ) -> None:
        self._partition, self._start, self._end = key_range
        holders = holders_of(id)
        at = next((each for each in holders if not each.partitions or self._partition in each.partitions), None)
        if at is None:
            there = sorted(index for each in holders for index in each.partitions)
            raise UnknownPartition(f"the snapshot has partitions {there}, not {self._partition}")
        super().__init__(HolderSource(router, at), router.runtime, messages.SnapshotRead, block_bytes)
        self._id, self._tombstones = at.id, tombstones
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

    def __init__(self, router: Router, span: messages.ReadLog, columns: Sequence[str]) -> None:
        """`span`: all offsets to read, `max_bytes` of them in a block. Raises InvalidRequest."""
        source = LeaderSource(router, span.topic, span.partition)
        super().__init__(source, router.runtime, messages.LogRead, span.max_bytes)
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
        found, _, _ = events.read(span.topic, span.partition, answer.records, self._offset, span.end)
        self._offset = answer.next_offset
        self._ended = self._offset >= span.end
        return blocks.of_events(span.partition, found, self._columns)
