"""Readers and the members of groups: where they stand, what they fetch, what they have done with it."""

from __future__ import annotations

from krappy.wire.schema import (
    I31,
    I64,
    U32,
    Answer,
    Bulk,
    Millis,
    Offset,
    OffsetList,
    Order,
    PositionList,
    Positive,
    RangeList,
    Request,
    Start,
)


class ConsumerRegistration(Request, kind=2):
    topics: list[str]
    group: str | None = None
    partitions: list[U32] | None = None  # without a group: these partitions of every topic named
    start: Start = "earliest"  # a group's first position, or the reader's
    start_at: I64 | None = None
    positions: PositionList | None = None  # without a group: exact positions; they win over `start`
    order: Order = "none"  # groups
    lease_ms: Positive = 30_000
    max_deliveries: Positive = 10
    dead_letter: str | None = None  # topic for events past max_deliveries; None: "<topic>.<group>.dead"


class ConsumerRegistered(Answer, kind=2):
    handle: U32
    member: str | None
    positions: PositionList  # where each partition's next event is
    ends: PositionList  # each partition's end now
    topic_ids: list[tuple[str, str]] | None = None  # without a group: (topic, id)


class Poll(Request, kind=4):
    handle: U32
    max_records: I31 = 500  # groups: exact; readers: reached by whole batches, at least one
    max_bytes: I31 = 1 << 20
    max_wait: Millis = 0  # how long to wait when there is nothing


class Polled(Answer, kind=4):
    """`parts`: (topic, partition, first offset to deliver, high watermark, record batches). `leases`: groups only,
    (topic, partition, first, last, deliveries): only these offsets of the parts are this member's."""

    parts: list[tuple[str, int, int, int, bytes]]
    leases: list[tuple[str, int, int, int, int]] | None = None


class Seek(Request, kind=11):
    """Moves a groupless reader. `start` as in ConsumerRegistration."""

    handle: U32
    topic: str
    partition: U32
    start: Start
    start_at: I64 | None = None


class Sought(Answer, kind=11):
    offset: int


class Ack(Request, kind=6):
    handle: U32
    ranges: RangeList


class Acked(Answer, kind=6):
    pass


class Nack(Request, kind=7):
    handle: U32
    ranges: RangeList
    delay_ms: Millis = 0


class Nacked(Answer, kind=7):
    pass


class Extend(Request, kind=8):
    handle: U32
    ranges: RangeList
    lease_ms: Positive


class Extended(Answer, kind=8):
    pass


class Offsets(Request, kind=25):
    """Where a topic's partitions stand: at an end, or at the first event with timestamp >= `start_at`."""

    topic: str
    start: Start
    start_at: I64 | None = None


class OffsetsFound(Answer, kind=25):
    offsets: OffsetList  # a timestamp later than every event gives the high watermark


class ReadLog(Request, kind=44):
    """Record batches from `offset` to before `end`, without a registration. Repeated with `next_offset`."""

    topic: str
    partition: U32
    offset: Offset
    end: Offset
    max_bytes: Positive = 1 << 20
    topic_id: str | None = None  # another topic of that name is refused


class LogRead(Answer, kind=44):
    next_offset: int  # at least `end` after the last part
    records: Bulk  # whole record batches: the first may begin below `offset`, the last end beyond `end`
