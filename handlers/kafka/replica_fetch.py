"""Fetch (1) of a replica: another broker reads a partition that this one leads, up to the log's end.

- The offset that it asks for tells what it has on its disk. That may commit events, so it counts only in the leader's
  epoch, from a replica of the partition, and if the replica's log is the beginning of the leader's (KIP-595).
- An answer has only the partitions with news: events, a high watermark or a log start that the replica was not told, an
  error, or where its log parts from the leader's. What it was told is remembered with the connection.
- A request without news waits for some, whatever its min_bytes.
- An offset out of range is answered with the offset where the replica starts over: the log start, or where the batch
  begins that contains it. From there on it may ask, below the log start, because it has whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, NamedTuple

from krappy.core.security.operations import Op
from krappy.errors import KrappyError, OffsetOutOfRange, UnknownTopic
from krappy.handlers.kafka.registry import Message
from krappy.handlers.kafka.sources import wrong_epoch
from krappy.handlers.waits import bounded_ms
from krappy.ports import KafkaSessionPort, LeaderPort, Raw, TopicPort
from krappy.records.batch import read_header
from krappy.types import FilePart
from krappy.waiting import Signal
from krappy.wire.kafka import Code, code_for

BY_ID_SINCE = 13  # the version from which topics are named by their ids (KIP-516)
LEAST_VERSION = 12  # the first with last_fetched_epoch (KIP-595)
MANY = 500  # partitions that are found or read in one turn
LARGE = 2000  # a request that names more partitions takes much memory, so it waits at most
LARGE_SECONDS = 1.0  # this long, and then its replica asks again
MAX_BYTES = 55 << 20  # of one answer
LONG_MS = 100  # an answer that has taken this long to make is sent without the partitions that are left,
WORTH = 64 << 10  # if it has this many bytes of records
Told = tuple[int, int, int]  # leader epoch, high watermark, log start


class ReplicaId(NamedTuple):
    """Who asks: a broker, in its broker epoch (-1: not known)."""

    broker: int
    epoch: int


def replica_of(request: Message) -> ReplicaId | None:
    """The replica that sent this Fetch; None for a consumer's."""
    state = request["replica_state"]
    if state["replica_id"] >= 0:
        return ReplicaId(state["replica_id"], state["replica_epoch"])
    return ReplicaId(request["replica_id"], -1) if request["replica_id"] >= 0 else None


class ReplicaWanted:
    """One partition of a request. `key`: what stands for it in what the replica was told. `is_below`: its offset is
    below the log start."""

    __slots__ = ("asked", "is_below", "key", "offset", "port", "row", "topic")

    def __init__(
        self, topic: Message, asked: Message, key: tuple[int, bytes, int], found: LeaderPort | Message
    ) -> None:
        """`topic`: the request's part for its topic. `found`: the partition, or what is to be answered at once."""
        self.topic, self.asked, self.key = topic, asked, key
        self.offset: int = asked["fetch_offset"]
        self.port = None if isinstance(found, dict) else found
        self.row = found if isinstance(found, dict) else None
        self.is_below = self.port is not None and self.offset < self.port.start_offset

    @property
    def is_led(self) -> bool:
        """Whether it is still led in the epoch of the request."""
        port = self.port
        return port is not None and port.gone is None and port.epoch == self.asked["current_leader_epoch"]


class ReplicaSign(NamedTuple):
    """A signal of a partition, as `wait_for_moves` takes it."""

    wanted: ReplicaWanted
    moved: Signal


class ReplicaRead(NamedTuple):
    """One read of a partition, with the arguments of `LeaderPort.fetch_all`."""

    port: LeaderPort
    offset: int
    max_bytes: int
    min_one: bool


class ReplicaFetch:
    """One request."""

    def __init__(self, session: KafkaSessionPort, request: Message, version: int, replica: ReplicaId) -> None:
        self.session, self.request, self.version, self.replica = session, request, version, replica
        self.wanted: list[ReplicaWanted] = []
        self.at_once = request["max_wait_ms"] <= 0
        self._told: dict[tuple[int, bytes, int], Told] = session.state.setdefault("replica_told", {})
        self._moved: dict[int, ReplicaWanted] = {}  # the partitions to look at while it waits, by their ids

    # --- what is asked

    def find(self) -> Iterator[None]:
        """Finds the partitions, and notes how far the replica is; yields after each `MANY`, so that others have their
        turn."""
        access = self.session.access
        for topic in self.request["topics"]:
            if self.version >= BY_ID_SINCE:
                found = access.find_topic_by_id(topic["topic_id"], Op.READ)
            else:
                found = access.find_topic(topic["topic"], Op.READ)
            for asked in topic["partitions"]:
                key = (self.replica.broker, found.id if found is not None else b"", asked["partition"])
                wanted = ReplicaWanted(topic, asked, key, self._find(found, asked))
                self.at_once = self.at_once or self._has_news(wanted)
                self.wanted.append(wanted)
                if len(self.wanted) % MANY == 0:
                    yield
        self.at_once = self.at_once or not self.wanted

    def _find(self, topic: TopicPort | None, asked: Message) -> LeaderPort | Message:
        index, offset = asked["partition"], asked["fetch_offset"]
        if topic is None:
            by_id = self.version >= BY_ID_SINCE
            return refused(index, Code.UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            port = topic.led(index)
            if port.gone is not None:
                raise port.gone
        except KrappyError as error:
            return refused(index, code_for(error))
        wrong = self._wrong(topic, port, asked)
        if wrong:
            return refused(index, wrong)
        if offset < port.start_offset:
            return port
        epoch = asked["last_fetched_epoch"]  # below 0: the replica has no event that could be another one
        parts = port.epochs.diverging(epoch, offset, port.end_offset) if epoch >= 0 else None
        if parts is not None:
            diverging = {"epoch": parts[0], "end_offset": parts[1]}
            return {**refused(index, Code.NONE, port.start_offset), "diverging_epoch": diverging}
        if offset > port.end_offset:  # the replica's log is empty
            return refused(index, Code.OFFSET_OUT_OF_RANGE, port.start_offset)
        port.fetched_by(self.replica.broker, self.replica.epoch, offset)
        return port

    def _wrong(self, topic: TopicPort, port: LeaderPort, asked: Message) -> Code:
        """Why the replica is not served here, NONE if it is."""
        epoch, replica = asked["current_leader_epoch"], self.replica.broker
        if self.version < LEAST_VERSION or epoch < 0:
            return Code.INVALID_REQUEST
        wrong = wrong_epoch(port, epoch)
        if wrong:
            return wrong
        replicas = topic.image.partitions[port.index].replicas
        if replica == self.session.broker.id or replica not in replicas:
            return Code.UNKNOWN_LEADER_EPOCH  # as Kafka answers: this broker's image may be older than the replica's
        return Code.NONE

    def _has_news(self, wanted: ReplicaWanted) -> bool:
        port = wanted.port
        if port is None or not wanted.is_led:
            return True
        return wanted.is_below or wanted.offset < port.end_offset or self._told.get(wanted.key) != _told(port)

    # --- when to answer

    def _some_news(self) -> bool:
        moved, self._moved = self._moved, {}
        return any(self._has_news(wanted) for wanted in moved.values())

    async def _until_news(self) -> None:
        self._moved = {id(wanted): wanted for wanted in self.wanted}
        signs = [
            ReplicaSign(wanted, signal)
            for wanted in self.wanted
            if wanted.port is not None
            for signal in (wanted.port.moved, wanted.port.grown)
        ]

        def moved(sign: ReplicaSign) -> None:
            self._moved[id(sign.wanted)] = sign.wanted

        seconds = bounded_ms(self.request["max_wait_ms"]) / 1000
        if len(self.wanted) > LARGE:
            seconds = min(seconds, LARGE_SECONDS)
        await self.session.broker.wait_for_moves(signs, self._some_news, seconds, told=moved)

    # --- the answer

    @property
    def _room(self) -> int:
        """How many bytes of records the answer may have."""
        return max(0, min(int(self.request["max_bytes"]), MAX_BYTES))

    def now(self) -> Message | None:
        """The answer from memory; None if the request has to wait for news.

        Raises BlockingIOError when it would have to wait for the disk.
        """
        if not self.at_once or len(self.wanted) >= MANY:
            return None
        reads = self._reads(min(self._room, self.session.answer_bytes), lambda: False)
        try:
            read = next(reads)
            while True:
                assert read is not None  # fewer than `MANY` partitions: there are no turns
                try:
                    raw = read.port.fetch_all_now(read.offset, read.max_bytes, min_one=read.min_one)
                except KrappyError as error:
                    read = reads.throw(error)
                else:
                    read = reads.send(raw)
        except StopIteration as done:
            return self._answer(done.value)

    async def wait(self) -> Message:
        """The answer, once it is time for it."""
        if not self.at_once:
            await self._until_news()
        async with self.session.answering(self._room) as room:
            clock = self.session.broker.clock
            begun = clock.steady_ms()
            reads = self._reads(room, lambda: clock.steady_ms() - begun > LONG_MS)
            try:
                read = next(reads)
                while True:
                    if read is None:
                        await self.session.pause()
                        read = next(reads)
                        continue
                    try:
                        raw = await read.port.fetch_all(read.offset, read.max_bytes, min_one=read.min_one)
                    except KrappyError as error:
                        read = reads.throw(error)
                    else:
                        read = reads.send(raw)
            except StopIteration as done:
                return self._answer(done.value)

    def _reads(
        self, room: int, late: Callable[[], bool]
    ) -> Generator[ReplicaRead | None, Raw | None, list[tuple[ReplicaWanted, Message]]]:
        """Yields the reads that the request needs, one after the other, about `room` bytes at most in all. Takes the
        result of each by `send`, or its KrappyError by `throw`. Yields None when others should have a turn. Returns the
        partitions with news, and what is to be answered.

        `late()`: whether the answer has taken so long that it is sent without the partitions that are left. The replica
        puts on disk meanwhile what it has.
        """
        left, first = room, True
        found: list[tuple[ReplicaWanted, Message]] = []
        for number, wanted in enumerate(self.wanted):
            if number % MANY == MANY - 1:
                yield None
            port, index = wanted.port, wanted.asked["partition"]
            if port is None:
                assert wanted.row is not None
                found.append((wanted, wanted.row))
                continue
            if not self._has_news(wanted):
                continue
            most = min(wanted.asked["partition_max_bytes"], left)
            if room - left >= WORTH and late():
                most = 0
            raw, offset = None, wanted.offset
            try:
                if wanted.is_below:
                    offset = port.start_offset
                    begins = _begins((yield ReplicaRead(port, offset, 1, True)), offset)
                    is_empty = wanted.asked["last_fetched_epoch"] < 0
                    if wanted.is_led and not (is_empty and wanted.offset == begins):
                        found.append((wanted, refused(index, Code.OFFSET_OUT_OF_RANGE, begins)))
                        continue
                if wanted.is_led and offset < port.end_offset and (first or most > 0):
                    raw = yield ReplicaRead(port, offset, max(1, most), first)
                if port.gone is not None:
                    raise port.gone
            except KrappyError as error:
                start = port.start_offset if isinstance(error, OffsetOutOfRange) else -1
                found.append((wanted, refused(index, self._code(error), start)))
                continue
            if not wanted.is_led:
                found.append((wanted, refused(index, Code.FENCED_LEADER_EPOCH)))
                continue
            if raw is not None and (got := len(raw.records)):
                first = False
                left -= got
            self._told[wanted.key] = _told(port)
            found.append((wanted, _row(index, port, raw)))
        return found

    def _code(self, error: KrappyError) -> Code:
        by_id = self.version >= BY_ID_SINCE
        return Code.UNKNOWN_TOPIC_ID if by_id and isinstance(error, UnknownTopic) else code_for(error)

    def _answer(self, found: list[tuple[ReplicaWanted, Message]]) -> Message:
        topics: dict[int, Message] = {}
        for wanted, row in found:
            asked = wanted.topic
            topic = topics.setdefault(
                id(asked), {"topic": asked["topic"], "topic_id": asked["topic_id"], "partitions": []}
            )
            topic["partitions"].append(row)
        return {"error_code": 0, "session_id": 0, "responses": list(topics.values())}


def fetch_for_replica(
    session: KafkaSessionPort, request: Message, version: int, replica: ReplicaId
) -> Message | Coroutine[Any, Any, Message]:
    work = ReplicaFetch(session, request, version, replica)
    finding = work.find()
    for _ in finding:
        return _find_many(session, work, finding)
    if session.ready:
        try:
            answer = work.now()
            if answer is not None:
                return answer
        except BlockingIOError:
            pass
    return work.wait()


async def _find_many(session: KafkaSessionPort, work: ReplicaFetch, finding: Iterator[None]) -> Message:
    for _ in finding:
        await session.pause()
    return await work.wait()


def _told(port: LeaderPort) -> Told:
    return port.epoch, port.high_watermark, port.start_offset


def _row(index: int, port: LeaderPort, raw: Raw | None) -> Message:
    return {
        "partition_index": index,
        "error_code": 0,
        "high_watermark": port.high_watermark,
        "log_start_offset": port.start_offset,
        "aborted_transactions": None,
        "records": b"" if raw is None else raw.records,
    }


def _begins(raw: Raw | None, offset: int) -> int:
    """Where the batch begins that contains `offset`, which was read for this."""
    assert raw is not None
    assert not isinstance(raw.records, FilePart)  # so little is not sent from the file
    return min(offset, read_header(raw.records).base_offset) if len(raw.records) else offset


def refused(index: int, error: Code, log_start: int = -1) -> Message:
    return {
        "partition_index": index,
        "error_code": error,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": log_start,
        "aborted_transactions": None,
        "records": b"",
    }
