"""The code of both producers: it assigns records to partitions, and a background task sends the accumulator's
batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from krappy.clients import values as given
from krappy.clients.accumulator import Accumulator, Limits
from krappy.clients.columns import as_bytes, pick, spread
from krappy.clients.conversation import Reply
from krappy.clients.lane import LaneBatch, too_large
from krappy.clients.link import Link
from krappy.clients.receipts import Fence, Many, One, ReceiptRows
from krappy.clients.runtime import ClientSignal, Promise
from krappy.clients.values import Expected, HeadersIn, Text, Time
from krappy.errors import (
    ConfigError,
    ConnectionLost,
    FrameTooLarge,
    InvalidRecord,
    InvalidRequest,
    KrappyError,
    RecordTooLarge,
    RequestTimeout,
    UnknownPartition,
)
from krappy.partitioner import partition_for
from krappy.records import codecs
from krappy.types import Headers
from krappy.wire import messages

D = TypeVar("D", bound=Promise[Any])
Registered = messages.ProducerRegistered | messages.Staged
REFRESH = 60.0  # seconds after which a producer registers anew, to learn of new partitions
CODECS = {None: codecs.NONE, "gzip": codecs.GZIP, "snappy": codecs.SNAPPY, "lz4": codecs.LZ4, "zstd": codecs.ZSTD}


def limits(linger_ms: float, batch_bytes: int, buffer_bytes: int, compression: str | None, timeout: float) -> Limits:
    """The checked limits. `linger_ms` in ms, `timeout` in seconds, sizes in bytes. Raises ConfigError."""
    if compression not in CODECS:
        raise ConfigError(f"compression={compression!r}: give None, 'gzip', 'snappy', 'lz4' or 'zstd'")
    if not (linger_ms >= 0 and batch_bytes >= 1 and buffer_bytes >= 1):  # NaN is none of these
        raise ConfigError("linger_ms must not be negative; batch_bytes and buffer_bytes must be positive")
    return Limits(
        linger=linger_ms / 1000,
        batch_bytes=batch_bytes,
        buffer_bytes=buffer_bytes,
        timeout=given.seconds(timeout, "timeout"),
        codec=CODECS[compression],
    )


class Producing:
    """Sends to one topic. `open` comes first and starts the sender, which runs until `close`."""

    def __init__(self, link: Link, topic: str, limits: Limits, name: str | None = None) -> None:
        self.topic = topic
        self._link = link
        self._runtime = link.runtime
        self._lock = link.runtime.lock
        self._name = name
        self._accumulator = Accumulator(limits)
        self._generation = 0  # of the connection of the last registration
        self._handle: int | None = None  # of the registration; None while there is none
        self._refresh = 0.0  # when to register anew
        self._wake = self._runtime.signal()
        self._line: OrderedDict[object, ClientSignal] = OrderedDict()  # callers that wait for room in the buffer
        self._closing = False
        self.trouble = ""  # the last error of the broker or the connection, while records are not stored because of it

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Registers, and starts the sender. Raises the broker's error, or ConnectionLost."""
        deadline = self._runtime.now() + self._link.timeout
        while not await self._register(deadline):
            if self._runtime.now() >= deadline:
                raise ConnectionLost(self._link.trouble, address=str(self._link.address))
        with self._lock:
            self._link.told_of_closing.add(self._awake)
        self._runtime.spawn(self._run, f"krappy producer to {self.topic}")

    def _awake(self) -> None:
        """Wakes the sender: when no batch is in flight, nothing else tells it that the link was closed."""
        self._wake.set()

    async def flush(self, delivery: Promise[None]) -> None:
        """Sends everything now. The delivery gets None when all of it is settled."""
        if self._link.closed:
            self.close()
        fence = Fence(delivery)
        with self._lock:
            fence.left += self._accumulator.fence(fence)
            self._wake.set()
        fence.passed()

    def close(self) -> None:
        """Ends the sender and the registration. Records that are not settled fail with ConnectionLost."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._link.told_of_closing.discard(self._awake)
            self._accumulator.close()
            self._wake.set()
            for turn in self._line.values():
                turn.set()
        self._tell()
        if self._handle is not None:
            self._unregister(self._handle, self._generation)

    def _unregister(self, handle: int, generation: int) -> None:
        self._link.tell(messages.Unregister(handle), messages.Unregistered, generation)

    def _ended(self) -> ConnectionLost:
        return ConnectionLost("this producer is closed" if self._closing else self._link.trouble)

    def now_ms(self) -> int:
        """The timestamp (ms) for events that are sent without one."""
        return self._runtime.wall_ms()

    @property
    def full(self) -> bool:
        return self._accumulator.full

    async def room(self) -> None:
        """Back-pressure: waits until the buffer has room. Raises ConnectionLost when the producer is closed."""
        place = object()  # its key in `_line`
        try:
            while True:
                with self._lock:
                    if self._closing or self._link.closed:
                        raise self._ended()
                    if not self._accumulator.full:
                        return
                    turn = self._line[place] = self._runtime.signal()
                await turn.wait()
        finally:
            with self._lock:
                self._line.pop(place, None)
                self._let_in()

    def _let_in(self) -> None:
        """Wakes the first caller in `_line` if there is room; that one wakes the next. If all were woken each time,
        thousands of callers would spend their time finding the buffer full again."""
        if self._line and not self._accumulator.full:
            next(iter(self._line.values())).set()

    # --- records in ---------------------------------------------------------------------------------------------

    def add(
        self,
        delivery: D,
        value: Text | None,
        key: Text | None = None,
        headers: HeadersIn | None = None,
        timestamp: Time | None = None,
        partition: int | None = None,
        expect: Expected | None = None,
    ) -> D:
        """Takes one record and returns the delivery, which will get its Receipt or its error.

        When it raises, nothing was taken: InvalidRecord, InvalidRequest, UnknownPartition; ConnectionLost when closed.
        """
        value_bytes = value if type(value) is bytes else given.encoded(value, "value")
        key_bytes = key if type(key) is bytes else given.encoded(key, "key")
        pairs: Headers = given.headers(headers) if headers else ()
        time = self._runtime.wall_ms() if timestamp is None else given.event_time(timestamp)
        wanted = None if expect is None else given.expected(expect)
        if wanted is not None and key_bytes is None:
            raise InvalidRequest("an event with `expect` needs a key: the condition is about that key's latest event")
        ticket = One(self.topic, delivery)
        with self._lock:
            if self._closing or self._link.closed:
                raise self._ended()
            index = self._partition(key_bytes, partition)
            now = self._runtime.now()
            if self._accumulator.add(index, key_bytes, value_bytes, pairs, time, ticket, now, wanted):
                self._wake.set()
        return delivery

    def _partition(self, key: bytes | None, partition: int | None) -> int:
        count = self._accumulator.partitions
        if partition is not None:
            return self._known(partition)
        if count == 1:
            return 0
        return partition_for(key, count) if key is not None else self._accumulator.next_partition()

    def _known(self, partition: int) -> int:
        count = self._accumulator.partitions
        if type(partition) is not int or not 0 <= partition < count:
            raise UnknownPartition(f"the topic '{self.topic}' has partitions 0 to {count - 1}, not {partition!r}")
        return partition

    @property
    def partitions(self) -> int:
        """How many partitions the topic had at the last registration."""
        return self._accumulator.partitions

    def add_columns(
        self,
        delivery: D,
        keys: Sequence[Text | None] | None,
        values: Sequence[Text | None],
        *,
        headers: Sequence[HeadersIn | None] | None = None,
        timestamps: Sequence[Time] | Time | None = None,
        partition: int | None = None,
    ) -> D:
        """Takes many records as columns of equal length. The delivery gets `list[Stored]`, or an error with the runs
        that were stored as `.stored`. Raises as `add` does, and takes nothing then."""
        count = len(values)
        value_column = as_bytes(values, "value")
        key_column = None if keys is None else as_bytes(keys, "key")
        times = self._times(timestamps, count)
        header_column = None if headers is None else [given.headers(each) for each in headers]
        for column in (key_column, times, header_column):
            if column is not None and len(column) != count:
                raise InvalidRecord(f"columns of {len(column)} and {count} rows: all columns need the same length")
        chosen = None if partition is None else self._known(partition)
        many = Many(self.topic, count, delivery)
        if not count:
            return delivery
        with self._lock:
            if self._closing or self._link.closed:
                raise self._ended()
            now = self._runtime.now()
            for index, rows in spread(key_column, count, self._accumulator, chosen):
                if len(rows) == count:
                    self._accumulator.add_columns(
                        index, key_column, value_column, header_column, times, ReceiptRows(many, rows), now
                    )
                else:
                    self._accumulator.add_columns(
                        index,
                        None if key_column is None else pick(key_column, rows),
                        pick(value_column, rows),
                        None if header_column is None else pick(header_column, rows),
                        pick(times, rows),
                        ReceiptRows(many, rows),
                        now,
                    )
            self._wake.set()
        return delivery

    def _times(self, timestamps: Sequence[Time] | Time | None, count: int) -> Sequence[int]:
        if timestamps is None:
            return [self._runtime.wall_ms()] * count
        if isinstance(timestamps, Sequence):
            return [
                each if type(each) is int and 0 <= each <= given.MAX_I64 else given.event_time(each)
                for each in timestamps
            ]
        return [given.event_time(timestamps)] * count

    # --- the sender ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    if self._closing:  # under the lock: `close` sets only the signal that is in `_wake` then
                        return
                    self._wake = wake = self._runtime.signal()
                now = self._runtime.now()
                self._expire()
                if self._link.closed:
                    return
                if not self._accumulator.empty and await self._registered(now):
                    await self._send()
                with self._lock:
                    due = self._accumulator.next_due()
                await wake.wait(None if due is None else max(0.0, due - self._runtime.now()))
        finally:
            self.close()

    async def _registered(self, now: float) -> bool:
        """Registers if necessary. Returns whether batches may be sent. Fails all records when the broker refuses."""
        with self._lock:
            there = self._handle is not None and self._link.lives(self._generation) and now < self._refresh
            if there and not self._accumulator.renew:
                return True
            expiry = self._accumulator.next_expiry()
        try:
            return await self._register(now + self._link.timeout if expiry is None else max(expiry, now + 0.05))
        except ConnectionLost as error:
            failure: KrappyError = error
            if not self._link.closed:
                return False
        except KrappyError as error:
            failure = error
        with self._lock:
            self._accumulator.fail_all(failure)
        self._tell()
        return False

    async def _register(self, deadline: float) -> bool:
        """Registers. False to try again: the connection was lost, the time was over, or the error is retriable.

        Raises the broker's other errors, and ConnectionLost when the link is closed."""
        with self._lock:
            id, epoch = self._accumulator.producer
        try:
            generation = await self._link.ready(deadline)
            answer = await self._ask(id, epoch, generation, max(0.0, deadline - self._runtime.now()))
        except ConnectionLost:
            if self._link.closed:
                raise
            return False
        except KrappyError as error:
            if error.retriable:
                self.trouble = error.text
                return False
            raise
        with self._lock:
            old, self._handle = self._handle, answer.handle
            self._refresh = self._runtime.now() + REFRESH
            if old is not None and generation == self._generation:
                self._unregister(old, generation)
            if self._closing:  # in the meantime: `close` ended only the old registration
                self._unregister(answer.handle, generation)
            self._generation = generation
            self._accumulator.registered(
                answer.partitions, answer.producer_id, answer.producer_epoch, answer.max_message_bytes
            )
        return True

    async def _ask(self, id: int, epoch: int, generation: int, seconds: float) -> Registered:
        """Registers on the connection of `generation`, as the producer (id, epoch); (-1, -1): as a new one."""
        request = messages.ProducerRegistration(
            self.topic, self._name, idempotent=True, producer_id=id, producer_epoch=epoch
        )

        def abandoned(answer: messages.ProducerRegistered) -> None:
            self._unregister(answer.handle, generation)

        return await self._link.ask(
            request, messages.ProducerRegistered, generation=generation, timeout=seconds, abandoned=abandoned
        )

    async def _send(self) -> None:
        while True:
            with self._lock:
                handle, generation = self._handle, self._generation
                if handle is None:
                    return  # the connection was lost: batches wait for the next one
                batches = self._accumulator.take(self._runtime.now())
            if not batches:
                return
            for batch in batches:
                expect = None if batch.expects is None else list(enumerate(batch.expects.values()))
                request = messages.Batch(handle, batch.partition, self._accumulator.encode(batch), expect)
                reply = partial(self._answered, batch, generation)
                try:
                    while not batch.settled and not self._posted(request, reply, generation):
                        self._expire()
                    while not await self._link.drained(self._seconds_left()):
                        self._expire()
                except ConnectionLost as error:
                    self._lost(generation, error)
                    return
                except FrameTooLarge as error:
                    with self._lock:
                        refusal = too_large(error, self.topic, batch)
                        self._accumulator.refused(batch, refusal, self._runtime.now())
                    self._tell()
            await self._runtime.checkpoint()

    def _posted(self, request: messages.Batch, reply: Reply, generation: int) -> bool:
        """Whether the socket had room for it before the next batch has waited too long."""
        try:
            self._link.post(request, messages.BatchStored, reply, generation, self._seconds_left())
        except RequestTimeout:
            return False
        return True

    def _seconds_left(self) -> float | None:
        """Until the next batch will have waited too long; None: there is no batch."""
        with self._lock:
            expiry = self._accumulator.next_expiry()
        return None if expiry is None else max(0.0, expiry - self._runtime.now())

    def _expire(self) -> None:
        with self._lock:
            self._accumulator.expire(self._runtime.now())
        self._tell()

    def _answered(self, batch: LaneBatch, generation: int, result: Any) -> None:
        """The reply to a batch. It runs in the task or thread that reads the link."""
        if isinstance(result, ConnectionLost):
            self._lost(generation, result)
            return
        with self._lock:
            if isinstance(result, messages.BatchStored):
                self.trouble = ""
                self._accumulator.stored(batch, result.offset, result.timestamp)
            else:
                if result.name in ("UNKNOWN_TOPIC", "UNKNOWN_HANDLE"):
                    self._handle = None  # the topic was deleted; the next send registers anew, which may create it
                if isinstance(result, RecordTooLarge):
                    result = too_large(result, self.topic, batch)
                self.trouble = result.text
                self._accumulator.refused(batch, result, self._runtime.now())
            if self._accumulator.next_due() is not None:
                self._wake.set()
        self._tell()

    def _lost(self, generation: int, error: KrappyError) -> None:
        with self._lock:
            if generation == self._generation:
                self.trouble = error.text
                self._handle = None
                self._accumulator.lost()
            self._wake.set()
        self._tell()

    def _tell(self) -> None:
        """Tells the tickets of settled batches. Outside the lock, because callbacks may do anything."""
        with self._lock:
            settled = self._accumulator.collect()
            self._let_in()
        for each in settled:
            each.tell()
