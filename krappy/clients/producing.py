"""The code of both producers: it takes records, and assigns them to partitions. `sending.py` sends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from krappy.clients import values as given
from krappy.clients.accumulator import Limits
from krappy.clients.columns import as_bytes, pick, spread
from krappy.clients.receipts import Fence, Many, One, ReceiptRows
from krappy.clients.runtime import Promise
from krappy.clients.sending import Sending
from krappy.clients.values import Expected, HeadersIn, Text, Time
from krappy.errors import ConfigError, ConnectionLost, InvalidRecord, InvalidRequest, UnknownPartition
from krappy.partitioner import partition_for
from krappy.records import codecs
from krappy.types import Headers

D = TypeVar("D", bound=Promise[Any])
LOOKS = (0.0, 0.05, 0.2)  # pauses before looks for an added partition; the first answer may be older than it
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


class Producing(Sending):
    """Sends to one topic. `open` comes first and starts the sender, which runs until `close`."""

    # --- life ---------------------------------------------------------------------------------------------------

    async def flush(self, delivery: Promise[None]) -> None:
        """Sends everything now. The delivery gets None when all of it is settled."""
        if self._link.closed:
            self.close()
        fence = Fence(delivery)
        with self._lock:
            fence.left += self._accumulator.fence(fence)
            self._wake.set()
        fence.passed()

    def _ended(self) -> ConnectionLost:
        return ConnectionLost("this producer is closed" if self._closing else self._link.trouble)

    def now_ms(self) -> int:
        """The timestamp (ms) for events that are sent without one."""
        return self._runtime.wall_ms()

    def takes(self, partition: int | None = None) -> bool:
        """Whether the buffer has room and the partition is known. If not, `room` waits for that."""
        return not self._accumulator.full and not self._is_new(partition)

    def _is_new(self, partition: int | None) -> bool:
        return type(partition) is int and partition >= self._accumulator.partitions

    async def room(self, partition: int | None = None) -> None:
        """Back-pressure: waits until the buffer has room. A partition that is not known may have been added: then it
        asks for that first. Raises ConnectionLost when the producer is closed."""
        for pause in LOOKS:
            if self._is_new(partition):
                await self._runtime.sleep(pause)
                await self.recount().wait(self._link.timeout)
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
