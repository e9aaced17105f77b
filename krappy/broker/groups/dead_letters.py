"""Events that were delivered too often go to a dead-letter topic, unchanged, with headers that say where they are from.

They count as settled once they are durable there: a crash in between may write one twice, but loses none. The topic is
made when it is first needed, which counts in the quota (controller_mutation_rate) of whoever has joined the group last.
It has one partition, nothing expires (the events keep their own timestamps, which may be older than any retention), and
it takes events as large as their own topic does. An event from a compressed batch may be larger than that: it is
compressed again. An event that the topic refuses all the same, or for whose topic the quota has no room, stays dead in
its group, is reported (`dead_letter_failed`), and is tried again each minute.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from krappy.broker.groups import group_reads
from krappy.broker.groups.group_reads import Read
from krappy.broker.partition import large
from krappy.broker.partition.pending import record_size
from krappy.core.cluster.state import NOBODY
from krappy.errors import CoordinatorNotAvailable, InvalidTopic, KrappyError, NotLeader
from krappy.partitioner import home_for
from krappy.ports import StoredAt
from krappy.ports.audit import ASKED
from krappy.records import batch as batches
from krappy.records import codecs
from krappy.records.batch import Columns
from krappy.types import NO_TIMESTAMP, Record, TopicPartition, dead_letter_topic
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.groups.shared import SharedPartition
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.topic import Topic
    from krappy.core.leases import Lease
    from krappy.ports.cluster import LogPeersPort

AT_A_TIME = 500  # events under way
READ = 1 << 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # between attempts, while the topic refuses events
HEADERS_ROOM = 4096  # bytes that the headers may add


def _name(shared: SharedPartition) -> str:
    topic, group = shared.at[0], shared.group
    return dead_letter_topic(topic, group.name, group.settings.rules(topic).dead_letter)


def check_target(name: str, is_internal: Callable[[str], bool]) -> None:
    """Raises InvalidTopic for a topic that dead letters may not go to."""
    if is_internal(name):
        raise InvalidTopic(f"'{name}' is an internal topic")


class Undertaker:
    def __init__(self, runtime: Runtime, make_topic: Callable[..., Awaitable[Any]], peers: LogPeersPort | None) -> None:
        """`peers`: None: this broker is alone."""
        self._runtime = runtime
        self._peers = peers
        self._make_topic = make_topic
        self._closing = trio.Event()
        self._at_work = 0
        self._idle = trio.Event()
        self._idle.set()

    def bury(self, shared: SharedPartition) -> None:
        """Begins to publish this partition's dead events, and goes on until there are none. To be called only while
        `shared.burying` is false. Does nothing once closed."""
        if not self._closing.is_set():
            shared.burying = True
            self._at_work += 1
            self._idle = trio.Event()
            self._runtime.spawn(self._run, shared)

    async def close(self) -> None:
        """Starts nothing more, and waits for what is under way. Other dead events are published after a restart."""
        self._closing.set()
        await self._idle.wait()

    async def _run(self, shared: SharedPartition) -> None:
        ASKED.set(None)  # whoever gave an event back did not choose the topic that is made for it
        pause = FIRST_PAUSE_S
        group = shared.group
        try:
            while shared.leases.dead and not self._closing.is_set() and not shared.gone:
                try:
                    await self._bury_all(shared)
                    pause = FIRST_PAUSE_S
                except KrappyError as error:
                    if shared.gone or self._runtime.stopped:
                        return
                    name = _name(shared)
                    self._runtime.report("dead_letter_failed", topic=name, group=group.name, error=str(error))
                    with trio.move_on_after(pause):
                        await self._closing.wait()
                    pause = min(LONGEST_PAUSE_S, pause * 2)
        finally:
            shared.burying = False
            self._at_work -= 1
            if not self._at_work:
                self._idle.set()

    async def _bury_all(self, shared: SharedPartition) -> None:
        """Publishes all events that are dead now. Those that the topic refuses stay dead. Raises the last error."""
        trouble: KrappyError | None = None
        at = 0
        while not self._closing.is_set() and not shared.gone:
            await shared.find()
            graves = [grave for grave in shared.leases.graves() if grave.last >= at]
            if not graves:
                break
            target = await self._topic(shared)
            at, log = max(at, graves[0].first), shared.log
            span = await shared.partition.read(at, READ, max_records=AT_A_TIME)
            read = await large.opened(partial(Read, at, span, keys=False, log=log, inline=False))
            if log is None or log != shared.log:
                continue  # an election came between: what it has read may be lost
            trouble = await self._bury_some(shared, read, target) or trouble
            at = max(at + 1, read.end)
        if trouble is not None:
            raise trouble

    async def _bury_some(self, shared: SharedPartition, read: Read, target: Topic) -> KrappyError | None:
        """Publishes the dead events of a read. Refused ones stay dead; others do not wait for them, and are not written
        twice. Gives the last error."""
        trouble: KrappyError | None = None
        under_way: list[tuple[int, Later[StoredAt] | Later[None]]] = []
        size, cuts = 0, shared.cuts
        try:
            for piece, _ in group_reads.touching(read.pieces, shared.leases.graves()):
                if self._closing.is_set():
                    break
                columns = await large.decode(piece.data)
                # Asks for the graves again: a group that was reset meanwhile delivers its events anew.
                for _, some in group_reads.touching([piece], shared.leases.graves()):
                    for row, grave in _rows(columns, some):
                        if read.log != shared.log:
                            break
                        record = _record(shared, columns, row, grave)
                        offset = columns.offsets[row]
                        place = (offset if record.key is None else home_for(record.key, target.count)) % target.count
                        try:
                            if not shared.group.still_here:  # others may have settled it
                                text = "this broker can't be sure that it coordinates the group"
                                raise CoordinatorNotAvailable(text)
                            under_way.append((offset, await self._publish(target, place, record)))
                            size += len(record.value or b"")
                        except KrappyError as error:
                            trouble = error
                        if size > READ:
                            trouble = await _settle(shared, under_way, cuts) or trouble
                            size = 0
            trouble = await _settle(shared, under_way, cuts) or trouble
            if read.log == shared.log:
                shared.leases.settle_missing(read.part(read.start, AT_A_TIME, READ)[0])
        finally:
            shared.changed()
            shared.group.stir(shared)
        return trouble

    async def _publish(self, topic: Topic, place: int, record: Record) -> Later[StoredAt] | Later[None]:
        """Publishes to the partition's leader, which may be another broker. Raises KrappyError."""
        try:
            partition = topic.led(place)
        except NotLeader as error:
            leader = error.details.get("leader", NOBODY)
            if self._peers is None or leader == NOBODY:
                raise
            later: Later[None] = Later()
            self._runtime.spawn(self._send, self._peers, leader, topic, place, record, later)
            return later
        if record_size(record) <= partition.config.max_message_bytes:
            return partition.publish_record(record, taken=True)
        return partition.publish(await large.opened(partial(_compressed, record)), taken=True)

    async def _send(
        self, peers: LogPeersPort, leader: int, topic: Topic, place: int, record: Record, later: Later[None]
    ) -> None:
        try:
            plain = record_size(record) <= topic.config.max_message_bytes
            batch = await large.opened(partial(_compressed, record, codecs.NONE if plain else codecs.ZSTD))
            await peers.append(leader, TopicPartition(topic.name, place), topic.id, batch)
        except KrappyError as error:
            later.reject(error)
        else:
            later.resolve(None)

    async def _topic(self, shared: SharedPartition) -> Topic:
        name = _name(shared)
        topics = self._runtime.topics
        check_target(name, topics.is_internal)  # once more: the broker may have got another audit topic since
        if name not in topics:
            size = shared.partition.config.max_message_bytes + HEADERS_ROOM
            settings = {"retention.ms": -1, "max.message.bytes": size}
            if self._runtime.client_quotas.on:
                self._runtime.client_quotas.mutate(shared.group.payer, 1, strict=True)
            await self._make_topic(name, 1, settings, if_absent=True, alike=True)
        return topics.find(name)


def _rows(columns: Columns, graves: Iterable[Lease]) -> Iterator[tuple[int, Lease]]:
    """The rows of the records in these graves, each with its grave."""
    for grave in graves:
        start = bisect_left(columns.offsets, grave.first)
        for row in range(start, bisect_right(columns.offsets, grave.last, start)):
            yield row, grave


async def _settle(
    shared: SharedPartition, under_way: list[tuple[int, Later[StoredAt] | Later[None]]], cuts: int
) -> KrappyError | None:
    """Waits for these publishes, and settles the events, except for refused ones. Gives the last error. `cuts`: how
    often the position had gone back when they were read. If it has gone back since, other events may have their
    offsets."""
    trouble: KrappyError | None = None
    for offset, later in under_way:
        try:
            await later.wait()
        except KrappyError as error:
            trouble = error
        else:
            if shared.cuts == cuts:
                shared.leases.bury(offset, offset)
    under_way.clear()
    return trouble


def _compressed(record: Record, codec: int = codecs.ZSTD) -> bytes:
    """The record in a batch of its own."""
    headers, time = [record.headers], NO_TIMESTAMP if record.timestamp is None else record.timestamp
    return batches.encode([record.key], [record.value], timestamps=time, headers=headers, codec=codec)


def _record(shared: SharedPartition, columns: Columns, row: int, grave: Lease) -> Record:
    topic, partition = shared.at
    origin = {
        "topic": topic,
        "partition": str(partition),
        "offset": str(columns.offsets[row]),
        "group": shared.group.name,
        "deliveries": str(grave.deliveries),
    }
    headers = () if columns.headers is None else columns.headers[row]
    added = tuple((f"krappy-origin-{name}", value.encode()) for name, value in origin.items())
    time = max(NO_TIMESTAMP, columns.timestamps[row])  # its topic accepted any timestamp
    return Record(columns.values[row], columns.keys[row], (*headers, *added), time)
