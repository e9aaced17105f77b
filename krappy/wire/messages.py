"""Every message of the native protocol: its type number, its fields, their types and limits.

This table is the protocol. The broker decodes requests with it, the clients encode them with it, PROTOCOL.md
explains it, and a test holds the three together. A request's map carries its correlation id as `id` beside the
fields below; an answer repeats it. Requests are strict: a missing, unknown or ill-typed field is an
`InvalidRequest` that names the field. Answers are read leniently: a newer broker may add fields.

`entry` is what a table holds for a key: `[offset, timestamp, value or nil, headers or nil]`; it is stored in
this form and travels as stored (`Raw`). Headers are a list of `[name, value or nil]`.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

import msgpack

from krappy.errors import InvalidRequest, KrappyError, ProtocolError, from_wire
from krappy.wire.frames import ANSWER, ERROR, frame


@dataclass(frozen=True)
class Range:
    low: int
    high: int


class _Raw:
    """Marks a field whose items are already packed."""


RAW = _Raw()
U32 = Annotated[int, Range(0, 2**32 - 1)]
I31 = Annotated[int, Range(0, 2**31 - 1)]
Offset = Annotated[int, Range(0, 2**63 - 1)]
Expect = Annotated[int, Range(-1, 2**63 - 1)]  # an offset, or -1: absent
Timestamp = Annotated[int, Range(0, 2**63 - 1)]  # ms since the epoch
Millis = Annotated[int, Range(0, 2**31 - 1)]
Raw = Annotated[list[bytes], RAW]
HeaderList = list[tuple[str, bytes | None]]
OffsetList = list[tuple[U32, Offset]]  # (partition, offset)
PositionList = list[tuple[str, U32, Offset]]  # (topic, partition, offset)
RangeList = list[tuple[str, U32, Offset, Offset]]  # (topic, partition, first offset, last offset)
Start = str  # "earliest" | "latest" | "offset" | "timestamp"; the last two with a number in `start_at`

Check = Callable[[Any], bool]
T = TypeVar("T", bound="_Message")


def _check_for(hint: Any) -> tuple[frozenset[type], Check | None]:
    """The exact types that a value may have, and what else must hold for it (None: nothing else)."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        kinds, check = _check_for(arguments[0])
        for mark in arguments[1:]:
            if isinstance(mark, Range):
                low, high = mark.low, mark.high
                return kinds, lambda value: low <= value <= high
        return kinds, check
    if origin in (types.UnionType, typing.Union):
        options = [_check_for(option) for option in arguments]
        checks = {kind: check for kinds, check in options for kind in kinds if check is not None}
        every = frozenset(kind for kinds, _ in options for kind in kinds)
        if not checks:
            return every, None
        return every, lambda value: type(value) not in checks or checks[type(value)](value)
    if origin is list:
        return frozenset([list]), _each(*_check_for(arguments[0]))
    if origin is tuple:
        return frozenset([list]), _shape([_check_for(argument) for argument in arguments])
    if origin is dict:
        return frozenset([dict]), None
    return frozenset([hint]), None


def _each(kinds: frozenset[type], check: Check | None) -> Check:
    if check is None:
        return lambda value: kinds.issuperset(map(type, value))
    return lambda value: all(type(item) in kinds and check(item) for item in value)


def _shape(items: list[tuple[frozenset[type], Check | None]]) -> Check:
    def shaped(value: Any) -> bool:
        return len(value) == len(items) and all(
            type(item) in kinds and (check is None or check(item))
            for item, (kinds, check) in zip(value, items, strict=True)
        )

    return shaped


@dataclass_transform(kw_only_default=False)
class _Message:
    kind: ClassVar[int]
    _table: ClassVar[list[tuple[str, frozenset[type], Check | None, Any]]]
    _raw: ClassVar[str | None]

    def __init_subclass__(cls, kind: int = 0) -> None:
        cls.kind = kind
        if kind:
            dataclass(slots=False)(cls)
            hints = typing.get_type_hints(cls, include_extras=True)
            cls._raw = None
            cls._table = []
            for field in fields(cls):  # type: ignore[arg-type]
                hint = hints[field.name]
                if RAW in typing.get_args(hint)[1:]:
                    cls._raw = field.name
                default = field.default
                if field.default_factory is not MISSING:
                    default = field.default_factory
                cls._table.append((field.name, *_check_for(hint), default))

    def body(self, id: int) -> bytes:
        """This message as a msgpack map with its correlation id."""
        raw = self._raw
        if raw is None:
            return _pack({"id": id, **self.__dict__})
        whole = dict(self.__dict__)
        items = whole.pop(raw)
        head = _pack({"id": id, **whole})
        packer = msgpack.Packer(autoreset=False)
        packer.pack_map_header(len(whole) + 2)
        start = packer.bytes()
        packer.reset()
        packer.pack(raw)
        packer.pack_array_header(len(items))
        rest = head[1:] if len(whole) + 1 < 16 else head[3:]
        return b"".join((start, rest, packer.bytes(), *items))


class Request(_Message):
    """What a client sends."""

    def frame(self, id: int) -> bytes:
        return frame(self.kind, self.body(id))


class Answer(_Message):
    """What the broker sends back. `more` marks every answer of a stream but its last."""

    def frame(self, id: int) -> bytes:
        return frame(self.kind | ANSWER, self.body(id))


_pack = msgpack.Packer(autoreset=True).pack


def unpack(body: bytes | memoryview) -> dict[str, Any]:
    """The map of a frame. Raises ProtocolError for anything else, whatever the bytes."""
    try:
        found = msgpack.unpackb(body, raw=False, strict_map_key=True)
    except RecursionError:
        raise ProtocolError("msgpack nested too deeply") from None
    except Exception as error:  # msgpack raises ValueError, its own kinds, UnicodeDecodeError, OverflowError
        raise ProtocolError(f"not msgpack: {error or type(error).__name__}") from None
    if type(found) is not dict:
        raise ProtocolError(f"a frame holds one msgpack map, not {type(found).__name__}")
    return found


def take_id(values: dict[str, Any]) -> int:
    """Removes and returns the correlation id. Raises ProtocolError when there is none."""
    id = values.pop("id", None)
    if type(id) is not int or not 0 <= id < 2**63:
        raise ProtocolError("a message needs its correlation id: an integer field 'id'")
    return id


def parse(cls: type[T], values: dict[str, Any], strict: bool = True) -> T:
    """A message from its map (without `id`). Raises InvalidRequest that names the wrong field."""
    found = []
    for name, kinds, check, default in cls._table:
        value = values.pop(name, MISSING)
        if value is MISSING:
            if default is MISSING:
                raise InvalidRequest(f"{cls.__name__} needs the field '{name}'", field=name)
            value = default() if callable(default) else default
        elif type(value) not in kinds or (check is not None and not check(value)):
            raise InvalidRequest(f"{cls.__name__}: the field '{name}' is wrong: {value!r:.80}", field=name)
        found.append(value)
    if strict and values:
        name = str(next(iter(values)))[:80]
        raise InvalidRequest(f"{cls.__name__} has no field '{name}'", field=name)
    return cls(*found)


def error_frame(id: int, error: KrappyError) -> bytes:
    values = {"id": id, "code": error.code, "name": error.name, "text": error.text, "retriable": error.retriable}
    return frame(ERROR, _pack({**values, "details": error.details}))


def read_error(values: dict[str, Any]) -> KrappyError:
    """The exception that an error frame's map stands for."""
    details = values.get("details")
    named = {str(key): value for key, value in details.items()} if type(details) is dict else {}
    named.pop("text", None)
    return from_wire(str(values.get("name")), str(values.get("text")), named)


def read_answer(cls: type[T], values: dict[str, Any]) -> T:
    """An answer from its map. Raises ProtocolError: a broker that answers wrongly is not one."""
    try:
        return parse(cls, values, strict=False)
    except InvalidRequest as error:
        raise ProtocolError(error.text) from None


def by_kind(classes: Iterable[type[_Message]]) -> dict[int, type[_Message]]:
    return {cls.kind: cls for cls in classes}


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
    start_at: int | None = None
    positions: PositionList | None = None  # without a group: exact positions; they win over `start`
    order: str = "none"  # groups: "none" | "key"
    lease_ms: Annotated[int, Range(1, 2**31 - 1)] = 30_000
    max_deliveries: Annotated[int, Range(1, 2**31 - 1)] = 10
    dead_letter: str | None = None  # topic for events past max_deliveries; None: "<topic>.<group>.dead"


class ConsumerRegistered(Answer, kind=2):
    handle: U32
    member: str | None
    positions: PositionList  # where each partition's next event is
    ends: PositionList  # each partition's high watermark now


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
    records: bytes  # exactly one RecordBatch v2
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
    start_at: int | None = None


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
    lease_ms: Annotated[int, Range(1, 2**31 - 1)]


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
    start_at: int | None = None


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
    max_entries: Annotated[int, Range(1, 2**31 - 1)] = 1000  # of one page
    max_bytes: Annotated[int, Range(1, 2**31 - 1)] = 1 << 20
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
    max_records: Annotated[int, Range(1, 2**31 - 1)] = 1000
    max_bytes: Annotated[int, Range(1, 2**31 - 1)] = 1 << 20


class HistoryFound(Answer, kind=26):
    partition: int
    next_offset: int | None
    entries: Raw


# --- administration ------------------------------------------------------------------------------------------


class CreateTopic(Request, kind=16):
    topic: str
    partitions: Annotated[int, Range(1, 2**31 - 1)] = 1
    config: dict[str, Any] | None = None
    if_absent: bool = False  # an existing topic is no error


class TopicCreated(Answer, kind=16):
    created: bool
    partitions: int


class AlterTopic(Request, kind=17):
    topic: str
    config: dict[str, Any] | None = None  # nil as a value: back to the default
    partitions: Annotated[int, Range(1, 2**31 - 1)] | None = None  # the new total; it only grows


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
    start_at: int | None = None
    dry_run: bool = False


class GroupReset(Answer, kind=24):
    positions: list[tuple[str, int, int, int]]  # topic, partition, old floor, new floor


class Ping(Request, kind=22):
    pass


class Pong(Answer, kind=22):
    """Also how a client learns what it speaks to."""

    version: str
    cluster: str
    time: int
    max_frame: int


REQUESTS = by_kind(Request.__subclasses__())
ANSWERS = by_kind(Answer.__subclasses__())
