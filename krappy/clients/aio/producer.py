"""Producers of the async client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Generic, TypeVar, Unpack

from krappy.clients.accumulator import Limits
from krappy.clients.aio.connection import ClientConnection
from krappy.clients.aio.io import Delivery
from krappy.clients.columns import Columned, receipts
from krappy.clients.producing import Producing
from krappy.clients.producing import limits as make_limits
from krappy.clients.receipts import Failures, Stored
from krappy.clients.values import Addresses, EventOptions, Expected, HeadersIn, Text, Time
from krappy.errors import KrappyError
from krappy.types import Compression, Receipt, Record

P = TypeVar("P", bound=Producing)


class Sender(Generic[P]):
    """What a producer and a stage have in common. `_what`: its name in errors."""

    _what = "producer"

    def __init__(self, connection: ClientConnection, topic: str, limits: Limits) -> None:
        self.topic = topic
        self._connection = connection
        self._limits = limits
        self._failures = Failures()
        self._opened: P | None = None

    async def _open(self, core: P) -> None:
        if self._opened is not None:
            raise KrappyError(f"this {self._what} is open already")
        await core.open()
        self._opened = core

    @property
    def _core(self) -> P:
        if self._opened is None:
            raise KrappyError(f"this {self._what} is not open: use `async with`")
        return self._opened

    async def flush(self) -> None:
        """Waits until everything sent so far is stored or has failed. Raises the first error that nobody has seen."""
        done = Delivery[None]()
        await self._core.flush(done)
        await done
        self._failures.check()


class TopicProducer(Sender[Producing]):
    """Sends events to one topic. Leaving its `async with` flushes it. Any number of tasks may use it."""

    def __init__(self, connection: ClientConnection, topic: str, limits: Limits, name: str | None = None) -> None:
        super().__init__(connection, topic, limits)
        self._name = name

    async def __aenter__(self) -> TopicProducer:
        await self._open(Producing(self._connection.router, self.topic, self._limits, self._name))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        core = self._opened
        if core is None:
            return
        try:
            if error is None:
                await self.flush()
            elif isinstance(error, Exception):
                with suppress(KrappyError):  # the body's own error is raised instead
                    await self.flush()
        finally:
            self._opened = None
            core.close()

    @property
    def trouble(self) -> str:
        """The last error of the broker or the connection, while events are not stored because of it and are sent again;
        empty while all goes well."""
        return self._core.trouble

    # Async only.
    async def send(
        self,
        value: Text | None,
        key: Text | None = None,
        *,
        headers: HeadersIn | None = None,
        timestamp: Time | None = None,
        partition: int | None = None,
        expect: Expected | None = None,
    ) -> Receipt:
        """Sends one event, waits until it is stored for good, and returns its receipt. It has the arguments of `post`,
        and raises what `post` and its delivery raise. Cancelling it does not take the event back.

        A loop of these waits for the broker's disk once for each event; `post` does not."""
        delivery = await self.post(value, key, headers=headers, timestamp=timestamp, partition=partition, expect=expect)
        return await delivery

    # Blocking: send, post.
    async def post(
        self,
        value: Text | None,
        key: Text | None = None,
        *,
        headers: HeadersIn | None = None,
        timestamp: Time | None = None,
        partition: int | None = None,
        expect: Expected | None = None,
    ) -> Delivery[Receipt]:
        """Sends one event. Waits only for room in the buffer. The delivery gets the receipt once the event is stored
        for good.

        Args:
            value: None with a key deletes the key: a tombstone.
            timestamp: ms since the epoch or an aware datetime; None: now.
            partition: None: the one that murmur2 gives the key (as Kafka's clients do); for an event without a key,
                round-robin, a batch for each partition in turn.
            expect: a condition: the offset that the key must be at, or "absent". If it is not met, the event is refused
                with OffsetMismatch (`.current` is the key's offset). Events with conditions on different keys share
                batches; those on the same key, and events without, wait for each other's answers.

        Raises InvalidRecord, InvalidRequest, UnknownPartition, ConnectionLost. What only the broker can know comes from
        the delivery: OffsetMismatch, RecordTooLarge, RequestTimeout (then it may have been stored) and others. `flush`
        waits for all deliveries. A callback of a delivery must not wait for the client.
        """
        core = self._core
        if not core.takes(partition):
            await core.room(partition)
        return core.add(Delivery[Receipt](self._failures), value, key, headers, timestamp, partition, expect)

    async def send_columns(
        self,
        keys: Sequence[Text | None] | None,
        values: Sequence[Text | None],
        *,
        headers: Sequence[HeadersIn | None] | None = None,
        timestamps: Sequence[Time] | Time | None = None,
        partition: int | None = None,
    ) -> list[Stored]:
        """Sends many events, given as columns of equal length, and waits until all are stored: the fast path.

        `keys` None: no event has one. Returns the runs of rows that were stored together, by partition and offset.
        When some events failed, it raises the first error, which has the runs that were stored as `.stored`.
        """
        delivery = await self.post_columns(keys, values, headers=headers, timestamps=timestamps, partition=partition)
        return await delivery

    async def post_columns(
        self,
        keys: Sequence[Text | None] | None,
        values: Sequence[Text | None],
        *,
        headers: Sequence[HeadersIn | None] | None = None,
        timestamps: Sequence[Time] | Time | None = None,
        partition: int | None = None,
    ) -> Delivery[list[Stored]]:
        """As `send_columns`, but only waits for room in the buffer."""
        core = self._core
        if not core.takes(partition):
            await core.room(partition)
        delivery = Delivery[list[Stored]](self._failures)
        return core.add_columns(delivery, keys, values, headers=headers, timestamps=timestamps, partition=partition)

    async def send_many(
        self, records: Iterable[Record | tuple[Text | None, Text | None]], *, partition: int | None = None
    ) -> list[Receipt]:
        """Sends Records or (key, value) pairs, waits until all are stored, and returns their receipts in order."""
        columns = Columned(records)
        times = columns.times(self._core.now_ms())
        stored = await self.send_columns(
            columns.keys, columns.values, headers=columns.headers, timestamps=times, partition=partition
        )
        return receipts(stored, times)


class Producer:
    """The short form: it has its own connection and opens a producer for each topic when needed.

    async with krappy.Producer() as producer:
        await producer.send("my-topic", "Hello World")
    """

    def __init__(
        self,
        to: Addresses | None = None,
        *,
        timeout: float = 30.0,
        linger_ms: float = 5,
        batch_bytes: int = 512 << 10,
        compression: Compression | None = None,
    ) -> None:
        self._connection = ClientConnection(to, timeout)
        self._limits = make_limits(linger_ms, batch_bytes, 32 << 20, compression, max(timeout, 0.001))
        self._producers: dict[str, TopicProducer] = {}
        self._stack = AsyncExitStack()  # closes every producer, even if closing another one fails

    async def __aenter__(self) -> Producer:
        await self._connection.open()
        self._stack.push_async_callback(self._connection.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producers.clear()
        await self._stack.__aexit__(kind, error, trace)

    # Async only.
    async def send(
        self,
        topic: str,
        value: Text | None,
        key: Text | None = None,
        **more: Unpack[EventOptions],
    ) -> Receipt:
        """Sends one event to a topic and waits until it is stored; as `TopicProducer.send`."""
        producer = await self.topic(topic)
        return await producer.send(value, key, **more)

    # Blocking: send, post.
    async def post(
        self,
        topic: str,
        value: Text | None,
        key: Text | None = None,
        **more: Unpack[EventOptions],
    ) -> Delivery[Receipt]:
        """Sends one event to a topic; as `TopicProducer.post`."""
        producer = await self.topic(topic)
        return await producer.post(value, key, **more)

    async def topic(self, topic: str) -> TopicProducer:
        """The producer to one topic, opened on the first call."""
        producer = self._producers.get(topic)
        if producer is None:
            producer = await self._stack.enter_async_context(TopicProducer(self._connection, topic, self._limits))
            producer = self._producers.setdefault(topic, producer)
        return producer
