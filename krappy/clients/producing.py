"""What both producers are made of: records to partitions, a sender that keeps the accumulator's batches moving."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress, repeat
from operator import itemgetter
from typing import Any, TypeVar, cast

from krappy import codecs
from krappy.clients import values as given
from krappy.clients.accumulator import Accumulator, Limits
from krappy.clients.lane import Batch
from krappy.clients.link import Link
from krappy.clients.receipts import Fence, Many, One, Rows, Stored
from krappy.clients.runtime import Delivery
from krappy.clients.values import Expected, HeadersIn, Text, Time
from krappy.errors import ConfigError, ConnectionLost, InvalidRecord, InvalidRequest, KrappyError, UnknownPartition
from krappy.partitioner import partition_for
from krappy.types import Headers, Receipt, Record
from krappy.wire import messages

D = TypeVar("D", bound=Delivery[Any])
_BYTES: frozenset[type] = frozenset([bytes, type(None)])
CODECS = {None: codecs.NONE, "gzip": codecs.GZIP, "snappy": codecs.SNAPPY, "lz4": codecs.LZ4, "zstd": codecs.ZSTD}


def limits(
    linger_ms: float, batch_bytes: int, buffer_bytes: int, compression: str | None, idempotent: bool, timeout: float
) -> Limits:
    """Checked. Raises ConfigError."""
    if compression not in CODECS:
        raise ConfigError(f"compression={compression!r}: there are None, 'gzip', 'snappy', 'lz4' and 'zstd'")
    if linger_ms < 0 or batch_bytes < 1 or buffer_bytes < 1 or timeout <= 0:
        raise ConfigError("linger_ms is not negative; batch_bytes, buffer_bytes and timeout are positive")
    return Limits(
        linger=linger_ms / 1000,
        batch_bytes=batch_bytes,
        buffer_bytes=buffer_bytes,
        timeout=timeout,
        codec=CODECS[compression],
        idempotent=idempotent,
    )


class Producing:
    """Sends to one topic. `open` before all else; `run` beside it until `close`."""

    def __init__(self, link: Link, topic: str, limits: Limits, name: str | None = None) -> None:
        self.topic = topic
        self._link = link
        self._runtime = link.runtime
        self._lock = link.runtime.lock
        self._name = name
        self._accumulator = Accumulator(limits)
        self._idempotent = limits.idempotent
        self._generation = 0  # of the connection that it registered on last
        self._handle: int | None = None  # of the registration, while there is one
        self._wake = self._runtime.signal()
        self._room = self._runtime.signal()
        self._closing = False

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Registers, and starts the sender. Raises what the broker says of the topic, or ConnectionLost."""
        deadline = self._runtime.now() + self._link.timeout
        while not await self._register(deadline):
            if self._runtime.now() >= deadline:
                raise ConnectionLost(self._link.trouble, address=str(self._link.address))
        self._runtime.spawn(self._run, f"krappy producer to {self.topic}")

    async def flush(self, delivery: Delivery[None]) -> None:
        """Sends everything now; the delivery is made when all of it is settled."""
        fence = Fence(delivery)
        with self._lock:
            fence.left += self._accumulator.fence(fence)
            self._wake.set()
        fence.passed()

    def close(self) -> None:
        """Ends the sender and the registration. What was not flushed fails."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._accumulator.fail_all(ConnectionLost("the producer was closed before this was sent"))
            self._wake.set()
            self._room.set()
        self._tell()
        if self._handle is not None:
            request = messages.Unregister(self._handle)
            with suppress(ConnectionLost):  # the broker closes a registration with its connection
                self._link.post(request, messages.Unregistered, lambda _: None, self._generation)

    def now_ms(self) -> int:
        """The time that an event gets which has none of its own."""
        return self._runtime.wall_ms()

    @property
    def full(self) -> bool:
        return self._accumulator.full

    async def room(self) -> None:
        """Back-pressure: waits until the buffer has room. Raises ConnectionLost when the producer is closed."""
        while self._accumulator.full and not self._closing:
            with self._lock:
                if self._room.is_set():
                    self._room = self._runtime.signal()
                room = self._room
                if not self._accumulator.full:
                    break
            await room.wait()
        if self._closing:
            raise ConnectionLost("this producer is closed")

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
        """Takes one record, whose receipt goes to the delivery.

        Raises InvalidRecord, InvalidRequest, UnknownPartition, having taken nothing; ConnectionLost when closed.
        """
        value_bytes = value if type(value) is bytes else given.encoded(value, "value")
        key_bytes = key if type(key) is bytes else given.encoded(key, "key")
        pairs: Headers = given.headers(headers) if headers else ()
        time = self._runtime.wall_ms() if timestamp is None else given.milliseconds(timestamp)
        wanted = None if expect is None else given.expected(expect)
        if wanted is not None and key_bytes is None:
            raise InvalidRequest("an event with `expect` needs a key: the expectation is about what the key holds")
        ticket = One(self.topic, delivery)
        with self._lock:
            if self._closing:
                raise ConnectionLost("this producer is closed")
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
        """Takes rows; the runs they are stored in go to the delivery. Raises as `add` does, having taken nothing."""
        count = len(values)
        value_column = _column(values, "value")
        key_column = None if keys is None else _column(keys, "key")
        times = self._times(timestamps, count)
        header_column = None if headers is None else [given.headers(each) for each in headers]
        for column in (key_column, times, header_column):
            if column is not None and len(column) != count:
                raise InvalidRecord(f"columns of {len(column)} and {count} rows: they go together row by row")
        many = Many(self.topic, count, delivery)
        if not count:
            return delivery
        with self._lock:
            if self._closing:
                raise ConnectionLost("this producer is closed")
            now = self._runtime.now()
            for index, rows in self._spread(key_column, count, partition):
                if len(rows) == count:
                    self._accumulator.add_columns(
                        index, key_column, value_column, header_column, times, Rows(many, rows), now
                    )
                else:
                    self._accumulator.add_columns(
                        index,
                        None if key_column is None else _pick(key_column, rows),
                        _pick(value_column, rows),
                        None if header_column is None else _pick(header_column, rows),
                        _pick(times, rows),
                        Rows(many, rows),
                        now,
                    )
            self._wake.set()
        return delivery

    def _times(self, timestamps: Sequence[Time] | Time | None, count: int) -> Sequence[int]:
        if timestamps is None:
            return [self._runtime.wall_ms()] * count
        if isinstance(timestamps, Sequence):
            return [each if type(each) is int else given.milliseconds(each) for each in timestamps]
        return [given.milliseconds(timestamps)] * count

    def _spread(
        self, keys: Sequence[bytes | None] | None, count: int, partition: int | None
    ) -> Iterable[tuple[int, Sequence[int]]]:
        """Which rows go to which partition. Rows without a key stay together, a run for each partition in turn."""
        partitions = self._accumulator.partitions
        if partition is not None:
            return [(self._known(partition), range(count))]
        if partitions == 1:
            return [(0, range(count))]
        if keys is None:
            step = max(-(-count // partitions), 500)
            runs = [range(first, min(count, first + step)) for first in range(0, count, step)]
            return [(self._accumulator.next_partition(), rows) for rows in runs]
        try:
            chosen = list(map(partition_for, cast(Sequence[bytes], keys), repeat(partitions)))
        except TypeError:  # a None among them
            nowhere = self._accumulator.next_partition()
            chosen = [nowhere if key is None else partition_for(key, partitions) for key in keys]
        return [(index, list(compress(range(count), map(index.__eq__, chosen)))) for index in sorted(set(chosen))]

    # --- the sender ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not self._closing:
                with self._lock:
                    self._wake = wake = self._runtime.signal()
                    now = self._runtime.now()
                    self._accumulator.expire(now)
                self._tell()
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
        """Registers if that has to be. Whether batches may be sent."""
        with self._lock:
            there = self._handle is not None and self._link.lives(self._generation)
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
        """Whether it worked; not when the connection is lost meanwhile, or the time is over."""
        with self._lock:
            id, epoch = self._accumulator.producer
        request = messages.ProducerRegistration(
            self.topic, self._name, idempotent=self._idempotent, producer_id=id, producer_epoch=epoch
        )
        try:
            generation = await self._link.ready(deadline)
            seconds = max(0.0, deadline - self._runtime.now())
            answer = await self._link.ask(request, messages.ProducerRegistered, generation=generation, timeout=seconds)
        except ConnectionLost:
            if self._link.closed:
                raise
            return False
        except KrappyError as error:
            if error.retriable:
                return False
            raise
        with self._lock:
            self._handle, self._generation = answer.handle, generation
            self._accumulator.registered(
                answer.partitions, answer.producer_id, answer.producer_epoch, answer.max_message_bytes
            )
        return True

    async def _send(self) -> None:
        while True:
            with self._lock:
                handle, generation = self._handle, self._generation
                if handle is None:
                    return  # lost meanwhile: what would be taken now is for the next connection
                batches = self._accumulator.take(self._runtime.now())
            if not batches:
                return
            for batch in batches:
                expect = None if batch.expect is None else [(0, batch.expect)]
                request = messages.Batch(handle, batch.partition, self._accumulator.encode(batch), expect)
                await self._link.drained()
                try:
                    reply = partial(self._answered, batch, generation)
                    self._link.post(request, messages.BatchStored, reply, generation)
                except ConnectionLost as error:
                    self._lost(generation, error)
                    return
            await self._runtime.checkpoint()

    def _answered(self, batch: Batch, generation: int, result: Any) -> None:
        """A reply: runs wherever the link reads."""
        if isinstance(result, ConnectionLost):
            self._lost(generation, result)
            return
        with self._lock:
            if isinstance(result, messages.BatchStored):
                self._accumulator.stored(batch, result.offset, result.timestamp)
            else:
                if result.name in ("UNKNOWN_TOPIC", "UNKNOWN_HANDLE"):
                    self._handle = None  # the topic was deleted; what comes next registers anew, and may make it
                self._accumulator.refused(batch, result, self._runtime.now())
            if self._accumulator.next_due() is not None:
                self._wake.set()
        self._tell()

    def _lost(self, generation: int, error: KrappyError) -> None:
        with self._lock:
            if generation == self._generation:
                self._handle = None
                self._accumulator.lost(error)
            self._wake.set()
        self._tell()

    def _tell(self) -> None:
        """Lets senders know what was settled; outside the lock, for their callbacks may do anything."""
        with self._lock:
            settled = self._accumulator.collect()
            if not self._accumulator.full:
                self._room.set()
        for each in settled:
            each.tell()


def _column(column: Sequence[Text | None], what: str) -> Sequence[bytes | None]:
    if _BYTES.issuperset(map(type, column)):
        return cast(Sequence[bytes | None], column)
    return [given.encoded(each, what) for each in column]


def _pick(column: Sequence[Any], rows: Sequence[int]) -> Sequence[Any]:
    if isinstance(rows, range):
        return column[rows.start : rows.stop]
    return itemgetter(*rows)(column) if len(rows) > 1 else [column[rows[0]]]


class Columned:
    """Records and (key, value) pairs as columns."""

    def __init__(self, records: Iterable[Record | tuple[Text | None, Text | None]]) -> None:
        self.keys: list[Text | None] = []
        self.values: list[Text | None] = []
        self.headers: list[HeadersIn | None] | None = None
        self.timestamps: list[Time] | None = None
        headers: list[HeadersIn | None] = []
        timestamps: list[int | None] = []
        for record in records:
            if isinstance(record, Record):
                self.keys.append(record.key)
                self.values.append(record.value)
                headers.append(record.headers or None)
                timestamps.append(record.timestamp)
            else:
                key, value = record
                self.keys.append(key)
                self.values.append(value)
                headers.append(None)
                timestamps.append(None)
        if any(headers):
            self.headers = headers
        self._timestamps = timestamps

    def times(self, now: int) -> list[int]:
        """Each record's timestamp; `now` where it has none."""
        return [now if time is None else time for time in self._timestamps]


def receipts(runs: Iterable[Stored], times: Sequence[int]) -> list[Receipt]:
    """One for each row, in the order of the rows."""
    found: dict[int, Receipt] = {}
    for run in runs:
        for offset, row in enumerate(run.rows, run.offset):
            time = times[row] if run.append_time is None else run.append_time
            found[row] = Receipt(run.topic, run.partition, offset, time)
    return [found[row] for row in range(len(times))]
