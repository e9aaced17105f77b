"""Turns entries of a view (`entry.py`) into columns, with as little work per entry as possible."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgpack

from krappy.arrow_layout import Binary, HeaderLists, binary, bits, header_lists, offsets32
from krappy.entries.entry import NIL, VALUE_AT
from krappy.types import Headers

BIN8 = 0xC4
_FIRST, END = 2, VALUE_AT + 2  # part of an entry: offset, a byte, timestamp, the value's kind, a BIN8's length
HEAD = END - _FIRST
_kind = itemgetter(VALUE_AT)
_STARTS = {NIL: VALUE_AT + 1, BIN8: VALUE_AT + 2, 0xC5: VALUE_AT + 3, 0xC6: VALUE_AT + 5}  # where a value starts
_ALIVE = bytes.maketrans(bytes((NIL, BIN8)), b"\0\xff")
_LEAST = VALUE_AT + 3  # bytes of an entry beside a short value, without headers


class EntryColumns(NamedTuple):
    """Columns for Arrow. None: not wanted; `headers` also when no row has any."""

    values: Binary | None
    offsets: bytes | None
    timestamps: bytes | None
    headers: HeaderLists | None


def columns(entries: Sequence[bytes], wanted: Collection[str]) -> EntryColumns:
    """The columns of packed entries. `wanted`: some of "value", "offset", "timestamp" and "headers"."""
    heads = b"".join([entry[_FIRST:END] for entry in entries])
    values, headers = _values(entries, heads, wanted) if "value" in wanted or "headers" in wanted else (None, None)
    return EntryColumns(
        values,
        _turned(heads, 0) if "offset" in wanted else None,
        _turned(heads, 9) if "timestamp" in wanted else None,
        headers,
    )


def kinds(entries: Sequence[bytes]) -> bytes:
    """For each entry the byte that tells its value's kind: NIL for a tombstone."""
    return bytes(map(_kind, entries))


def _turned(heads: bytes, at: int) -> bytes:
    """The big-endian numbers at `at` in each head, little-endian."""
    found = bytearray(len(heads) // HEAD * 8)
    for byte in range(8):
        found[byte::8] = heads[at + 7 - byte :: HEAD]
    return bytes(found)


def _values(
    entries: Sequence[bytes], heads: bytes, wanted: Collection[str]
) -> tuple[Binary | None, HeaderLists | None]:
    kinds = heads[VALUE_AT - _FIRST :: HEAD]
    dead = kinds.count(NIL)
    if kinds.count(BIN8) + dead == len(entries):
        lengths = heads[HEAD - 1 :: HEAD]
        if dead:  # a tombstone has no length there
            alive = int.from_bytes(lengths) & int.from_bytes(kinds.translate(_ALIVE))
            lengths = alive.to_bytes(len(entries))
        # No entry is shorter than its value and the least that surrounds it: equal sums mean that none is longer.
        if sum(map(len, entries)) == sum(lengths) + _LEAST * len(entries) - dead:
            if "value" not in wanted:
                return None, None
            data = b"".join([entry[END:-1] for entry in entries])  # empty for a tombstone
            return Binary(offsets32(lengths), data, bits(kinds.translate(_ALIVE)) if dead else None), None
    values: list[bytes | None] = []
    told: dict[int, Headers] = {}
    for row, entry in enumerate(entries):
        kind = entry[VALUE_AT]
        start = _STARTS[kind]
        end = start + int.from_bytes(entry[VALUE_AT + 1 : start], "big")
        values.append(None if kind == NIL else entry[start:end])
        if entry[end] != NIL:
            told[row] = tuple((name, value) for name, value in msgpack.unpackb(entry[end:]))
    headers = header_lists([told.get(row, ()) for row in range(len(entries))]) if told else None
    return binary(values) if "value" in wanted else None, headers if "headers" in wanted else None
