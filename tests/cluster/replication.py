"""Leaders and followers in memory, and a listener of Kafka's protocol that serves Fetch for the leaders in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import trio

from krappy.core.cluster.image import Image, PartitionImage, Registration, TopicImage
from krappy.core.epochs import Epochs
from krappy.core.security.principal import Principal
from krappy.core.throttle import ReplicationQuotas
from krappy.errors import CorruptBatch, KrappyError, NotLeader, OffsetOutOfRange, ProtocolError, UnknownPartition
from krappy.handlers.kafka.api_versions import what_is_served
from krappy.handlers.kafka.fetch import fetch
from krappy.ports import Raw
from krappy.records import batch
from krappy.testing.sessions import kafka_session
from krappy.waiting import Later, Signal, wait_any
from krappy.wire.kafka import ApiKey, encode_response, parse_header, read_request

LEADER, ME, OTHER = 1, 2, 3  # broker ids
MY_EPOCH = 7
LISTENER = "PLAINTEXT"


class Stored(NamedTuple):
    base: int
    end: int
    epoch: int
    data: bytes


class MemoryLog:
    def __init__(self, start: int = 0) -> None:
        self.start, self.end = start, start
        self.batches: list[Stored] = []
        self.epochs = Epochs()

    def add(self, data: bytes, base: int, epoch: int) -> None:
        """Stores a batch with this base offset and this leader epoch."""
        header = batch.read_header(data)
        data = batch.stamp(header, base, epoch) + data[batch.STAMPED :]
        self.batches.append(Stored(base, base + header.last_offset_delta + 1, epoch, data))
        self.end = self.batches[-1].end
        self.epochs.note(epoch, base)

    def cut(self, end: int) -> None:
        while self.batches and self.batches[-1].end > end:
            self.batches.pop()
        self.end = self.batches[-1].end if self.batches else min(end, self.end)
        self.epochs.cut(self.end)

    def read(self, offset: int, max_bytes: int, min_one: bool) -> bytes:
        """Batches from `offset` on, cut off at `max_bytes`. `min_one`: the first batch is never cut."""
        found = [each.data for each in self.batches if each.end > offset]
        data = b"".join(found)
        return data[: max(max_bytes, len(found[0]) if min_one and found else 0)]

    @property
    def content(self) -> list[bytes]:
        return [each.data for each in self.batches]


class MemoryLeader:
    """A `LeaderPort`. `progress`: (replica, broker epoch, offset) of each fetch that was noted."""

    def __init__(self, index: int = 0, epoch: int = 5, start: int = 0) -> None:
        self.index, self.epoch = index, epoch
        self.log = MemoryLog(start)
        self.epochs = self.log.epochs
        self.epochs.lead(epoch, start)
        self.start_offset = start
        self.high_watermark = start
        self.gone: KrappyError | None = None
        self.grown, self.moved = Signal(), Signal()
        self.progress: list[tuple[int, int, int]] = []
        self.commits = True  # whether a fetch commits what the replica has
        self.gone_below = 0
        self.starts: list[int] = []  # the log starts that replicas have sent
        self.disk_waits = 0  # so many of the next reads have to wait for the disk
        self.throttled: set[int] = set()  # the ids of throttled replicas

    @property
    def end_offset(self) -> int:
        return self.log.end

    def produce(self, *values: bytes, epoch: int | None = None) -> None:
        """Appends one batch."""
        data = batch.encode(None, values, timestamps=1)
        self.log.add(data, self.log.end, self.epoch if epoch is None else epoch)
        self.grown.fire()

    def commit(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.moved.fire()

    def delete_before(self, offset: int) -> None:
        self.start_offset = offset
        self.moved.fire()

    def lead(self, epoch: int) -> None:
        self.epoch = epoch
        self.epochs.lead(epoch, self.log.end)
        self.moved.fire()

    def fetched_by(self, replica: int, broker_epoch: int, offset: int, start: int = 0) -> None:
        self.starts.append(start)
        self.progress.append((replica, broker_epoch, offset))
        if self.commits:
            self.commit(offset)

    def is_outdated(self, replica: int, broker_epoch: int, offset: int) -> bool:
        return offset < self.gone_below

    def throttles(self, replica: int) -> bool:
        return replica in self.throttled

    def fetch_all_now(self, offset: int, max_bytes: int, *, min_one: bool = True) -> Raw:
        if self.disk_waits:
            self.disk_waits -= 1
            raise BlockingIOError
        if not self.start_offset <= offset <= self.log.end:
            raise OffsetOutOfRange("")
        return Raw(self.log.read(offset, max_bytes, min_one), self.log.end)

    async def fetch_all(self, offset: int, max_bytes: int, *, min_one: bool = True) -> Raw:
        await trio.lowlevel.checkpoint()
        return self.fetch_all_now(offset, max_bytes, min_one=min_one)


class MemoryFollower:
    """A `FollowerPort`. `fails`: the next calls raise these errors, one after another; None: that call works."""

    def __init__(self, topic_id: bytes, index: int = 0, epoch: int = 5, leader: int = LEADER, start: int = 0) -> None:
        self.topic, self.topic_id, self.index = "t", topic_id, index
        self.epoch, self.leader = epoch, leader
        self.log = MemoryLog(start)
        self.synced = start
        self.high_watermark = start
        self.told: tuple[int, int] = (start, start)
        self.starts: list[int] = []
        self.cuts: list[int] = []
        self.syncs = 0
        self.fails: list[Exception | None] = []
        self.disk_s = 0.0  # how many seconds a sync takes
        self.disk: trio.Event | None = None  # a sync waits for this event, too
        self.lock: trio.Event | None = None  # an append waits for this event
        self.is_throttled = False
        self.changed = Signal()

    @property
    def start_offset(self) -> int:
        return self.log.start

    def position(self) -> tuple[int, int]:
        return self.synced, self.log.epochs.at(self.synced - 1) if self.synced > self.log.start else -1

    def _fail(self) -> None:
        error = self.fails.pop(0) if self.fails else None
        if error is not None:
            raise error

    async def append(self, epoch: int, data: bytes | memoryview, high_watermark: int, log_start: int) -> None:
        await trio.lowlevel.checkpoint()
        if self.lock is not None:
            await self.lock.wait()
        self._fail()
        if epoch != self.epoch:
            return
        self.told = (high_watermark, log_start)
        for header, each in batch.split(data):
            if header.leader_epoch > epoch:
                break
            if header.base_offset < self.log.end and self.log.batches:
                raise CorruptBatch("a batch that is there already")
            self.log.add(bytes(each), header.base_offset, header.leader_epoch)
        assert sum(header.size for header, _ in batch.split(data)) == len(data), "a batch that is cut short"

    async def sync(self) -> None:
        end, told = self.log.end, self.told
        if self.disk is not None:
            await self.disk.wait()
        await trio.sleep(self.disk_s)
        self._fail()
        self.syncs += 1
        self.synced = end
        self.high_watermark = max(self.high_watermark, min(told[0], end))
        self.changed.fire()

    async def last_batch(self) -> None:
        """What its leader has there is not looked at."""

    async def compare(self, epoch: int, data: bytes | memoryview, high_watermark: int) -> None:
        raise AssertionError

    async def diverged(self, epoch: int, diverging: tuple[int, int], high_watermark: int) -> None:
        await trio.lowlevel.checkpoint()
        self._fail()
        if epoch != self.epoch:
            return
        cut = self.log.epochs.common(diverging, self.log.end)
        if cut < self.log.start:
            raise OffsetOutOfRange("")
        self.cuts.append(cut)
        self.log.cut(cut)
        self.synced = self.log.end
        self.changed.fire()

    async def start_over(self, epoch: int, log_start: int) -> None:
        await trio.lowlevel.checkpoint()
        self._fail()
        if epoch != self.epoch:
            return
        self.starts.append(log_start)
        self.log = MemoryLog(log_start)
        self.synced = self.high_watermark = log_start
        self.told = (log_start, log_start)
        self.changed.fire()

    async def until(self, ready: Callable[[], bool]) -> None:
        with trio.fail_after(30):
            await wait_any([self.changed], ready)


class MemoryTopic:
    def __init__(self, name: str, id: bytes, leaders: Sequence[MemoryLeader], replicas: tuple[int, ...]) -> None:
        self.name, self.id = name, id
        self.leaders = {each.index: each for each in leaders}
        self.image = TopicImage(
            name, id, tuple(PartitionImage(replicas) for _ in range(max(self.leaders, default=9) + 1))
        )

    def led(self, index: int) -> MemoryLeader:
        if index not in self.leaders:
            raise UnknownPartition("")
        if self.leaders[index].epoch < 0:
            raise NotLeader("")
        return self.leaders[index]


class MemoryBroker:
    """As much of a broker as Fetch needs."""

    id = LEADER
    in_cluster = True

    def __init__(self, *topics: MemoryTopic) -> None:
        self.topics = {each.id: each for each in topics}
        self.stopped = False
        self.image = Image(epochs={ME: MY_EPOCH, OTHER: MY_EPOCH})
        self.quotas = ReplicationQuotas()
        self.client_quotas = SimpleNamespace(on=False)
        self.clock = SimpleNamespace(steady_ms=lambda: int(trio.current_time() * 1000))

    def access(self, principal: Principal, payer: object = None) -> Any:
        by_name = {each.name: each for each in self.topics.values()}
        return SimpleNamespace(
            version=0,
            followed_topic=lambda name, id, op: by_name.get(name) if id is None else self.topics.get(id),
            check=lambda resource, name, op: None,
        )

    async def wait_for_moves(self, parts: Sequence[Any], ready: Callable[[], bool], seconds: float) -> bool:
        return await wait_any([each.moved for each in parts], lambda: self.stopped or ready(), seconds)


Message = dict[str, Any]
Change = Callable[[Message, Message], Message]  # (request, answer) -> the answer that is sent


class Listener:
    """A listener of Kafka's protocol. `greets` is called with each ApiVersions request, `hears` with each Fetch.
    `changes` makes the answer that is sent. `speaks` turns the bytes of an answer into the pieces that are sent; at a
    piece None the connection ends. `versions`: the answer to ApiVersions."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.address = ("127.0.0.1", 0)
        self.requests: list[Message] = []
        self.connections = 0
        self.greets: Callable[[Message], Awaitable[None]] | None = None
        self.hears: Callable[[Message], Awaitable[None]] | None = None
        self.changes: Change = lambda request, answer: answer
        self.speaks: Callable[[bytes], Sequence[bytes | None]] = lambda data: [data]
        self.versions: Message = what_is_served()

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        session = kafka_session(self.broker, listener=LISTENER)
        frames, known = _Frames(stream), False
        try:
            while frame := await frames.next():
                header = parse_header(frame)
                known = True
                request, _ = read_request(header.api_key, header.version, frame[header.body_at :])
                answer: Any
                if header.api_key is ApiKey.API_VERSIONS:
                    if self.greets is not None:
                        await self.greets(request)
                    answer = self.versions
                else:
                    self.requests.append(request)
                    if self.hears is not None:
                        await self.hears(request)
                    answer = fetch(session, request, header.version)
                    if isinstance(answer, Later):
                        answer = await answer.wait()
                    elif not isinstance(answer, dict):
                        answer = await answer
                    answer = self.changes(request, answer)
                parts = encode_response(header.api_key, header.version, header.correlation_id, answer)
                data = b"".join(bytes(part) for part in parts)
                for part in [data] if header.api_key is ApiKey.API_VERSIONS else self.speaks(data):
                    if part is None:
                        return
                    await stream.send_all(part)
                    await trio.lowlevel.checkpoint()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except ProtocolError:
            if known:
                raise
            self.connections -= 1  # a client of another test looks for its broker, which had this port
        finally:
            await trio.aclose_forcefully(stream)


class _Frames:
    """Splits a stream into requests, without their sizes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream, self._data = stream, bytearray()

    async def next(self) -> memoryview | None:
        """The next request; None at the end of the stream."""
        while len(self._data) < 4 or len(self._data) < self._end():
            some = await self._stream.receive_some(1 << 20)
            if not some:
                return None
            self._data += some
        end = self._end()
        frame, self._data = self._data[4:end], self._data[end:]
        return memoryview(frame)

    def _end(self) -> int:
        return 4 + int.from_bytes(self._data[:4], "big")


@asynccontextmanager
async def listening(broker: MemoryBroker) -> AsyncIterator[Listener]:
    listener = Listener(broker)
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, listener.serve, 0, host="127.0.0.1")
        [accepting] = await nursery.start(serve)
        listener.address = accepting.socket.getsockname()[:2]
        yield listener
        nursery.cancel_scope.cancel()


def image_of(listener: Listener, broker: int = LEADER) -> Image:
    return Image(brokers={broker: Registration(broker, 1, {LISTENER: listener.address})})
