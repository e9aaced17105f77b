"""Columns of the table and the log, as Arrow lays them out, and snapshots that many connections read together.

These are for large reads by many readers at once: of a snapshot of the table, which any connection may read, and of
parts of a log, without a registration. Each request is complete in itself: after a lost connection it may be sent
again, and a reader that stops leaves nothing behind.

Columns have Arrow's layout in memory ("Apache Arrow Columnar Format"), so they can be used as they come. Unlike all
other numbers, those in columns are little-endian.

- `offsets`, `timestamps` (bin): an int64 for each row. A timestamp is -1 if the producer gave none.
- `keys`, `values`: `[offsets, data, validity]`. `offsets` (bin) has rows + 1 int32: the item of row `i` is the bytes of
  `data` (bin) from the offset at `i` to before the one at `i + 1`. `validity` (bin or nil) has a bit for each row: bit
  `i % 8` of byte `i // 8` is 1 if there is a value, 0 for null. Nil means that none is null. A null value is a
  tombstone's.
- `headers`: `[offsets, names, values]`. Row `i` has the headers from the offset (int32) at `i` to before the one at
  `i + 1`. `names` and `values` are columns in the form above. The whole is nil if no row has headers.
"""

from __future__ import annotations

from typing import Annotated

from krappy.wire.schema import U32, Answer, Bulk, Columns, Indexes, Offset, OffsetList, Positive, Range, Request

BinaryColumn = tuple[bytes, bytes, bytes | None]  # offsets, data, validity, as Arrow lays them out
HeadersColumn = tuple[bytes, BinaryColumn, BinaryColumn]  # offsets, names, values


class OpenSnapshot(Request, kind=40):
    """Takes a snapshot of a topic's table, as soon as the table includes everything that was committed when the request
    came. The broker holds it under an id that is valid on every connection. A snapshot keeps old data on the broker's
    disk, so their number is limited (THROTTLING_QUOTA_EXCEEDED). It ends when it was neither read nor kept for
    `ttl_ms`, by CloseSnapshot, or with the broker. Then requests for it are answered by SNAPSHOT_GONE.
    """

    topic: str
    partitions: Indexes | None = None  # nil: all
    # how many ranges of about equal size are wanted, over all partitions. A small table may have fewer; each
    # partition has at least one
    splits: Positive = 8
    ttl_ms: Positive = 60_000  # how long it lives after it was last read or kept, in ms; a day at most
    prefix: bytes | None = None  # only keys with this prefix; not together with `start` or `end`
    start: bytes | None = None  # the first key, included
    end: bytes | None = None  # the last key, excluded
    tombstones: bool = False  # whether reads bring deleted keys too, unless a read says otherwise
    topic_id: str | None = None  # the topic's `id` of DescribeTopics: UNKNOWN_TOPIC if the topic has another id
    # up to how many bytes the answer's `size` is exact; nil: no `size` is wanted. The broker reads this many bytes of
    # the table
    measure: Annotated[int, Range(0, 64 << 20)] | None = None
    among: U32 | None = None  # as for Get


class SnapshotOpened(Answer, kind=40):
    snapshot: str  # its id
    offsets: OffsetList  # for each partition, the first offset that the snapshot does not include
    # [[partition, start, end], …]: ranges of keys from `start` (bin, included; nil: open) to `end` (excluded).
    # Each key of the snapshot is in exactly one of them
    ranges: list[tuple[U32, bytes | None, bytes | None]]
    # bytes of the snapshot's keys and entries. If there are more than `measure`, an estimate, which is at least
    # `measure`
    size: Offset | None = None


class ReadSnapshot(Request, kind=41):
    """Reads a part of a snapshot in the order of keys, from `start` on, as much as fits. Repeat it with `next` as
    `start` until `next` is nil. Any connection may read any range, at any time, in any order.
    """

    snapshot: str  # its id
    partition: U32  # one of the snapshot's
    start: bytes | None = None  # the first key, included
    end: bytes | None = None  # the last key, excluded
    # some of "key", "value", "offset", "timestamp", "headers": only these are sent; nil: all
    columns: Columns | None = None
    tombstones: bool | None = None  # deleted keys too; nil: as OpenSnapshot said
    max_bytes: Positive = 1 << 20  # about how large one answer may be


class SnapshotRead(Answer, kind=41):
    next: bytes | None  # the `start` of the next request; nil: this was all
    rows: U32  # how many; there may be none although more follow
    keys: BinaryColumn | None  # nil: not asked for; the same holds for the other columns
    values: BinaryColumn | None  # null: deleted
    offsets: bytes | None  # of the events that the entries are from
    timestamps: bytes | None  # ms
    headers: HeadersColumn | None  # nil also when no row has any


class KeepSnapshot(Request, kind=42):
    """Keeps a snapshot for another time to live, from now."""

    snapshot: str  # its id
    ttl_ms: Positive | None = None  # a new time to live; nil: the one that it has


class SnapshotKept(Answer, kind=42):
    pass


class CloseSnapshot(Request, kind=43):
    """Ends a snapshot. It is no error if the snapshot has ended already."""

    snapshot: str  # its id


class SnapshotClosed(Answer, kind=43):
    pass


class GetColumns(Request, kind=45):
    """The entries of up to 100,000 keys, as columns: row `i` answers key `i`. An answer of more than 16 MiB is refused
    by MESSAGE_TOO_LARGE.
    """

    topic: str
    offsets: bytes  # as in a column: int32, one more than there are keys
    keys: bytes  # the keys, one after the other
    partition: U32 | None = None  # where to look; nil: by each key's murmur2, or in all while the topic has strays
    # some of "value", "offset", "timestamp", "headers": only these are sent; nil: all
    columns: Columns | None = None


class ColumnsGot(Answer, kind=45):
    rows: U32  # how many: one for each key
    # a bit for each row, as in `validity`. 0: the key is absent, and its row in the columns means nothing. Nil: no
    # key is absent
    found: bytes | None
    partitions: bytes | None  # int32 for each row; nil: all are in the partition asked for, or in 0
    values: BinaryColumn | None  # null: absent, or deleted
    offsets: bytes | None  # of the events that the entries are from
    timestamps: bytes | None  # ms
    headers: HeadersColumn | None  # nil also when no row has any


class ReadLog(Request, kind=44):
    """Reads the events of a partition from `offset` to before `end`, as record batches, as many as fit. Repeat it with
    `next_offset` as `offset` until that is `end` or more. The answer is OFFSET_OUT_OF_RANGE when the log starts after
    `offset`, or when `end` is beyond the last stable offset.
    """

    topic: str
    partition: U32
    offset: Offset  # the first event wanted
    end: Offset  # the first event not wanted
    max_bytes: Positive = 1 << 20  # of one answer; a single larger batch still comes whole
    topic_id: str | None = None  # the topic's `id` of DescribeTopics: UNKNOWN_TOPIC if the topic has another id


class LogRead(Answer, kind=44):
    next_offset: int  # the `offset` of the next request
    # whole record batches. The first may begin before `offset`, the last may end after `end`: leave these events out
    records: Bulk
