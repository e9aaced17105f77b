"""The table: by key, by range, as a stream of changes, and one key's past."""

from __future__ import annotations

from krappy.wire.schema import U32, Answer, Offset, OffsetList, Positive, Raw, Request


class Get(Request, kind=12):
    topic: str
    key: bytes
    partition: U32 | None = None  # None: by the key's murmur2
    min_offset: Offset | None = None  # wait for the view to include this offset, rather than all committed


class Got(Answer, kind=12):
    partition: int
    entry: Raw  # of one item: the entry, or nil for absent


class MultiGet(Request, kind=13):
    topic: str
    keys: list[bytes]
    partition: U32 | None = None


class MultiGot(Answer, kind=13):
    """In the order of the keys."""

    partitions: list[int] | None  # None: all in partition 0
    entries: Raw  # entry or nil


class Scan(Request, kind=14):
    """The first page (`cursor` None) opens a snapshot, later ones name the cursor and repeat nothing else."""

    topic: str | None = None
    prefix: bytes | None = None
    start: bytes | None = None  # inclusive
    end: bytes | None = None  # exclusive
    partitions: list[U32] | None = None
    tombstones: bool = False
    max_entries: Positive = 1000  # of one page
    max_bytes: Positive = 1 << 20
    cursor: U32 | None = None


class Scanned(Answer, kind=14):
    """One page, of one partition. `offsets`: what the snapshot is exact for: the next offset of each partition."""

    partition: int
    cursor: int | None  # None: this was the last page
    offsets: list[tuple[int, int]]
    entries: Raw  # key, entry, key, entry, … in key order


class Watch(Request, kind=15):
    """A stream of answers until `Unregister` of its handle: snapshot pages, its end, then changes."""

    topic: str
    prefix: bytes | None = None
    start: bytes | None = None
    end: bytes | None = None
    partitions: list[U32] | None = None
    tombstones: bool = False  # in the snapshot; changes always carry them
    offsets: OffsetList | None = None  # resume: no snapshot, changes from these next offsets on


class Watched(Answer, kind=15):
    event: str  # "snapshot" | "end_of_snapshot" | "changes"
    handle: U32
    partition: int
    next_offset: int  # changes: resume here; snapshot: what it is exact for
    more: bool
    offsets: list[tuple[int, int]] | None  # end_of_snapshot: the vector that the snapshot is exact for
    entries: Raw  # key, entry, …
    scattered: bool = False  # a key may come from another partition than before
    topic_id: str | None = None  # in the first answer


class History(Request, kind=26):
    """The raw events of one key, oldest first, a page at a time: repeat with `next_offset` until it is nil."""

    topic: str
    key: bytes
    partition: U32 | None = None
    offset: Offset = 0
    max_records: Positive = 1000
    max_bytes: Positive = 1 << 20


class HistoryFound(Answer, kind=26):
    partition: int
    next_offset: int | None
    entries: Raw
