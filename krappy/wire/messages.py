"""Every message of the native protocol: its type number, its fields, their types and limits.

This table is the protocol. The broker decodes requests with it, the clients encode them with it, PROTOCOL.md
explains it, and a test holds the three together. A request's map carries its correlation id as `id` beside the
fields below; an answer repeats it. Requests are strict: a missing, unknown or ill-typed field is an
`InvalidRequest` that names the field. Answers are read leniently: a newer broker may add fields.

`entry` is what a table holds for a key: `[offset, timestamp, value or nil, headers or nil]`; it is stored in
this form and travels as stored (`Raw`). Headers are a list of `[name, value or nil]`.
"""

from __future__ import annotations

from typing import Annotated, Any

from krappy.errors import KrappyError, from_wire
from krappy.wire.frames import ERROR, frame
from krappy.wire.schema import (
    I31,
    I64,
    U32,
    Answer,
    Bulk,
    Column,
    Expect,
    HeaderList,
    Millis,
    Offset,
    OffsetList,
    Order,
    PositionList,
    Positive,
    Range,
    RangeList,
    Raw,
    Request,
    Start,
    Timestamp,
    by_kind,
    pack,
    parse,
    read_answer,
    take_id,
    unpack,
)
from krappy.wire.staged import (
    AbortStaged,
    CommitStaged,
    SealStaged,
    Stage,
    Staged,
    StagedAborted,
    StagedCommitted,
    StagedJobs,
    StagedJobsFound,
    StagedSealed,
)

__all__ = [
    "ANSWERS",
    "REQUESTS",
    "AbortStaged",
    "Answer",
    "CommitStaged",
    "Request",
    "SealStaged",
    "Stage",
    "Staged",
    "StagedAborted",
    "StagedCommitted",
    "StagedJobs",
    "StagedJobsFound",
    "StagedSealed",
    "error_frame",
    "parse",
    "read_answer",
    "read_error",
    "take_id",
    "unpack",
]


def error_frame(id: int, error: KrappyError) -> bytes:
    """The answer that says why a request was refused."""
    values = {"id": id, "code": error.code, "name": error.name, "text": error.text, "retriable": error.retriable}
    return frame(ERROR, pack({**values, "details": error.details}))


def read_error(values: dict[str, Any]) -> KrappyError:
    """The exception that an error frame's map stands for, whatever is in it."""
    details = values.get("details")
    named = {str(key): value for key, value in details.items()} if type(details) is dict else {}
    return from_wire(str(values.get("name")), str(values.get("text", "")), named)


# --- registrations -------------------------------------------------------------------------------------------


class ProducerRegistration(Request, kind=1):
    topic: str
    name: str | None = None  # for people: shown in `connections`
    idempotent: bool = False  # asks for a producer id and epoch for Batch
    producer_id: Expect = -1  # with `idempotent`: the id held already (a client that reconnects)
    producer_epoch: Annotated[int, Range(-1, 2**15 - 1)] = -1


class ProducerRegistered(Answer, kind=1):
    handle: U32
    partitions: U32
    producer_id: int
    producer_epoch: int
    max_message_bytes: int  # of one record batch


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


class Unregister(Request, kind=23):
    """Ends a registration, a watch or a scan's cursor, whose `handle` it is."""

    handle: U32


class Unregistered(Answer, kind=23):
    pass


# --- publish -------------------------------------------------------------------------------------------------


class Message(Request, kind=3):
    handle: U32
    payload: bytes | None
    key: bytes | None = None
    timestamp: Timestamp | None = None
    headers: HeaderList | None = None
    partition: U32 | None = None  # None: by the key's murmur2, or round-robin
    expect: Expect | None = None  # the offset that the key must be at; -1: absent


class MessageStored(Answer, kind=3):
    partition: int
    offset: int
    timestamp: int


class Batch(Request, kind=5):
    handle: U32
    partition: U32
    records: Bulk  # exactly one RecordBatch v2
    expect: list[tuple[U32, Expect]] | None = None  # (index in the batch, offset or -1); all hold or none is stored


class BatchStored(Answer, kind=5):
    offset: int  # of the batch's first record
    timestamp: int  # the batch's max timestamp


# --- consume -------------------------------------------------------------------------------------------------


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


class Commit(Request, kind=9):
    """Sets a group's floor by hand: every event below `offset` counts as acknowledged."""

    group: str
    offsets: PositionList


class Committed(Answer, kind=9):
    pass


class Positions(Request, kind=10):
    """A group's committed floors (the design's `Committed`)."""

    group: str


class PositionsFound(Answer, kind=10):
    offsets: PositionList


class Offsets(Request, kind=25):
    """Where a topic's partitions stand: at an end, or at the first event with timestamp >= `start_at`."""

    topic: str
    start: Start
    start_at: I64 | None = None


class OffsetsFound(Answer, kind=25):
    offsets: OffsetList  # a timestamp later than every event gives the high watermark


# --- the table -----------------------------------------------------------------------------------------------


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


# --- the table and the log, by columns ------------------------------------------------------------------------

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


class SnapshotOpened(Answer, kind=40):
    snapshot: str  # its id
    offsets: OffsetList  # what it is exact for: the next offset of each partition
    ranges: list[tuple[U32, bytes | None, bytes | None]]  # partition, start, end: together all that it holds


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


class ReadLog(Request, kind=44):
    """Record batches from `offset` to before `end`, without a registration. Repeated with `next_offset`."""

    topic: str
    partition: U32
    offset: Offset
    end: Offset
    max_bytes: Positive = 1 << 20


class LogRead(Answer, kind=44):
    next_offset: int  # at least `end` after the last part
    records: Bulk  # whole record batches: the first may begin below `offset`, the last end beyond `end`


# --- administration ------------------------------------------------------------------------------------------


class CreateTopic(Request, kind=16):
    topic: str
    partitions: Positive = 1
    config: dict[str, Any] | None = None
    if_absent: bool = False  # an existing topic is no error


class TopicCreated(Answer, kind=16):
    created: bool
    partitions: int


class AlterTopic(Request, kind=17):
    topic: str
    config: dict[str, Any] | None = None  # nil as a value: back to the default
    partitions: Positive | None = None  # the new total; it only grows


class TopicAltered(Answer, kind=17):
    pass


class DeleteTopic(Request, kind=18):
    topic: str


class TopicDeleted(Answer, kind=18):
    pass


class DescribeTopics(Request, kind=19):
    topics: list[str] | None = None  # None: all


class TopicsDescribed(Answer, kind=19):
    """Each: name, id, config (what was set), settings (all, with defaults), partitions: each with partition,
    start, end, high_watermark, applied, size, segments."""

    topics: list[dict[str, Any]]


class DeleteRecords(Request, kind=27):
    topic: str
    before: list[tuple[U32, Expect]]  # (partition, offset): events below go; -1: all below the high watermark


class RecordsDeleted(Answer, kind=27):
    starts: OffsetList  # where each partition named begins now


class Groups(Request, kind=20):
    group: str | None = None  # None: list all, without members


class GroupsFound(Answer, kind=20):
    """Each: group, kind, order, topics, members (name, client, leased), partitions: each with topic, partition,
    floor, end, lag, leased, redelivering, dead."""

    groups: list[dict[str, Any]]


class DeleteGroup(Request, kind=21):
    group: str


class GroupDeleted(Answer, kind=21):
    pass


class ResetGroup(Request, kind=24):
    group: str
    topic: str | None = None  # None: every topic of the group
    partitions: list[U32] | None = None
    start: Start = "earliest"
    start_at: I64 | None = None
    dry_run: bool = False


class GroupReset(Answer, kind=24):
    positions: list[tuple[str, int, int, int]]  # topic, partition, old floor, new floor


class HoldBackup(Request, kind=60):
    """Links the broker's files of this moment aside, until `Unregister` of the handle."""


class BackupHeld(Answer, kind=60):
    handle: U32
    folder: str  # at the broker; its `manifest.json` says what counts
    files: U32
    size: Offset  # bytes of them all


class Ping(Request, kind=22):
    pass


class Pong(Answer, kind=22):
    """Also how a client learns what it speaks to."""

    version: str
    cluster: str
    time: int
    max_frame: int


REQUESTS: dict[int, type[Request]] = by_kind(Request.__subclasses__())
ANSWERS: dict[int, type[Answer]] = by_kind(Answer.__subclasses__())
