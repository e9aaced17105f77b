"""Compiles the fields of one version of a message to a Python function that reads it.

Rules of this file:

- The function takes a memoryview of bytes. For wrong bytes it raises ProtocolError, struct.error, IndexError or
  UnicodeDecodeError, nothing else; `codec` turns all of them into ProtocolError.
- It checks every length against the rest of the frame before it uses it. Numbers are read by `unpack_from` and by
  index, which check; slices, which would silently be cut short, are checked first.
- The rest of the frame must have room for as many elements as an array announces, each as short as possible. `room`
  bounds the elements and tagged fields of a whole message, `MOST` the elements of one array of a request.
- Arrays that are sets have each element once (`notation`).

One `unpack_from` reads adjacent fields of fixed width, together with the length (or its first byte) of the field after
them. Everything is in one function, because calls are slow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from operator import itemgetter
from struct import Struct
from typing import Any, NoReturn

from krappy.errors import ProtocolError
from krappy.wire.kafka.notation import FIXED, Field, Source

MOST = 20_000  # elements of one array of a request: topics, partitions of a topic, groups, resources
LONGEST_STRING = 32767  # Kafka's limit; for flexible versions too
STEP = 2_000  # elements that are read in one step
Read = tuple[dict[str, Any], int, int]  # message, position after it, room left
Reader = Callable[[memoryview, int, int, int], Read]  # (frame, position, its end, room)
StepReader = Callable[[memoryview, int, int, int], Generator[None, None, Read]]


def compile_reader(fields: tuple[Field, ...], flexible: bool, most: int = MOST) -> Reader:
    """A function (frame, position, end, room) -> (message, position after it, room left). `most`: how many elements one
    array may have."""
    source = _Source(flexible)
    source.names["most"] = most
    value = source.struct(fields)
    reader: Reader = source.compiled("buf, pos, end, room", f"{value}, pos, room")
    return reader


def compile_step_reader(fields: tuple[Field, ...], flexible: bool) -> StepReader:
    """As `compile_reader`, a generator, which returns what that returns: it stops after each `STEP` elements."""
    source = _Source(flexible, steps=True)
    source.names |= {"most": MOST, "STEP": STEP}
    source.add("left = STEP", "if not left:", "    yield")  # so it is a generator, also where there is no array
    value = source.struct(fields)
    reader: StepReader = source.compiled("buf, pos, end, room", f"{value}, pos, room")
    return reader


class _Source(Source):
    """`steps`: of a generator."""

    def __init__(self, flexible: bool, *, steps: bool = False) -> None:
        self._steps = steps
        super().__init__(flexible, {"short": _short, "wrong": _wrong, "varint": _varint, "skip": skip_tags})

    def flush(self) -> None:
        """Reads the pending run."""
        if len(self.run) == 1 and self.run[0][0] == "B":
            self.add(f"{self.run[0][1]} = buf[pos]", "pos += 1")
        elif self.run:
            letters = ">" + "".join(letter for letter, _ in self.run)
            unpack = "unpack_" + letters[1:].replace("?", "t")
            self.names[unpack] = Struct(letters).unpack_from
            self.add(f"{', '.join(name for _, name in self.run)}, = {unpack}(buf, pos)")
            self.add(f"pos += {Struct(letters).size}")
        self.run = []

    def struct(self, fields: tuple[Field, ...]) -> str:
        """Adds lines that read a struct; returns the expression that makes it."""
        tagged = [field for field in fields if field.present and field.tag is not None]
        values = {field.name: field.fresh() for field in fields if not field.present}
        for field in fields:
            if field.present and field.tag is None:
                values[field.name] = self.field(field)
        if self.flexible:
            number = self.new("n")
            self.run.append(("B", number))
            self.flush()
            if tagged:
                values |= self.tags(tagged, number)
            else:
                self.add(f"if {number}:", f"    pos, room = skip(buf, pos, end, {number}, room)")
        self.flush()
        return "{" + ", ".join(f"{field.name!r}: {values[field.name]}" for field in fields) + "}"

    def tags(self, fields: list[Field], number: str) -> dict[str, str]:
        """Adds lines that read tagged fields and skip unknown tags; returns the variable of each field."""
        values = {field.name: self.new("v") for field in fields}
        for field in fields:
            self.add(f"{values[field.name]} = {field.fresh()}")
        self.add(f"if {number}:")
        self.indent += "    "
        self.add(f"if {number} > 127:", f"    {number}, pos = varint(buf, pos, {number})")
        self.add(f"room -= {number}", "if room < 0:", "    wrong('too many tagged fields')")
        tag, size, stop = self.new("n"), self.new("n"), self.new("n")
        self.add(f"for _ in range({number}):")
        self.indent += "    "
        for variable in (tag, size):
            self.add(f"{variable} = buf[pos]", "pos += 1", f"if {variable} > 127:")
            self.add(f"    {variable}, pos = varint(buf, pos, {variable})")
        self.add(f"{stop} = pos + {size}", f"if {stop} > end:", "    short()")
        for index, field in enumerate(fields):
            self.add(f"{'elif' if index else 'if'} {tag} == {field.tag}:")
            self.indent += "    "
            value = self.field(field)
            self.flush()
            self.add(
                f"{values[field.name]} = {value}", f"if pos != {stop}:", "    wrong('a tagged field of another size')"
            )
            self.indent = self.indent[4:]
        self.add("else:", f"    pos = {stop}")
        self.indent = self.indent[8:]
        return values

    def field(self, field: Field) -> str:
        """Adds lines that read a field; returns the expression of its value, valid once the run is flushed."""
        if field.array:
            return self.array(field)
        if field.kind in FIXED:
            value = self.new("v")
            self.run.append((FIXED[field.kind], value))
            return value
        if field.kind != "struct":
            return self.blob(field.kind, field.nullable)
        if not field.nullable:
            return self.struct(field.fields)
        there, value = self.new("n"), self.new("v")
        self.run.append(("b", there))
        self.flush()
        self.add(f"if {there} < 0:", f"    {value} = None", "else:")
        self.indent += "    "
        self.add(f"{value} = {self.struct(field.fields)}")
        self.indent = self.indent[4:]
        return value

    def length(self, letter: str) -> str:
        """Adds lines that read a length; returns its variable, which is -1 for null."""
        size = self.new("n")
        self.run.append(("B" if self.flexible else letter, size))
        self.flush()
        if self.flexible:
            self.add(f"if {size} > 127:", f"    {size}, pos = varint(buf, pos, {size})", f"{size} -= 1")
        return size

    def null(self, size: str, value: str, nullable: bool) -> None:
        """The branch for a negative length."""
        self.add(f"if {size} < 0:")
        if nullable:
            self.add(f"    if {size} != -1:", "        wrong('a negative length')") if not self.flexible else None
            self.add(f"    {value} = None", "else:")
            self.indent += "    "
        else:
            self.add("    wrong('null where there must be a value')")

    def blob(self, kind: str, nullable: bool) -> str:
        """Reads a string, bytes or records."""
        size, value, stop = self.length("h" if kind == "string" else "i"), self.new("v"), self.new("n")
        outer = self.indent
        self.null(size, value, nullable)
        self.add(f"{stop} = pos + {size}", f"if {stop} > end:", "    short()")
        if kind == "string":
            if self.flexible:
                self.add(f"if {size} > {LONGEST_STRING}:", "    wrong('a string that is too long')")
            self.add(f"{value} = str(buf[pos:{stop}], 'utf-8')")
        else:
            self.add(f"{value} = buf[pos:{stop}]" if kind == "records" else f"{value} = bytes(buf[pos:{stop}])")
        self.add(f"pos = {stop}")
        self.indent = outer
        return value

    def array(self, field: Field) -> str:
        size, value = self.length("i"), self.new("v")
        outer = self.indent
        self.null(size, value, field.nullable)
        shortest = smallest(field, self.flexible)
        self.add(f"if {size}{f' * {shortest}' if shortest > 1 else ''} > end - pos:", "    short()")
        self.add(f"room -= {size}", f"if room < 0 or {size} > most:", "    wrong('too many elements')")
        if field.kind in FIXED and field.kind != "uuid":
            self.names["Struct"] = Struct
            self.add(f"{value} = list(Struct(f'>{{{size}}}{FIXED[field.kind]}').unpack_from(buf, pos))")
            self.add(f"pos += {size} * {shortest}")
        else:
            append = self.new("f")
            self.add(f"{value} = []", f"{append} = {value}.append", f"for _ in range({size}):")
            self.indent += "    "
            if field.kind == "struct":
                element = self.struct(field.fields)
            elif field.kind == "uuid":
                self.run.append(("16s", element := self.new("v")))
                self.flush()
            else:
                element = self.blob(field.kind, False)
            self.add(f"{append}({element})")
            if self._steps:
                self.add("left -= 1", "if not left:", "    left = STEP", "    yield")
            self.indent = self.indent[4:]
        if field.once is not None:
            once = self.new("f")
            self.names[once] = _once(field)
            self.add(f"if {size} > 1:", f"    {value} = {once}({value})")
        self.indent = outer
        return value


def smallest(field: Field, flexible: bool) -> int:
    """How many bytes an element of this field takes at least: 1 or more, so that the frame bounds the count."""
    if field.kind in FIXED:
        return Struct(">" + FIXED[field.kind]).size
    if field.kind != "struct":
        return 1 if flexible else 2 if field.kind == "string" else 4
    total = int(flexible)
    for inner in field.fields:
        if inner.present and inner.tag is None:
            is_one = inner.nullable and inner.kind == "struct"
            total += (1 if flexible else 4) if inner.array else 1 if is_one else smallest(inner, flexible)
    if not total:
        raise ValueError(f"{field.name}: an element of no bytes")
    return total


def _once(field: Field) -> Callable[[list[Any]], list[Any]]:
    """A function that returns the elements of an array of this field, each once."""
    if not field.once:
        return lambda found: list(dict.fromkeys(found))
    key = itemgetter(*field.once)
    inner = [(each.name, _once(each)) for each in field.fields if each.present and each.once is not None]

    def once(found: list[Any]) -> list[Any]:
        last = dict(zip(map(key, found), found, strict=True))
        if len(last) == len(found):
            return found
        if not inner:
            return list(last.values())
        joined: dict[Any, list[Any]] = {}
        for element in found:
            joined.setdefault(key(element), []).append(element)
        for of, each in last.items():
            if len(same := joined[of]) > 1:
                for name, inner_once in inner:
                    parts = [other[name] for other in same]
                    # Null means all.
                    each[name] = None if None in parts else inner_once([one for part in parts for one in part])
        return list(last.values())

    return once


def skip_tags(buf: memoryview, pos: int, end: int, number: int, room: int) -> tuple[int, int]:
    """(position after unknown tagged fields, room left). `number`: the first byte of their number, at pos - 1."""
    if number > 127:
        number, pos = _varint(buf, pos, number)
    room -= number
    if room < 0:
        _wrong("too many tagged fields")
    for _ in range(number):
        tag = buf[pos]
        pos += 1
        if tag > 127:
            tag, pos = _varint(buf, pos, tag)
        size = buf[pos]
        pos += 1
        if size > 127:
            size, pos = _varint(buf, pos, size)
        pos += size
        if pos > end:
            _short()
    return pos, room


def _varint(buf: memoryview, pos: int, first: int) -> tuple[int, int]:
    """(value, position after it) of an unsigned varint of 32 bits. Its first byte, at pos - 1, is `first`, which says
    that more bytes follow."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value >> 32:
                break
            return value, pos
    raise ProtocolError("a varint that is too long")


def _short() -> NoReturn:
    raise ProtocolError("a length that is beyond the end of the frame")


def _wrong(text: str) -> NoReturn:
    raise ProtocolError(text)
