"""Fetch (1) of a replica: another broker reads a partition that this one leads, up to the log's end.

- The offset that it asks for tells what it has on its disk. That may commit events, so it counts only in the leader's
  epoch, from a replica of the partition, and if the replica's log is the beginning of the leader's (KIP-595). And the
  replica must be the process that was registered last with its broker id: it tells its broker epoch (KIP-903).
- An answer has only the partitions with news: events, a high watermark or a log start that the replica was not told, an
  error, or where its log parts from the leader's. What it was told is remembered with the connection.
- What it waits for is remembered, too: each partition that it has asked for, until the partition is in an answer. Then
  the replica names it again. So the work for a request depends on how much news there is, not on how many partitions
  there are. The session epochs 0 and -1 begin anew; any other continues (the fields of KIP-227).
- A request without news waits for some, whatever its min_bytes. While a replica waits for a partition, it counts as in
  sync there.
- A replica that was away may have events that were deleted meanwhile. If their tombstones may have been compacted away,
  its first fetch is answered as if nothing of its log were the leader's: it begins anew. What a replica needs while it
  catches up is kept for it. (Kafka has no such rule: a replica that was away longer than delete.retention.ms brings
  deleted keys back.)
- Events for a replica that is throttled, and not in sync, wait while the quota is used up (KIP-73).
- An offset out of range is answered with the offset where the replica starts over: the log start, or where the batch
  begins that contains it. It may ask from there on, although that is below the log start, because it has whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator
from math import inf
from typing import Any, NamedTuple

from krappy.core.security.operations import Op
from krappy.errors import KrappyError, OffsetOutOfRange, UnknownTopic
from krappy.handlers.kafka.fetch_work import Reads, answered, never_late, read_all, read_now, room_of
from krappy.handlers.kafka.refusals import denied_on_cluster
from krappy.handlers.kafka.registry import Message
from krappy.handlers.kafka.sources import wrong_epoch
from krappy.handlers.waits import bounded_ms
from krappy.ports import BrokerPort, KafkaSessionPort, LeaderPort, Raw, TopicPort
from krappy.records.batch import read_header
from krappy.types import FilePart
from krappy.waiting import Signal
from krappy.wire.kafka import Code, code_for

BY_ID_SINCE = 13  # the version from which topics are named by their ids (KIP-516)
LEAST_VERSION = 15  # the first with the replica's broker epoch (KIP-903)
MANY = 500  # partitions that are found or read in one turn
LAST_EPOCH = 2**31 - 1  # of a session; 1 comes after it
NOTE_MS = 500  # how often it is noted that a replica is in sync where it waits
Told = tuple[int, int, int]  # leader epoch, high watermark, log start
ReplicaKey = tuple[int, bytes, int]  # the replica's broker, topic id, index


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
    """One partition that a replica waits for. `asked`: its part of the request. `offset`: the replica has everything
    before it on its disk. `is_below`: the offset is below the log start. `is_outdated`: the replica has to begin
    anew."""

    __slots__ = ("_watch", "asked", "is_below", "is_outdated", "key", "offset", "port", "topic")

    def __init__(self, key: ReplicaKey, topic: Message, asked: Message, port: LeaderPort, watch: ReplicaWatch) -> None:
        """`topic`: the request's part for its topic."""
        self.key, self.topic, self.asked, self.port = key, topic, asked, port
        self.offset: int = asked["fetch_offset"]
        self.is_below = self.offset < port.start_offset
        self.is_outdated = False
        self._watch = watch

    @property
    def is_led(self) -> bool:
        """Whether it is still led in the epoch of the request."""
        return self.port.gone is None and self.port.epoch == self.asked["current_leader_epoch"]

    @property
    def compares(self) -> bool:
        """Whether it only compares its last batch, and may have other events than the leader before the offset."""
        return bool(self.asked["log_start_offset"] < 0)

    def note(self, replica: ReplicaId) -> None:
        """Notes how far the replica is, unless it has to begin anew."""
        if self.is_below or self.is_outdated:
            return
        if self.compares:
            return
        is_empty = self.asked["last_fetched_epoch"] < 0
        if not is_empty and self.port.is_outdated(replica.broker, replica.epoch, self.offset):
            self.is_outdated = True
            self.stir()
        else:
            self.port.fetched_by(replica.broker, replica.epoch, self.offset, self.asked["log_start_offset"])

    @property
    def is_held(self) -> bool:
        """Whether its events have to wait for the quota."""
        return self._watch.quota_pause > 0 and self.port.throttles(self.key[0])

    def stir(self) -> None:
        """To be called when it may have news."""
        self._watch.stirred[self.key] = self
        self._watch.moved.fire()


class ReplicaWatch:
    """The partitions that a replica waits for on one connection. `stirred`: those to look at, in the order in which
    they are answered. `told`: what the replica was told of each partition that it ever asked for here."""

    def __init__(self, id: int, told: dict[ReplicaKey, Told], broker: BrokerPort) -> None:
        self.id, self.told = id, told
        self.quota, self._clock = broker.quotas.leader, broker.clock
        self.epoch = 1  # of the next request
        self.waiting: dict[ReplicaKey, ReplicaWanted] = {}
        self.stirred: dict[ReplicaKey, ReplicaWanted] = {}
        self.moved = Signal()
        self.noted_ms = broker.clock.steady_ms()  # when all that it waits for was noted to be in sync

    @property
    def quota_pause(self) -> float:
        """Seconds until throttled partitions may be sent events."""
        return 0.0 if self.quota.rate is None else self.quota.pause(self._clock.steady_ms() / 1000)

    def spend(self, wanted: ReplicaWanted, size: int) -> None:
        """Notes that so many bytes of records are sent."""
        if self.quota.rate is not None and wanted.port.throttles(wanted.key[0]):
            self.quota.spend(size, self._clock.steady_ms() / 1000)

    def most(self, wanted: ReplicaWanted) -> int:
        """Bytes of records that the partition may get at once."""
        asked: int = wanted.asked["partition_max_bytes"]
        share = self.quota.share()
        return min(asked, share) if share is not None and wanted.port.throttles(wanted.key[0]) else asked

    def add(self, wanted: ReplicaWanted) -> None:
        self.remove(wanted.key)
        self.waiting[wanted.key] = self.stirred[wanted.key] = wanted
        wanted.port.moved.subscribe(wanted.stir)
        wanted.port.grown.subscribe(wanted.stir)

    def remove(self, key: ReplicaKey) -> None:
        found = self.waiting.pop(key, None)
        if found is not None:
            self.stirred.pop(key, None)
            found.port.moved.unsubscribe(found.stir)
            found.port.grown.unsubscribe(found.stir)

    def has_news(self, wanted: ReplicaWanted) -> bool | None:
        """Whether it has news; None: there may be some once the quota has room."""
        port = wanted.port
        if not wanted.is_led or wanted.is_below or wanted.is_outdated:
            return True
        if wanted.is_held:
            return None
        return wanted.offset < port.end_offset or self.told.get(wanted.key) != _told(port)

    def until_due(self) -> float:
        """Seconds until there may be news that waits for the quota; infinite if there is none."""
        return self.quota_pause if any(each.is_held for each in self.stirred.values()) else inf

    def some_news(self) -> bool:
        """Whether a stirred partition has news. Those before it that have none, and do not wait for the quota, are no
        longer stirred."""
        for key, wanted in tuple(self.stirred.items()):
            news = self.has_news(wanted)
            if news:
                return True
            if news is not None:
                del self.stirred[key]
        return False

    def close(self) -> None:
        for key in tuple(self.waiting):
            self.remove(key)


def watch_of(session: KafkaSessionPort, request: Message) -> ReplicaWatch | None:
    """What the replica waits for on this connection: a new watch if the request begins anew. None: the request can't
    continue."""
    state, epoch = session.state, request["session_epoch"]
    found: ReplicaWatch | None = state.get("REPLICA_WATCH")
    if epoch > 0:
        if found is None or (found.id, found.epoch) != (request["session_id"], epoch):
            return None
        found.epoch = epoch % LAST_EPOCH + 1
        return found
    if found is None:
        session.on_close.append(lambda: state["REPLICA_WATCH"].close())
    else:
        found.close()
    id, told = (1, {}) if found is None else (found.id + 1, found.told)
    made = ReplicaWatch(id, told, session.broker)
    state["REPLICA_WATCH"] = made
    return made


class ReplicaRead(NamedTuple):
    """One read of a partition, with the arguments of `LeaderPort.fetch_all`."""

    port: LeaderPort
    offset: int
    max_bytes: int
    min_one: bool

    def now(self) -> Raw:
        return self.port.fetch_all_now(self.offset, self.max_bytes, min_one=self.min_one)

    async def read(self) -> Raw:
        return await self.port.fetch_all(self.offset, self.max_bytes, min_one=self.min_one)


class ReplicaFetch:
    """One request."""

    def __init__(
        self, session: KafkaSessionPort, request: Message, version: int, replica: ReplicaId, watch: ReplicaWatch
    ) -> None:
        self.session, self.request, self.version, self.replica = session, request, version, replica
        self.watch = watch
        self._found: list[tuple[Message, Message]] = []  # (the request's part for a topic, a partition of the answer)
        self._by_id = version >= BY_ID_SINCE
        self._access = session.access.version

    # --- what is asked

    def find(self) -> Iterator[None]:
        """Finds the partitions, and notes how far the replica is; yields after each `MANY`, so that others have their
        turn."""
        access, watch = self.session.access, self.watch
        for topic in self.request["forgotten_topics_data"]:
            for index in topic["partitions"]:
                watch.remove((self.replica.broker, topic["topic_id"], index))
        number = 0
        for topic in self.request["topics"]:
            if self._by_id:
                found = access.followed_topic("", topic["topic_id"], Op.CLUSTER_ACTION)
            else:
                found = access.followed_topic(topic["topic"], None, Op.CLUSTER_ACTION)
            for asked in topic["partitions"]:
                key = (self.replica.broker, found.id if found is not None else b"", asked["partition"])
                port = self._find(found, asked)
                if isinstance(port, dict):
                    watch.remove(key)
                    self._found.append((topic, port))
                else:
                    wanted = ReplicaWanted(key, topic, asked, port, watch)
                    watch.add(wanted)
                    wanted.note(self.replica)
                number += 1
                if number % MANY == 0:
                    yield
        yield from self._note()

    def _note(self) -> Iterator[None]:
        """Notes now and then that the replica has not moved where it waits: else it would seem to lag."""
        now = self.session.broker.clock.steady_ms()
        if now - self.watch.noted_ms < NOTE_MS:
            return
        self.watch.noted_ms = now
        for number, wanted in enumerate(tuple(self.watch.waiting.values())):
            if wanted.is_led and wanted.key[0] == self.replica.broker and not self._wrong_epoch:
                wanted.note(self.replica)
            if number % MANY == MANY - 1:
                yield

    @property
    def at_once(self) -> bool:
        """Whether it is answered without a wait."""
        nothing = not self.watch.waiting
        return bool(self._found) or nothing or self.request["max_wait_ms"] <= 0 or self.watch.some_news()

    def _find(self, topic: TopicPort | None, asked: Message) -> LeaderPort | Message:
        index, offset = asked["partition"], asked["fetch_offset"]
        if topic is None:
            return refused(index, Code.UNKNOWN_TOPIC_ID if self._by_id else Code.UNKNOWN_TOPIC_OR_PARTITION)
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
            row = refused(index, Code.NONE, port.start_offset)
            return {**row, "diverging_epoch": diverging, "high_watermark": port.high_watermark}
        if offset > port.end_offset:  # the replica's log is empty
            return refused(index, Code.OFFSET_OUT_OF_RANGE, port.start_offset)
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
        return self._wrong_epoch

    @property
    def _wrong_epoch(self) -> Code:
        """Why the replica's broker epoch is not that of its registration, NONE if it is. A later one may be a
        registration that this broker's image does not have yet; the replica asks again soon."""
        registered = self.session.broker.image.epochs.get(self.replica.broker, -1)
        if self.replica.epoch == registered >= 0:
            return Code.NONE
        return Code.NOT_LEADER_OR_FOLLOWER if self.replica.epoch < registered else Code.UNKNOWN_LEADER_EPOCH

    # --- when to answer

    async def _until_news(self) -> None:
        seconds = min(bounded_ms(self.request["max_wait_ms"], self.session.proved_for) / 1000, self.watch.until_due())
        await self.session.broker.wait_for_moves([self.watch], self.watch.some_news, seconds)

    # --- the answer

    def now(self) -> Message | None:
        """The answer from memory; None if the request has to wait for news.

        Raises BlockingIOError when it would have to wait for the disk.
        """
        if len(self.watch.stirred) >= MANY or not self.at_once:
            return None
        read_now(self._reads(min(room_of(self.request), self.session.answer_bytes), never_late))
        return self._answer()

    async def wait(self) -> Message:
        """The answer, once it is time for it."""
        if not self.at_once:
            await self._until_news()
        async with self.session.answering(room_of(self.request)) as room:
            if self.session.access.version != self._access and (denied := _denied(self.session)) is not None:
                return denied
            await read_all(self.session, room, self._reads)
            return self._answer()

    def _reads(self, room: int, late: Callable[[int], bool]) -> Reads[None]:
        watch, left, first = self.watch, room, True
        for number, wanted in enumerate(tuple(watch.stirred.values())):
            if number % MANY == MANY - 1:
                yield None
            if watch.waiting.get(wanted.key) is not wanted:
                continue
            news = watch.has_news(wanted)
            if not news:
                if news is not None:
                    watch.stirred.pop(wanted.key, None)
                continue
            most = min(watch.most(wanted), left)
            if late(room - left):
                most = 0
            row = yield from self._row(wanted, max(1, most) if first else most, first)
            if row is None:
                continue  # it stays stirred, and comes earlier in the next answer
            if got := len(row["records"]):
                first = False
                left -= got
                watch.spend(wanted, got)
            watch.remove(wanted.key)
            self._found.append((wanted.topic, row))

    def _row(
        self, wanted: ReplicaWanted, most: int, first: bool
    ) -> Generator[ReplicaRead | None, Raw | None, Message | None]:
        """The partition in the answer; None: there is no room for its events. `most`: bytes of records. `first`: at
        least one batch."""
        port, index, offset = wanted.port, wanted.asked["partition"], wanted.offset
        raw = None
        try:
            if wanted.is_outdated:
                start = port.start_offset
                begins = _begins((yield ReplicaRead(port, start, 1, True)), start) if start < port.end_offset else start
                if wanted.is_led:
                    return {**refused(index, Code.NONE, begins), "diverging_epoch": {"epoch": -1, "end_offset": begins}}
            elif wanted.is_below:
                offset = port.start_offset
                begins = _begins((yield ReplicaRead(port, offset, 1, True)), offset)
                is_empty = wanted.asked["last_fetched_epoch"] < 0
                if wanted.is_led and not is_empty and begins < wanted.offset:  # no batch of its log ends here
                    diverging = {"epoch": -1, "end_offset": begins}
                    return {**refused(index, Code.NONE, begins), "diverging_epoch": diverging}
                if wanted.is_led and not (is_empty and wanted.offset == begins):
                    return refused(index, Code.OFFSET_OUT_OF_RANGE, begins)
            if most > 0 and wanted.is_led and offset < port.end_offset:
                raw = yield ReplicaRead(port, offset, most, first)
            if port.gone is not None:
                raise port.gone
        except KrappyError as error:
            start = port.start_offset if isinstance(error, OffsetOutOfRange) else -1
            return refused(index, self._code(error), start)
        if not wanted.is_led:
            return refused(index, Code.FENCED_LEADER_EPOCH)
        records = b"" if raw is None else raw.records
        if not len(records) and offset < port.end_offset:
            return None
        if wanted.compares:
            self.watch.told.pop(wanted.key, None)  # it takes this only once the next request shows that the logs agree
        else:
            self.watch.told[wanted.key] = _told(port)
        return {
            "partition_index": index,
            "error_code": 0,
            "high_watermark": port.high_watermark,
            "log_start_offset": port.start_offset,
            "aborted_transactions": None,
            "records": records,
        }

    def _code(self, error: KrappyError) -> Code:
        return Code.UNKNOWN_TOPIC_ID if self._by_id and isinstance(error, UnknownTopic) else code_for(error)

    def _answer(self) -> Message:
        topics: dict[int, Message] = {}
        for asked, row in self._found:
            topic = topics.get(id(asked))
            if topic is None:
                topic = {"topic": asked["topic"], "topic_id": asked["topic_id"], "partitions": []}
                topics[id(asked)] = topic
            topic["partitions"].append(row)
        session_id = 0 if self.request["session_epoch"] < 0 else self.watch.id
        return {"error_code": 0, "session_id": session_id, "responses": list(topics.values())}


def fetch_for_replica(
    session: KafkaSessionPort, request: Message, version: int, replica: ReplicaId
) -> Message | Coroutine[Any, Any, Message]:
    if (denied := _denied(session)) is not None:
        return denied
    session.is_broker = session.broker.in_cluster
    watch = watch_of(session, request)
    if watch is None:
        return {"error_code": Code.FETCH_SESSION_ID_NOT_FOUND, "session_id": 0, "responses": []}
    return answered(session, ReplicaFetch(session, request, version, replica, watch))


def _denied(session: KafkaSessionPort) -> Message | None:
    """The answer to a client that may not act as a broker; None: it may."""
    denied = denied_on_cluster(session, Op.CLUSTER_ACTION)
    return None if denied is None else {**denied, "session_id": 0, "responses": []}


def _told(port: LeaderPort) -> Told:
    return port.epoch, port.high_watermark, port.start_offset


def _begins(raw: Raw | None, offset: int) -> int:
    """Where the batch that contains `offset` begins. `raw`: what was read there."""
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
