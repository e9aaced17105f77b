"""The base of messages: their fields, the checks of these, and how a map becomes a message and back.

Rules of this file: a class's checks are made when it is first used, from the types that `messages/` declares. Whatever
the bytes, it raises only `ProtocolError` (not a msgpack map) and `InvalidRequest` (a wrong map). It quotes only the
beginning of a wrong value, which may be as large as a frame.
"""

from __future__ import annotations

import reprlib
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

import msgpack

from krappy.errors import InvalidRequest, ProtocolError
from krappy.wire.frames import ANSWER, frame

Check = Callable[[Any], bool]
Kinds = frozenset[type]
T = TypeVar("T", bound="Base")


@dataclass(frozen=True)
class Range:
    """Marks an integer field: both bounds are allowed."""

    low: int
    high: int


@dataclass(frozen=True)
class OneOf:
    """Marks a string field that is one of a few words."""

    words: frozenset[str]


@dataclass(frozen=True)
class Once:
    """Marks an array that is a set: a request has each element once, whatever its peer sends. `key`: how many of its
    first values identify an element, of whose occurrences the last one counts; 0: the whole element does."""

    key: int = 0

    def __call__(self, found: list[Any]) -> list[Any]:
        if not self.key:
            return list(dict.fromkeys(found))
        if self.key == 1:
            return list({each[0]: each for each in found}.values())
        return list({tuple(each[: self.key]): each for each in found}.values())


class _Raw:
    """Marks a field whose items are given already packed for writing; reading unpacks them."""


class _Bulk:
    """Marks a field of many bytes. It is written last, so that making the frame copies it only once."""


RAW = _Raw()
BULK = _Bulk()
U32 = Annotated[int, Range(0, 2**32 - 1)]
I31 = Annotated[int, Range(0, 2**31 - 1)]
I64 = Annotated[int, Range(-(2**63), 2**63 - 1)]
Offset = Annotated[int, Range(0, 2**63 - 1)]
Least = Annotated[int, Range(-1, 2**63 - 1)]  # an offset, or -1: none
Expect = Annotated[int, Range(-1, 2**63 - 1)]  # an offset, or -1: absent
Timestamp = Annotated[int, Range(0, 2**63 - 1)]  # ms since the epoch
Millis = Annotated[int, Range(0, 2**31 - 1)]
Positive = Annotated[int, Range(1, 2**31 - 1)]
Raw = Annotated[list[Any], RAW]
Bulk = Annotated[bytes, BULK]
HeaderList = list[tuple[str, bytes | None]]
Names = Annotated[list[str], Once()]
Indexes = Annotated[list[U32], Once()]  # of partitions
OffsetList = Annotated[list[tuple[U32, Offset]], Once(1)]  # (partition, offset)
PositionList = Annotated[list[tuple[str, U32, Offset]], Once(2)]  # (topic, partition, offset)
RangeList = list[tuple[str, U32, Offset, Offset]]  # (topic, partition, first offset, last offset)
Start = Annotated[str, OneOf(frozenset(["earliest", "latest", "offset", "timestamp"]))]
Column = Annotated[str, OneOf(frozenset(["key", "value", "offset", "timestamp", "headers"]))]
Columns = Annotated[list[Column], Once()]
Order = Annotated[str, OneOf(frozenset(["none", "key"]))]


MOST = 20_000  # elements of an array of a request, such as partitions, ranges of offsets, conditions
_ARRAY: Kinds = frozenset([list, tuple])  # `unpack` makes either of an array


def check_for(hint: Any) -> tuple[Kinds, Check | None]:
    """(the exact types that a value may have, a further check of the value or None)."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        kinds, check = check_for(arguments[0])
        for mark in arguments[1:]:
            if isinstance(mark, Range):
                return kinds, _within(mark.low, mark.high)
            if isinstance(mark, OneOf):
                return kinds, mark.words.__contains__
        return kinds, check
    if origin in (types.UnionType, typing.Union):
        options = [check_for(option) for option in arguments]
        checks = {kind: check for kinds, check in options for kind in kinds if check is not None}
        every = frozenset(kind for kinds, _ in options for kind in kinds)
        if not checks:
            return every, None
        return every, lambda value: type(value) not in checks or checks[type(value)](value)
    if origin is list:
        return _ARRAY, None if arguments[0] is Any else _each(*check_for(arguments[0]))
    if origin is tuple:
        return _ARRAY, _shape([check_for(argument) for argument in arguments])
    if origin is dict:
        return frozenset([dict]), _named
    return frozenset([hint]), None


def _within(low: int, high: int) -> Check:
    return lambda value: low <= value <= high


def _each(kinds: Kinds, check: Check | None) -> Check:
    if check is None:
        return lambda value: kinds.issuperset(map(type, value))
    return lambda value: all(type(item) in kinds and check(item) for item in value)


def _shape(items: list[tuple[Kinds, Check | None]]) -> Check:
    def shaped(value: Any) -> bool:
        if len(value) != len(items):
            return False
        for item, (kinds, check) in zip(value, items, strict=True):  # a generator expression takes twice as long
            if type(item) not in kinds or (check is not None and not check(item)):
                return False
        return True

    return shaped


def _at_most(most: int, check: Check | None) -> Check:
    return lambda value: type(value) not in _ARRAY or (len(value) <= most and (check is None or check(value)))


def _are_bytes(hint: Any) -> bool:
    """Whether it is an array of bytes, such as keys: the size of the frame bounds their number."""
    return any(typing.get_args(each) == (bytes,) for each in (hint, *typing.get_args(hint)))


def _once(hint: Any) -> Once | None:
    """The mark of an array, which may be None as well."""
    marks = (mark for each in (hint, *typing.get_args(hint)) for mark in typing.get_args(each)[1:])
    return next((mark for mark in marks if isinstance(mark, Once)), None)


_NAME: Kinds = frozenset([str])


def _named(value: Any) -> bool:
    return _NAME.issuperset(map(type, value))


_pack: Callable[[Any], bytes] = msgpack.Packer(autoreset=True).pack


class _WhenUsed:
    """An attribute of a message's class that is made when first used. A client uses few messages, and making those of
    all takes longer than a lookup."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, _: Any, cls: type[Base]) -> Any:
        cls._make_checks()
        return cls.__dict__[self._name]


@dataclass_transform(kw_only_default=False)
class Base:
    """The base of every message. A subclass becomes a dataclass with a table of its fields' checks."""

    kind: ClassVar[int]
    table: ClassVar[Any] = _WhenUsed()  # list[tuple[str, Kinds, Check | None, Any]]: (name, types, check, default)
    raw: ClassVar[Any] = _WhenUsed()  # str | None: the field marked RAW
    bulk: ClassVar[Any] = _WhenUsed()  # str | None: the field marked BULK
    once: ClassVar[Any] = _WhenUsed()  # list[tuple[str, Once]]: the arrays of a request that are sets
    most: ClassVar[int | None] = None  # the most elements of an array, other than an array of bytes

    def __init_subclass__(cls, kind: int = 0) -> None:
        cls.kind = kind
        if kind:
            cls.__doc__ = cls.__doc__ or cls.__name__  # without one, dataclass would work out a signature: slow
            dataclass(repr=False, eq=False, match_args=False)(cls)

    @classmethod
    def _make_checks(cls) -> None:
        hints = typing.get_type_hints(cls, include_extras=True)
        table, sets, marked = [], list[tuple[str, Once]](), dict[Any, str]()
        for field in fields(cls):  # type: ignore[arg-type]
            hint = hints[field.name]
            marked |= {mark: field.name for mark in typing.get_args(hint)[1:] if mark is RAW or mark is BULK}
            kinds, check = check_for(hint)
            if cls.most is not None and kinds >= _ARRAY and not _are_bytes(hint):
                check = _at_most(cls.most, check)
                if (once := _once(hint)) is not None:
                    sets.append((field.name, once))
            table.append((field.name, kinds, check, field.default))
        cls.table, cls.once, cls.raw, cls.bulk = table, sets, marked.get(RAW), marked.get(BULK)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def _parts(self, id: int, last: str) -> list[bytes | memoryview]:
        """This message as a msgpack map with its correlation id, in parts: the field `last` is not copied."""
        fields = {"id": id, **self.__dict__}
        rest = fields.pop(last)
        fields[last] = None  # one byte of msgpack at the end, in whose place its value comes
        head = _pack(fields)[:-1]
        if self.raw is None:
            return [head, _bin_header(len(rest)), rest]
        return [head, _array_header(len(rest)), *rest]

    def body(self, id: int) -> bytes:
        """This message as a msgpack map with its correlation id."""
        last = self.raw or self.bulk
        return _pack({"id": id, **self.__dict__}) if last is None else b"".join(self._parts(id, last))

    def _frame(self, kind: int, id: int) -> bytes:
        last = self.raw or self.bulk
        if last is None:
            return frame(kind, _pack({"id": id, **self.__dict__}))
        return frame(kind, *self._parts(id, last))


def _bin_header(size: int) -> bytes:
    """The header of a msgpack bin of `size` bytes."""
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1, "big")
    return b"\xc5" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xc6" + size.to_bytes(4, "big")


@lru_cache(256)
def _array_header(count: int) -> bytes:
    """The header of a msgpack array of `count` elements. (A Packer would allocate a buffer for it.)"""
    if count < 1 << 4:
        return (0x90 | count).to_bytes(1, "big")
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


class Request(Base):
    """A message of a client."""

    most = MOST

    def frame(self, id: int) -> bytes:
        """The whole frame, with the correlation id that its answer will repeat."""
        return self._frame(self.kind, id)


class Answer(Base):
    """A message of the broker, which answers a request. A field `more` is true in all answers of a stream but the
    last."""

    def frame(self, id: int) -> bytes:
        """The whole frame, with the correlation id of the request that it answers."""
        return self._frame(self.kind | ANSWER, id)


def pack(values: dict[str, Any]) -> bytes:
    """A map as msgpack."""
    return _pack(values)


def unpack(body: bytes | memoryview, lists: bool = True) -> dict[str, Any]:
    """The map of a frame. Raises ProtocolError for any other bytes.

    `lists` False: arrays become tuples. Python's garbage collector soon stops looking at those, but would look at
    thousands of small lists again and again.
    """
    try:
        found = msgpack.unpackb(body, raw=False, strict_map_key=True, use_list=lists)
    except RecursionError:
        raise ProtocolError("msgpack nested too deeply") from None
    except Exception as error:  # msgpack raises ValueError, its own kinds, UnicodeDecodeError, OverflowError
        raise ProtocolError(f"not msgpack: {str(error)[:80] or type(error).__name__}") from None
    if type(found) is not dict:
        raise ProtocolError(f"a frame holds one msgpack map, not {type(found).__name__}")
    return found


SMALL = 1 << 20
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bin 8 to 32, str 8 to 32: bytes of the length
_STRINGS = 0xD9


class TooMuch:
    """Stands for a field that holds more than it may. No message accepts this type."""

    def __repr__(self) -> str:
        return f"over {SMALL} bytes of values"


def unpack_request(body: bytes | memoryview) -> dict[str, Any]:
    """As `unpack`, for a request of any size, within bounded memory. Raises ProtocolError.

    One byte of msgpack can become an object of 70 bytes: 64 MiB of empty maps take 4.5 GiB once unpacked. A proper
    large request is large because of a few strings or bins in its map. Those are cut out here; everything else may take
    `SMALL` bytes in all. When it takes more, the field that exceeds them is a `TooMuch`, and the fields after it are
    missing.
    """
    if len(body) <= SMALL:
        return unpack(body)
    view = memoryview(body)
    if 0x80 <= view[0] <= 0x8F:
        count, position = view[0] & 0x0F, 1
    else:
        raise ProtocolError("a large frame holds one msgpack map of at most 15 fields")
    found: dict[str, Any] = {}
    room = SMALL
    for _ in range(count):
        name, end = _small(view, position, room)
        if type(name) is not str:
            raise ProtocolError("a field's name that is no string, or too long")
        room -= end - position
        position = end
        width = _LENGTHS.get(view[position]) if position < len(view) else None
        if width is None:
            value, end = _small(view, position, room)
            room -= end - position
        else:
            start = position + 1 + width
            end = start + int.from_bytes(view[position + 1 : start], "big")
            if end > len(view):
                raise ProtocolError("not msgpack: cut short")
            value = bytes(view[start:end])
            if view[position] >= _STRINGS:
                try:
                    value = value.decode()
                except UnicodeDecodeError:
                    raise ProtocolError("not msgpack: a string that is no UTF-8") from None
        found[name] = value
        if isinstance(value, TooMuch):
            return found
        position = end
    if position != len(view):
        raise ProtocolError("not msgpack: something follows the map")
    return found


def _small(view: memoryview, position: int, room: int) -> tuple[Any, int]:
    """(value at `position`, position of its end). TooMuch for a value of more than `room` bytes. Raises
    ProtocolError."""
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=True, max_buffer_size=SMALL)
    unpacker.feed(view[position : position + room])
    try:
        return unpacker.unpack(), position + unpacker.tell()
    except msgpack.OutOfData:
        if position + room < len(view):
            return TooMuch(), position + room
        raise ProtocolError("not msgpack: cut short") from None
    except ValueError as error:
        if "exceeds max" in str(error) and position + room < len(view):  # an array that claims more elements than fit
            return TooMuch(), position + room
        raise ProtocolError(f"not msgpack: {str(error)[:80]}") from None
    except Exception as error:  # msgpack's own kinds, RecursionError
        raise ProtocolError(f"not msgpack: {str(error)[:80] or type(error).__name__}") from None


def take_id(values: dict[str, Any]) -> int:
    """Removes and returns the correlation id. Raises ProtocolError when there is none."""
    id = values.pop("id", None)
    if type(id) is not int or not 0 <= id < 2**63:
        raise ProtocolError("a message needs its correlation id: an integer field 'id'")
    return id


def parse(cls: type[T], values: dict[str, Any], strict: bool = True) -> T:
    """A message from its map (without `id`); empties the map. Arrays that are sets have each element once. Raises
    InvalidRequest, which names the wrong field. `strict`: refuses unknown fields."""
    found = []
    for name, kinds, check, default in cls.table:
        value = values.pop(name, default)
        if value is default:
            if value is MISSING:
                raise InvalidRequest(f"{cls.__name__} needs the field '{name}'", field=name)
        elif type(value) not in kinds or (check is not None and not check(value)):
            raise InvalidRequest(f"{cls.__name__}: the field '{name}' is wrong: {reprlib.repr(value)}", field=name)
        found.append(value)
    if strict and values:
        name = str(next(iter(values)))[:80]
        raise InvalidRequest(f"{cls.__name__} has no field '{name}'", field=name)
    message = cls(*found)
    for name, once in cls.once:
        if value := getattr(message, name):
            setattr(message, name, once(value))
    return message


def read_answer(cls: type[T], values: dict[str, Any]) -> T:
    """An answer from its map. Ignores unknown fields. Raises ProtocolError for a wrong or missing field."""
    try:
        return parse(cls, values, strict=False)
    except InvalidRequest as error:
        raise ProtocolError(error.text) from None


def by_kind(classes: Iterable[type[T]]) -> dict[int, type[T]]:
    """Message classes by their type numbers. Raises TypeError when two share one."""
    found: dict[int, type[T]] = {}
    for cls in classes:
        if found.setdefault(cls.kind, cls) is not cls:
            raise TypeError(f"{cls.__name__} and {found[cls.kind].__name__} share type number {cls.kind}")
    return found
