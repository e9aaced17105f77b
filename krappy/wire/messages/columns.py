"""The table by columns, as Arrow lays them out, and the snapshots that many connections read together.

For reading much, by many at once: a moment of the table that any connection may read, and parts of a log without a
registration. Every request stands by itself, so whoever stops reading leaves nothing behind, and after a lost
connection the same request may be sent again.

Columns come as Arrow lays them out in memory ("Apache Arrow Columnar Format"), so that they can be used as they are.
Unlike all other numbers, those in columns are little-endian.

- `offsets`, `timestamps` (bin): an int64 for each row. A timestamp is -1 where the producer gave none.
- `keys`, `values`: `[offsets, data, validity]`. `offsets` (bin) is rows + 1 int32, item `i` being the bytes of `data`
  (bin) from offset `i` to before offset `i + 1`. `validity` (bin or nil) has a bit for each row, bit `i % 8` of byte
  `i // 8`, 1: there is a value, 0: null; nil: none is null. A value that is null is a tombstone's.
- `headers`: `[offsets, names, values]`. Row `i` has the headers from offset `i` (int32) to before offset `i + 1`, whose
  names and values are columns of the form above. The whole is nil when no row has any.
"""

from __future__ import annotations

from typing import Annotated

from krappy.wire.schema import U32, Answer, Bulk, Column, Offset, OffsetList, Positive, Range, Request

BinaryColumn = tuple[bytes, bytes, bytes | None]  # offsets, data, validity, as Arrow lays them out
HeadersColumn = tuple[bytes, BinaryColumn, BinaryColumn]  # offsets, names, values


class OpenSnapshot(Request, kind=40):
    """Takes a snapshot of a topic's table, once that includes everything that is committed when the request arrives,
    and holds it under an id that is good on every connection. It keeps old data on the broker's disk, so only so
    many are held at a time (THROTTLING_QUOTA_EXCEEDED), and one ends when it was neither read nor kept for its time
    to live, by CloseSnapshot, or with the broker. Then requests for it are answered by SNAPSHOT_GONE.
    """

    topic: str
    partitions: list[U32] | None = None  # nil: all
    # how many ranges of about equal size are wanted, over all partitions. A small table has fewer; each partition
    # has one at least
    splits: Positive = 8
    ttl_ms: Positive = 60_000  # how long it lives after it was last used, in ms; a day at the most
    prefix: bytes | None = None  # only keys that begin so; not together with `start` or `end`
    start: bytes | None = None  # the first key, included
    end: bytes | None = None  # the last key, excluded
    tombstones: bool = False  # whether reads bring deleted keys too, unless they say otherwise
    topic_id: str | None = None  # the topic's `id`, as of DescribeTopics: another topic of its name is UNKNOWN_TOPIC
    # bytes up to which `size` in the answer is to be exact; nil: it is not wanted. The broker looks at so many
    # bytes of the table
    measure: Annotated[int, Range(0, 64 << 20)] | None = None


class SnapshotOpened(Answer, kind=40):
    snapshot: str  # its id
    offsets: OffsetList  # of each partition, the next offset after what the snapshot includes
    # [[partition, start, end], …]: ranges of keys from `start` (bin, included; nil: open) to `end` (excluded):
    # each key of the snapshot is in one of them
    ranges: list[tuple[U32, bytes | None, bytes | None]]
    # bytes that the keys and entries of the snapshot have; of a table of more than `measure` an estimate, which
    # is no less than that
    size: Offset | None = None


class ReadSnapshot(Request, kind=41):
    """A part of a snapshot, in the order of keys: from `start` on, as much as fits. Repeat it with `next` as `start`
    until `next` is nil. Any range may be read by anyone, at any time, in any order.
    """

    snapshot: str  # its id
    partition: U32  # one that it has
    start: bytes | None = None  # the first key, included
    end: bytes | None = None  # the last key, excluded
    # some of "key", "value", "offset", "timestamp", "headers": only these are sent; nil: all
    columns: list[Column] | None = None
    tombstones: bool | None = None  # deleted keys too; nil: as the snapshot was opened
    max_bytes: Positive = 1 << 20  # of one answer, about


class SnapshotRead(Answer, kind=41):
    next: bytes | None  # where to go on; nil: this was all
    rows: U32  # how many; there may be none although more follow
    keys: BinaryColumn | None  # nil: not asked for, as with the others
    values: BinaryColumn | None  # null: deleted
    offsets: bytes | None  # of the events that the entries are from
    timestamps: bytes | None  # ms
    headers: HeadersColumn | None  # nil also when no row has any


class KeepSnapshot(Request, kind=42):
    """Lets a snapshot live on, from now."""

    snapshot: str  # its id
    ttl_ms: Positive | None = None  # a new time to live; nil: the one that it has


class SnapshotKept(Answer, kind=42):
    pass


class CloseSnapshot(Request, kind=43):
    """Ends a snapshot. One that has ended already is no error."""

    snapshot: str  # its id


class SnapshotClosed(Answer, kind=43):
    pass


class GetColumns(Request, kind=45):
    """The entries of up to 100,000 keys, as columns: row `i` answers key `i`. An answer of more than 16 MiB is refused
    by MESSAGE_TOO_LARGE.
    """

    topic: str
    offsets: bytes  # int32, one more than there are keys: key `i` is in `keys` from offset `i` to before offset `i + 1`
    keys: bytes  # the keys, one behind the other
    partition: U32 | None = None  # where to look; nil: by each key's murmur2; all of them while the topic has strays
    # some of "value", "offset", "timestamp", "headers": only these are sent; nil: all
    columns: list[Column] | None = None


class ColumnsGot(Answer, kind=45):
    rows: U32  # how many: as many as keys
    # a bit for each row, as in `validity`: 0: the key is absent, and what its row has in the columns means
    # nothing; nil: none is
    found: bytes | None
    partitions: bytes | None  # int32; nil: all are in the partition asked for, or in 0
    values: BinaryColumn | None  # null: absent, or deleted
    offsets: bytes | None  # of the events that the entries are from
    timestamps: bytes | None  # ms
    headers: HeadersColumn | None  # nil also when no row has any


class ReadLog(Request, kind=44):
    """Events of a partition from `offset` to before `end`, as record batches: as many as fit. Repeat it with
    `next_offset` as `offset` until that is `end` or more. OFFSET_OUT_OF_RANGE unless all of them are there: when the
    log begins behind `offset`, or `end` is beyond the high watermark.
    """

    topic: str
    partition: U32
    offset: Offset  # the first event wanted
    end: Offset  # the event behind the last one wanted
    max_bytes: Positive = 1 << 20  # of one answer; a single larger batch still comes whole
    topic_id: str | None = None  # the topic's `id`, as of DescribeTopics: another topic of its name is UNKNOWN_TOPIC


class LogRead(Answer, kind=44):
    next_offset: int  # where to go on
    # whole record batches. The first may begin below `offset`, the last may end beyond `end`: leave these events
    # out
    records: Bulk
