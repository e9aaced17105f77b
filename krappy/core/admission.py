"""Checks a producer's record batch before it is appended, by the batch and its topic's settings alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from krappy.core.conditions import MENTION, Conditions, conditions
from krappy.errors import CorruptBatch, InvalidRecord, InvalidTimestamp, RecordTooLarge
from krappy.records import batch as batches
from krappy.records.batch import BatchHeader, Columns
from krappy.settings.topic import TopicConfig
from krappy.types import NO_TIMESTAMP

MAX_OPENED = 32 << 20  # bytes that a compressed batch may decompress to, unless max.message.bytes is larger

INLINE = 1 << 20  # the same on the event loop: so many bytes, or 16,384 records or headers
SMALL = 64 << 10  # bytes up to which an uncompressed batch is always read on the event loop
MOST_PARTS = 1000  # members, frames or blocks of a compressed batch, beyond one for each KiB of content
INLINE_PARTS = 16  # the same on the event loop

MAX_KEPT = 256 << 10  # bytes of memory; the columns of a batch that take no more are kept until it is stored
MAX_RATIO = 4  # columns of up to so many times the batch's size are kept, too; others are decoded again when needed

MAX_NAMED = 1000  # records of a batch that an error names


class Admitted(NamedTuple):
    """A batch that may be appended. `columns`: its records, if they were decoded for the checks and are small enough to
    keep until the batch is stored; else None. `cost`: bytes of memory that they take, about. `expect`: the conditions
    in its records' headers. `keys`: bytes of its keys, if its records were compressed and decoded."""

    header: BatchHeader
    data: bytes | memoryview
    columns: Columns | None
    cost: int = 0
    expect: Conditions = ()
    keys: int = 0


class Times:
    """The timestamps that a topic accepts from producers now; any, if the broker stamps events.

    -1 means that there is none. Other negative ones are refused, as by Kafka's own producer; Kafka's broker accepts
    them, and then fails to recompress them.
    """

    def __init__(self, config: TopicConfig, now_ms: int) -> None:
        before, after = config.timestamp_before_ms, config.timestamp_after_ms
        self._now, self._before, self._after = now_ms, before, after
        self._any = config.log_append_time
        self._least = 0 if before is None else max(0, now_ms - before)
        self._most = None if after is None else now_ms + after

    def admit(self, smallest: int, largest: int, every: Callable[[], Sequence[int]]) -> None:
        """Checks a batch's timestamps (ms). `smallest`: must be exact only if it is below 0. `every`: gives all; called
        only when these two do not decide. Raises InvalidTimestamp that names the records."""
        if self._any:
            return
        within = smallest >= NO_TIMESTAMP and (self._most is None or largest <= self._most)
        if within and (not self._least or not any(map(self.wrong, every()))):
            return
        wrong = ((index, what) for index, time in enumerate(every()) if (what := self.wrong(time)))
        raise _named(InvalidTimestamp, wrong)

    def admit_one(self, time: int) -> None:
        """Checks the timestamp (ms) of a single event. Raises InvalidTimestamp."""
        if what := self.wrong(time):
            raise InvalidTimestamp("the event " + what, index=0)

    def wrong(self, time: int) -> str:
        """What is wrong with a timestamp; empty when nothing is."""
        if self._any or time == NO_TIMESTAMP:
            return ""
        if time < 0:
            return f"has the timestamp {time}, which is before 1970; -1 says that there is none"
        if self._most is not None and time > self._most:
            return (
                f"has the timestamp {time}, which is {time - self._now} ms ahead of the broker's clock; "
                f"message.timestamp.after.max.ms is {self._after} (timestamps are milliseconds)"
            )
        if time < self._least:
            return (
                f"has the timestamp {time}, which is {self._now - time} ms behind the broker's clock; "
                f"message.timestamp.before.max.ms is {self._before}"
            )
        return ""


def admit(data: bytes | memoryview, config: TopicConfig, times: Times | None, *, by_header: bool = False) -> Admitted:
    """Checks a producer's batch: size, CRC, structure, and what the topic demands of its records.

    The rules are Kafka's (LogValidator.java): magic 2, not a control batch, offsets dense from 0, times of creation
    within the topic's limits, every record keyed when the topic is compacted. A wrong max timestamp is corrected, since
    retention and searches by time use it. `times`: None for events that were accepted before. `by_header`: conditions
    are taken from the records' headers. Raises RecordTooLarge, InvalidRecord, InvalidTimestamp, CorruptBatch,
    UnsupportedCompression.
    """
    return admit_records(admit_header(data, config), data, config, times, by_header=by_header)


def admit_header(data: bytes | memoryview, config: TopicConfig) -> BatchHeader:
    """The part of `admit` that does not look at the records."""
    if len(data) > config.max_message_bytes:
        raise RecordTooLarge(
            f"a batch of {len(data)} bytes; max.message.bytes is {config.max_message_bytes}",
            limit=config.max_message_bytes,
        )
    header = batches.check(data)
    if header.size != len(data):
        raise CorruptBatch(f"exactly one record batch is expected; {len(data) - header.size} bytes follow it")
    if header.is_control:
        raise InvalidRecord("only the broker may write control batches")
    if header.log_append_time:
        raise InvalidTimestamp("only a topic may set LogAppendTime (message.timestamp.type), not a producer")
    if header.delete_horizon is not None:
        raise InvalidRecord("only the cleaner may set a delete horizon, not a producer")
    if header.count < 1 or header.last_offset_delta != header.count - 1:
        raise InvalidRecord(f"{header.count} records do not fit a last offset delta of {header.last_offset_delta}")
    return header


def may_be_large(header: BatchHeader, size: int) -> bool:
    """Whether the records of a batch of so many bytes may be too much for the event loop."""
    return header.compressed or size > SMALL


def admit_records(
    header: BatchHeader,
    data: bytes | memoryview,
    config: TopicConfig,
    times: Times | None,
    *,
    by_header: bool = False,
    inline: bool = False,
    keep: bool = False,
) -> Admitted:
    """The rest of `admit`. `inline`: also raises CorruptBatch for a batch that `may_be_large` and is too large for the
    event loop. `keep`: the result has the columns in any case."""
    limit, parts = max(MAX_OPENED, config.max_message_bytes), MOST_PARTS
    if inline and may_be_large(header, len(data)):
        limit, parts = INLINE, INLINE_PARTS
    if not (config.view or config.compact or keep):
        mention = MENTION if by_header else b""
        latest, negative, named = batches.validate(data, limit=limit, mention=mention, parts=parts)
        if times is not None:
            times.admit(negative, latest, lambda: batches.decode(data, limit=limit).timestamps)
        expect = conditions(batches.decode(data, limit=limit)) if named else ()
        return Admitted(*_timed(header, data, latest), None, 0, expect)
    columns = batches.decode(data, limit=limit, keyed=True, parts=parts)
    if config.compact and None in columns.keys:
        raise _keyless(columns.keys)
    latest = max(columns.timestamps)
    if times is not None:
        times.admit(min(columns.timestamps), latest, lambda: columns.timestamps)
    header, data = _timed(header, data, latest)
    expect = conditions(columns) if by_header else ()
    cost = columns_cost(header, columns)
    keys = sum(map(len, filter(None, columns.keys))) if header.compressed else 0
    if cost > MAX_KEPT and cost > MAX_RATIO * len(data) and not (keep or expect):
        return Admitted(header, data, None, 0, expect, keys)
    return Admitted(header, data, columns, cost, expect, keys)


def _timed(header: BatchHeader, data: bytes | memoryview, latest: int) -> tuple[BatchHeader, bytes | memoryview]:
    """The batch with `latest` (ms) as its max timestamp."""
    if latest == header.max_timestamp:
        return header, data
    data = batches.correct_max_timestamp(data, latest)
    return batches.read_header(data), data


def _keyless(keys: Sequence[object]) -> InvalidRecord:
    what = "has no key; a topic with cleanup.policy=compact needs one"
    return _named(InvalidRecord, ((index, what) for index, key in enumerate(keys) if key is None))


def _named(kind: type[InvalidRecord], wrong: Iterable[tuple[int, str]]) -> InvalidRecord:
    """Names every record that is wrong, up to `MAX_NAMED`, so that a producer tells them from the others (KIP-467)."""
    (index, text), *others = [(index, f"record {index} {what}") for index, what in islice(wrong, MAX_NAMED)]
    return kind(text, index=index, others=others)


def columns_cost(header: BatchHeader, columns: Columns) -> int:
    """Bytes of memory that the columns of a batch take, about."""
    size, count = header.size, header.count
    if header.compressed:
        size = sum(map(len, filter(None, columns.values))) + sum(map(len, filter(None, columns.keys)))
    for some in columns.headers or ():
        count += len(some)
        if header.compressed and some:
            size += sum(len(name) + len(value or b"") for name, value in some)
    return size + count * batches.RECORD_COST
