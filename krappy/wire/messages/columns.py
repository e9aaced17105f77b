"""The table by columns, as Arrow lays them out, and the snapshots that many connections read together."""

from __future__ import annotations

from typing import Annotated

from krappy.wire.schema import U32, Answer, Column, Offset, OffsetList, Positive, Range, Request

BinaryColumn = tuple[bytes, bytes, bytes | None]  # offsets, data, validity, as Arrow lays them out
HeadersColumn = tuple[bytes, BinaryColumn, BinaryColumn]  # offsets, names, values


class OpenSnapshot(Request, kind=40):
    """Holds a moment of a table at the broker, for any connection to read, until its time to live is over."""

    topic: str
    partitions: list[U32] | None = None
    splits: Positive = 8  # ranges wanted, over all partitions; each partition has one at least
    ttl_ms: Positive = 60_000  # from the last use on
    prefix: bytes | None = None
    start: bytes | None = None  # inclusive
    end: bytes | None = None  # exclusive
    tombstones: bool = False  # whether reads bring them, unless they say otherwise
    topic_id: str | None = None  # another topic of that name is refused
    measure: Annotated[int, Range(0, 64 << 20)] | None = None  # bytes up to which the answer's `size` is to be exact


class SnapshotOpened(Answer, kind=40):
    snapshot: str  # its id
    offsets: OffsetList  # what it is exact for: the next offset of each partition
    ranges: list[tuple[U32, bytes | None, bytes | None]]  # partition, start, end: together all that it holds
    size: Offset | None = None  # bytes of its keys and entries; beyond `measure` an estimate, of no less than that


class ReadSnapshot(Request, kind=41):
    """Part of a range of a snapshot. Repeated with `next` as its start until that is nil."""

    snapshot: str
    partition: U32
    start: bytes | None = None
    end: bytes | None = None
    columns: list[Column] | None = None  # None: all
    tombstones: bool | None = None  # None: as the snapshot was opened
    max_bytes: Positive = 1 << 20


class SnapshotRead(Answer, kind=41):
    """In the order of keys. A column that was not asked for is nil; headers also when no row has any."""

    next: bytes | None  # where to go on; None: this was all
    rows: U32
    keys: BinaryColumn | None
    values: BinaryColumn | None
    offsets: bytes | None  # int64
    timestamps: bytes | None  # int64
    headers: HeadersColumn | None


class KeepSnapshot(Request, kind=42):
    """Lets a snapshot live on for another time to live (None: the one it has), from now on."""

    snapshot: str
    ttl_ms: Positive | None = None


class SnapshotKept(Answer, kind=42):
    pass


class CloseSnapshot(Request, kind=43):
    """Ends a snapshot. One that has ended already is no error."""

    snapshot: str


class SnapshotClosed(Answer, kind=43):
    pass


class GetColumns(Request, kind=45):
    """As MultiGet, for many keys: item `i` of them is `keys` from `offsets[i]` to before `offsets[i + 1]`."""

    topic: str
    offsets: bytes  # int32, one more than there are keys
    keys: bytes
    partition: U32 | None = None  # None: by each key's murmur2
    columns: list[Column] | None = None  # None: all; the keys themselves do not come back


class ColumnsGot(Answer, kind=45):
    """A row for each key, in their order."""

    rows: U32
    found: bytes | None  # a bit for each row; None: all. Absent keys have null or anything in the columns
    partitions: bytes | None  # int32; None: all in the one asked for, or in 0
    values: BinaryColumn | None
    offsets: bytes | None
    timestamps: bytes | None
    headers: HeadersColumn | None
