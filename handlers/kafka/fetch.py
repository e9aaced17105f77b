"""Fetch (1): reads record batches.

- An offset inside a batch brings the whole batch. The last batch of a partition may be cut short; but the first
  partition that has events brings at least one whole batch, however large.
- An answer that has taken long to make is sent without the partitions that are left.
- A request is answered at once if it may not wait, names no partitions, meets an error, or has min_bytes. Otherwise it
  waits until its partitions move; waiting costs no work.
- There are no fetch sessions (KIP-227). The answer's session id is 0, which tells the client to name all its partitions
  each time. A request with session epoch 0 or -1 names them all, and is served. Any other epoch continues a session:
  FETCH_SESSION_ID_NOT_FOUND.
- A request whose client's login ends while it waits is answered without partitions then.
- A consumer that is over its quota is answered without partitions (KIP-219). A consumer that has a quota gets at most
  what it may have in a second, or one batch.
- A replica, which names its broker id, reads differently: replica_fetch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError, UnknownTopic
from krappy.handlers.kafka.fetch_work import Reads, answered, never_late, read_all, read_now, room_of
from krappy.handlers.kafka.leader_hints import LeaderHints
from krappy.handlers.kafka.registry import Message, serves
from krappy.handlers.kafka.replica_fetch import fetch_for_replica, replica_of
from krappy.handlers.kafka.sources import topic_read, wrong_epoch
from krappy.handlers.waits import bounded_ms
from krappy.ports import KafkaSessionPort, Raw, SourcePort, SourceTopicPort
from krappy.wire.kafka import ApiKey, Code, code_for

BY_ID_SINCE = 13  # the version from which topics are named by their ids (KIP-516)
HINTS_SINCE = 16  # the version from which an answer has leaders and their addresses (KIP-951)
READ_COMMITTED = 1
DEBUGGING = -2  # the replica id that kafka-replica-verification.sh sends: it reads from followers, too
FULL = (0, -1)  # session epochs of a request that names all its partitions: a new session, or none
NOTHING = {"error_code": 0, "session_id": 0, "responses": [], "node_endpoints": []}
MANY = 500  # partitions that are read in one turn
LARGE = 2000  # a request that names more partitions takes much memory: it waits LARGE_SECONDS at most
LARGE_SECONDS = 1.0  # after that its client asks again


class Wanted(NamedTuple):
    """One partition of a request, found."""

    asked: Message
    source: SourcePort | None  # None when there is an error
    error: Code
    by_id: bool
    topic: SourceTopicPort | None

    @property
    def offset(self) -> int:
        return int(self.asked["fetch_offset"])


def limit_of(source: SourcePort, committed: bool) -> int:
    """The offset before which events may be read now."""
    return source.last_stable_offset if committed else source.high_watermark


class SourceRead(NamedTuple):
    """One read of a source, with the arguments of `SourcePort.fetch`."""

    source: SourcePort
    offset: int
    max_bytes: int
    limit: int
    min_one: bool

    def now(self) -> Raw:
        return self.source.fetch_now(self.offset, self.max_bytes, self.limit, min_one=self.min_one)

    async def read(self) -> Raw:
        return await self.source.fetch(self.offset, self.max_bytes, self.limit, min_one=self.min_one)


class Fetch:
    """One request."""

    def __init__(self, session: KafkaSessionPort, request: Message, version: int) -> None:
        self.session = session
        self.request = request
        self.committed = request["isolation_level"] == READ_COMMITTED
        self.by_id = version >= BY_ID_SINCE
        self.topics: list[tuple[Message, list[Wanted]]] = []
        self.wanted: list[Wanted] = []
        self._is_debugging = DEBUGGING in (request["replica_id"], request["replica_state"]["replica_id"])
        self.failed = False  # a partition has an error, which is answered at once
        self._moved: dict[int, Wanted] = {}  # the partitions to look at (again) while it waits, by their sources' ids
        self._there: dict[int, int] = {}  # bytes that were found in each
        self._bytes = 0  # the sum of `_there`
        self._read = 0  # bytes of records in the answer
        self._access = session.access.version
        self._hints = LeaderHints(session, version >= HINTS_SINCE)
        self._share = session.fetch_share()

    def find(self) -> Iterator[None]:
        """Finds the partitions asked for; yields after each `MANY`, so that others have their turn."""
        for asked in self.request["topics"]:
            topic = topic_read(self.session, asked["topic"], asked["topic_id"], self.by_id)
            found: list[Wanted] = []
            self.topics.append((asked, found))
            for partition in asked["partitions"]:
                wanted = self._find(topic, partition, self.by_id)
                found.append(wanted)
                self.wanted.append(wanted)
                if len(self.wanted) % MANY == 0:
                    yield

    def _find(self, topic: SourceTopicPort | Code, asked: Message, by_id: bool) -> Wanted:
        source, error = None, Code.NONE
        if isinstance(topic, Code):
            error = topic
        else:
            try:
                source = self._source(topic, asked["partition"])
            except KrappyError as refused:
                error = code_for(refused)
            else:
                error = wrong_epoch(source, asked["current_leader_epoch"])
                if not error and not source.start_offset <= asked["fetch_offset"] <= source.readable_end:
                    error = Code.OFFSET_OUT_OF_RANGE
                    source.out_of_range()
        if error:
            self.failed, source = True, None
        return Wanted(asked, source, error, by_id, None if isinstance(topic, Code) else topic)

    def _source(self, topic: SourceTopicPort, index: int) -> SourcePort:
        """Raises NotLeader, UnknownPartition."""
        if self._is_debugging:
            found = self.session.access.find_topic_by_id(topic.id, Op.READ)
            if found is not None:
                return found.held(index)
        return topic.led(index)

    # --- when to answer

    @property
    def at_once(self) -> bool:
        return self._share == 0 or self.failed or not self.wanted or self.request["max_wait_ms"] <= 0

    def enough(self) -> bool:
        """Whether there are min_bytes to read, or another reason to answer now.

        It looks only at partitions that have moved: a request may name very many, and one event moves one of them.
        """
        least = self.request["min_bytes"]
        if least <= 0 or self._access != self.session.access.version:
            return True
        moved, self._moved = self._moved, {}
        for at, wanted in moved.items():
            source, offset = wanted.source, wanted.offset
            if source is None or source.gone is not None or offset < source.start_offset:
                return True
            limit = limit_of(source, self.committed)
            if offset < limit:
                if least <= 1:
                    return True
                try:
                    found = source.available(offset, wanted.asked["partition_max_bytes"], limit)
                except (KrappyError, BlockingIOError):
                    return True
                self._bytes += found - self._there.get(at, 0)
                self._there[at] = found
                if self._bytes >= least:
                    return True
        return False

    async def _until_enough(self) -> None:
        by_source = {id(wanted.source): wanted for wanted in self.wanted}
        self._moved = dict(by_source)

        def moved(source: SourcePort) -> None:
            self._moved[id(source)] = by_source[id(source)]

        sources = [wanted.source for wanted in self.wanted if wanted.source is not None]
        seconds = bounded_ms(self.request["max_wait_ms"], self.session.proved_for) / 1000
        if len(sources) > LARGE:
            seconds = min(seconds, LARGE_SECONDS)
        await self.session.broker.wait_for_moves(sources, self.enough, seconds, told=moved)

    # --- the answer

    @property
    def _room(self) -> int:
        room = room_of(self.request)
        return room if self._share is None else min(room, self._share)

    def now(self) -> Message | None:
        """The answer from memory; None if the request has to wait for more bytes.

        Raises BlockingIOError when it would have to wait for the disk.
        """
        if self._share == 0:
            return NOTHING
        found = read_now(self._reads(min(self._room, self.session.answer_bytes), never_late))
        return self._answer(found) if self.at_once or self._read >= self.request["min_bytes"] else None

    async def wait(self) -> Message:
        """The answer, once it is time for it."""
        if not self.at_once:
            await self._until_enough()
        if (share := self.session.fetch_share()) == 0:
            return NOTHING
        self._share = share
        async with self.session.answering(self._room) as room:
            if not self.session.proved_for:
                return NOTHING
            await self._find_again()
            found = await read_all(self.session, room, self._reads)
            while await self._find_again():
                found = await read_all(self.session, room, self._reads)
            return self._answer(found)

    async def _find_again(self) -> bool:
        """If ACLs have changed, finds anew what the client may read. Returns whether they have."""
        version = self.session.access.version
        if self._access == version:
            return False
        self._access, self.topics, self.wanted = version, [], []
        for _ in self.find():
            await self.session.pause()
        return True

    def _reads(self, room: int, late: Callable[[int], bool]) -> Reads[list[Message]]:
        """Returns the partitions of the answer."""
        left, first = room, True
        found: list[Message] = []
        for number, wanted in enumerate(self.wanted):
            if number % MANY == MANY - 1 and len(self.wanted) > MANY:
                yield None
            source = wanted.source
            if source is None:
                found.append(self._refused(wanted, wanted.error))
                continue
            try:
                offset, limit = wanted.offset, limit_of(source, self.committed)
                most = min(wanted.asked["partition_max_bytes"], left)
                if late(room - left):
                    most = 0
                raw = None
                if offset < limit and (first or most > 0):
                    raw = yield SourceRead(source, offset, max(1, most), limit, first)
                found.append(self._partition(wanted, source, raw))
            except KrappyError as error:
                self.failed = True
                found.append(self._refused(wanted, _code(error, wanted)))
                continue
            if raw is not None and (got := len(raw.records)):
                first = False
                left -= got
        self._read = room - left
        return found

    def _partition(self, wanted: Wanted, source: SourcePort, raw: Raw | None) -> Message:
        if source.gone is not None:
            raise source.gone
        if error := wrong_epoch(source, wanted.asked["current_leader_epoch"]):  # its log may have been cut meanwhile
            return self._refused(wanted, error)
        answer: Message = {
            "partition_index": wanted.asked["partition"],
            "error_code": 0,
            "high_watermark": source.high_watermark,
            "last_stable_offset": source.last_stable_offset,
            "log_start_offset": source.start_offset,
            "aborted_transactions": None,
            "records": b"" if raw is None else raw.records,
        }
        if self.committed:
            aborted: Sequence[tuple[int, int]] = []
            if raw is not None:
                aborted = source.aborted(wanted.offset, raw.end)
            answer["aborted_transactions"] = [{"producer_id": id, "first_offset": first} for id, first in aborted]
        return answer

    def _refused(self, wanted: Wanted, error: Code) -> Message:
        row: Message = {
            "partition_index": wanted.asked["partition"],
            "error_code": error,
            "high_watermark": -1,
            "last_stable_offset": -1,
            "log_start_offset": -1,
            "aborted_transactions": None,
            "records": b"",
        }
        if wanted.topic is not None:
            self._hints.add(row, wanted.topic.image, row["partition_index"])
        return row

    def _answer(self, partitions: list[Message]) -> Message:
        following = iter(partitions)
        responses = [
            {"topic": asked["topic"], "topic_id": asked["topic_id"], "partitions": [next(following) for _ in each]}
            for asked, each in self.topics
        ]
        return {"error_code": 0, "session_id": 0, "responses": responses, "node_endpoints": self._hints.nodes()}


@serves(ApiKey.FETCH, needs=needs.topic(Op.READ) + needs.cluster(Op.CLUSTER_ACTION))
def fetch(session: KafkaSessionPort, request: Message, version: int) -> Message | Coroutine[Any, Any, Message]:
    replica = replica_of(request)
    if replica is not None:
        return fetch_for_replica(session, request, version, replica)
    if request["session_epoch"] not in FULL:
        return {"error_code": Code.FETCH_SESSION_ID_NOT_FOUND, "session_id": 0, "responses": []}
    return answered(session, Fetch(session, request, version))


def _code(error: KrappyError, wanted: Wanted) -> Code:
    """The code of an error. A topic that was deleted meanwhile is unknown by id, if the request named it by id."""
    return Code.UNKNOWN_TOPIC_ID if wanted.by_id and isinstance(error, UnknownTopic) else code_for(error)
