"""Compiles the fields of one version of a message to a Python function that writes it.

Rules of this file: a message is a dict. A missing key is written as the field's default; so is None, if the field can't
be null in this version. Keys that the version lacks are ignored. A value that does not fit its field is a programmer's
error: it raises what Python raises (struct.error, TypeError, AttributeError, ValueError).

The function appends to a bytearray; one `pack` writes adjacent fields of fixed width. Records that are long, or in a
file, become parts of their own, without being read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, NoReturn

from krappy.wire.kafka.notation import FIXED, Field, Source

INLINE = 2048  # records of up to so many bytes are copied, instead of becoming a part of their own
LONGEST_STRING = 32767
Part = Any  # bytes, a memoryview, or an object with a length, such as a part of a file
Writer = Callable[[bytearray, "list[Part]", Mapping[str, Any]], bytearray]


def compile_writer(fields: tuple[Field, ...], flexible: bool) -> Writer:
    """A function (out, parts, message) -> out, which appends to `out` and `parts`. It returns the bytearray to append
    to next: another one than `out`, if it has moved `out` to `parts`."""
    source = _Source(flexible)
    source.struct(fields, "message")
    source.flush()
    writer: Writer = source.compiled("out, parts, message", "out")
    return writer


class _Source(Source):
    def __init__(self, flexible: bool) -> None:
        names = {"VARINTS": VARINTS, "varint": varint, "put_records": _put_records, "put_tags": _put_tags}
        super().__init__(flexible, {**names, "NOTHING": {}, "long": _long, "Struct": Struct})

    def flush(self) -> None:
        """Writes the pending run. A run without values is written as zero bytes."""
        if self.run:
            letters = ">" + "".join(letter for letter, _ in self.run)
            values = ", ".join(value for _, value in self.run if value)
            if not values:
                self.add(f"out += {bytes(len(self.run))!r}")
            else:
                pack = "pack_" + letters[1:].replace("?", "t")
                self.names[pack] = Struct(letters).pack
                self.add(f"out += {pack}({values})")
            self.run = []

    def struct(self, fields: tuple[Field, ...], message: str) -> None:
        present = [field for field in fields if field.present]
        if present:
            get = self.new("get")
            self.add(f"{get} = {message}.get")
        for field in present:
            if field.tag is None:
                self.field(field, self.got(field, get))
        if self.flexible:
            tagged = sorted((field for field in present if field.tag is not None), key=lambda field: field.tag or 0)
            if tagged:
                self.flush()
                self.tags(tagged, get)
            else:
                self.run.append(("x", ""))

    def got(self, field: Field, get: str) -> str:
        default = "None" if field.array or field.kind == "struct" else repr(field.default)
        return f"{get}({field.name!r}, {default})" if default != "None" else f"{get}({field.name!r})"

    def tags(self, fields: list[Field], get: str) -> None:
        """Adds lines that write tagged fields: each on its own, and left out when its bytes equal the default's."""
        values = [self.new("v") for _ in fields]
        for field, value in zip(fields, values, strict=True):
            self.add(f"{value} = {get}({field.name!r})")
        self.add(f"if {' is None and '.join(values)} is None:", "    out += b'\\0'", "else:")
        writers = []
        for field in fields:
            inner = _Source(True)
            inner.field(field, "message")
            inner.flush()
            write = inner.compiled("out, parts, message", "out")
            writers.append((field.tag, write, bytes(write(bytearray(), [], eval(field.fresh())))))
        table = self.new("TAGS")
        self.names[table] = writers
        self.add(f"    put_tags(out, {table}, ({', '.join(values)},))")

    def field(self, field: Field, value: str) -> None:
        if field.array:
            self.array(field, value)
        elif field.kind in FIXED:
            self.run.append((FIXED[field.kind], value))
        elif field.kind == "struct":
            self.one(field, value)
        elif field.kind == "records":
            self.records(value, field.nullable)
        else:
            self.blob(field.kind, value, field.nullable)

    def one(self, field: Field, value: str) -> None:
        """Adds lines that write a struct."""
        found = self.new("v")
        if not field.nullable:
            self.add(f"{found} = {value} or NOTHING")
            self.struct(field.fields, found)
            return
        self.flush()
        self.add(f"{found} = {value}", f"if {found} is None:", "    out += b'\\xff'", "else:")
        self.indent += "    "
        self.run.append(("b", "1"))
        self.struct(field.fields, found)
        self.flush()
        self.indent = self.indent[4:]

    def length(self, size: str, letter: str) -> None:
        """Adds lines that write the length in a variable; in flexible versions the variable is one more than that."""
        if self.flexible:
            self.flush()
            self.add(f"out += VARINTS[{size}] if {size} < {len(VARINTS)} else varint({size})")
        else:
            self.run.append((letter, size))

    def blob(self, kind: str, value: str, nullable: bool) -> None:
        """Adds lines that write a string or bytes."""
        found, size, extra = self.new("v"), self.new("n"), " + 1" if self.flexible else ""
        self.add(f"{found} = {value}", f"if {found} is None:", f"    {found} = b''")
        null = (0 if self.flexible else -1) if nullable else (1 if self.flexible else 0)
        self.add(f"    {size} = {null}", "else:")
        if kind == "string":
            self.add(f"    {found} = {found}.encode()")
        self.add(f"    {size} = len({found}){extra}")
        if kind == "string":
            self.add(f"    if {size} > {LONGEST_STRING + self.flexible}:", f"        long({found})")
        self.length(size, "h" if kind == "string" else "i")
        self.flush()
        self.add(f"out += {found}")

    def records(self, value: str, nullable: bool) -> None:
        found, size, extra = self.new("v"), self.new("n"), " + 1" if self.flexible else ""
        null = (0 if self.flexible else -1) if nullable else (1 if self.flexible else 0)
        self.add(f"{found} = {value}", f"if {found} is None:", f"    {size} = {null}", "else:")
        self.add(f"    {size} = (sum(map(len, {found})) if {found}.__class__ is list else len({found})){extra}")
        self.length(size, "i")
        self.flush()
        self.add(f"if {found}:", f"    out = put_records(out, parts, {found}, {size})")

    def array(self, field: Field, value: str) -> None:
        found, size, extra = self.new("v"), self.new("n"), " + 1" if self.flexible else ""
        null = (0 if self.flexible else -1) if field.nullable else (1 if self.flexible else 0)
        self.add(f"{found} = {value}", f"if {found} is None:", f"    {found} = ()", f"    {size} = {null}")
        self.add("else:", f"    {size} = len({found}){extra}")
        self.length(size, "i")
        self.flush()
        if field.kind in FIXED and field.kind != "uuid":
            self.add(f"if {found}:", f"    out += Struct(f'>{{len({found})}}{FIXED[field.kind]}').pack(*{found})")
            return
        element = self.new("e")
        self.add(f"for {element} in {found}:")
        self.indent += "    "
        if field.kind == "struct":
            self.struct(field.fields, element)
        elif field.kind == "uuid":
            self.run.append(("16s", element))
        else:
            self.blob(field.kind, element, False)
        self.flush()
        self.indent = self.indent[4:]


def varint(number: int) -> bytes:
    """An unsigned number as a varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


VARINTS = [varint(number) for number in range(1024)]


def _put_records(out: bytearray, parts: list[Part], records: Any, size: int) -> bytearray:
    """Adds records as a part of their own, or copies them if they are few bytes. Returns the bytearray to append to
    next."""
    buffers = records if records.__class__ is list else (records,)
    if size <= INLINE and all(isinstance(buffer, (bytes, bytearray, memoryview)) for buffer in buffers):
        for buffer in buffers:
            out += buffer
        return out
    parts.append(out)
    parts.extend(buffers)
    return bytearray()


def _put_tags(out: bytearray, table: list[tuple[int, Writer, bytes]], values: tuple[Any, ...]) -> None:
    """Appends tagged fields: (tag, writer, the default's bytes) and a value for each."""
    written = []
    for (tag, write, default), value in zip(table, values, strict=True):
        if value is not None:
            data = write(bytearray(), [], value)
            if data != default:
                written.append((tag, data))
    out += varint(len(written))
    for tag, data in written:
        out += varint(tag) + varint(len(data)) + data


def _long(text: bytes) -> NoReturn:
    raise ValueError(f"a string of {len(text)} bytes, more than {LONGEST_STRING}")
