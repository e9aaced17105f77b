"""Columns in Arrow's memory layout, made and checked without pyarrow.

A column of bytes or text is three buffers: `rows + 1` int32 offsets into `data`, `data`, and a validity bitmap (bit
`row % 8` of byte `row // 8`, 1: not null; None: no nulls). A column of whole numbers is one buffer of int64. All
little-endian, whatever the machine: "Apache Arrow Columnar Format", Physical Memory Layout. `pyarrow` takes these
buffers as they are (`Array.from_buffers`).

Why this layout: this is what reading a table into a RecordBatch costs, in microseconds per row (keys of 15 bytes,
values of 20 to 250 bytes; one run, on a machine with other load):

                                                broker  client
    these columns                                 0.90    0.11
    Arrow IPC, made by pyarrow in the broker      1.00    0.16
    rows with lengths before them                 0.85    0.72
    pages of Scan                                 0.95    2.01

The events of a log cost the broker 0.15: it sends record batches, and the client makes columns of them.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from krappy.types import Headers

_DIGITS = b"0" + b"1" * 255
INT32, INT64 = "i", "q"  # type codes of `array`
assert (array(INT32).itemsize, array(INT64).itemsize) == (4, 8)


class Binary(NamedTuple):
    """A column of bytes or text."""

    offsets: bytes
    data: bytes
    validity: bytes | None


class HeaderLists(NamedTuple):
    """A column of lists of headers: Arrow's list<struct<name: utf8, value: binary>>, none of the lists null."""

    offsets: bytes  # int32, rows + 1: where each row's headers begin in the two columns
    names: Binary
    values: Binary


def int64s(numbers: Iterable[int]) -> bytes:
    """A column of int64. Raises OverflowError for a number beyond 64 bits."""
    return _little(array(INT64, numbers))


def int32s(numbers: Iterable[int]) -> bytes:
    """A column of int32. Raises OverflowError for a number beyond 32 bits."""
    return _little(array(INT32, numbers))


def offsets32(lengths: Iterable[int]) -> bytes:
    """The int32 offsets of items with these lengths: where each begins, and where the last ends. Raises OverflowError
    beyond 2 GiB."""
    return _little(array(INT32, list(accumulate(lengths, initial=0))))  # twice as fast as from the iterator


def binary(items: Sequence[bytes | None]) -> Binary:
    """A column of bytes; None is null."""
    validity = bitmap(items) if None in items else None
    held: Sequence[bytes] = items if validity is None else [item or b"" for item in items]  # type: ignore[assignment]
    return Binary(offsets32(map(len, held)), b"".join(held), validity)


def header_lists(rows: Sequence[Headers]) -> HeaderLists:
    flat = [header for row in rows for header in row]
    names, values = binary([name.encode() for name, _ in flat]), binary([value for _, value in flat])
    return HeaderLists(offsets32(map(len, rows)), names, values)


def bitmap(items: Sequence[object]) -> bytes:
    """A validity bitmap: a bit for each item, 1 if it is not None."""
    return bits(bytes([item is not None for item in items]))


def bits(flags: bytes) -> bytes:
    """A bitmap with a bit for each byte: 1 if the byte is not 0."""
    digits = flags[::-1].translate(_DIGITS)
    return int(digits or b"0", 2).to_bytes((len(flags) + 7) // 8, "little")


def flags(bitmap: bytes, count: int) -> list[bool]:
    """The first `count` bits of a bitmap: the inverse of `bits`."""
    return [bool(bitmap[row >> 3] >> (row & 7) & 1) for row in range(count)]


def numbers(buffer: bytes) -> list[int]:
    """The inverse of `int64s`."""
    return _read(INT64, buffer).tolist()


def numbers32(buffer: bytes) -> list[int]:
    """The inverse of `int32s`."""
    return _read(INT32, buffer).tolist()


def items(column: Binary) -> list[bytes | None]:
    """The inverse of `binary`. It does not check the column."""
    bounds, data, validity = _read(INT32, column.offsets).tolist(), memoryview(column.data), column.validity
    found: list[bytes | None] = [bytes(data[start:end]) for start, end in pairwise(bounds)]
    if validity is not None:
        valid = flags(validity, len(found))
        found = [item if there else None for item, there in zip(found, valid, strict=True)]
    return found


def headers(column: HeaderLists) -> list[Headers]:
    """The inverse of `header_lists`."""
    names, values = items(column.names), items(column.values)
    flat = [((name or b"").decode(errors="replace"), value) for name, value in zip(names, values, strict=True)]
    bounds = _read(INT32, column.offsets).tolist()
    return [tuple(flat[start:end]) for start, end in pairwise(bounds)]


def parts(offsets: bytes, data: bytes) -> list[bytes]:
    """The items of a column without nulls. Raises ValueError when the offsets do not fit the data."""
    if len(offsets) % 4 or not offsets:
        raise ValueError(f"{len(offsets)} bytes of offsets: they are int32, one more than there are items")
    bounds = _read(INT32, offsets).tolist()
    if bounds[0] or bounds[-1] != len(data) or bounds != sorted(bounds):
        raise ValueError(f"offsets that do not go up from 0 to {len(data)}")
    return [data[start:end] for start, end in pairwise(bounds)]


def check_binary(column: Binary, rows: int) -> None:
    """Raises ValueError when the sizes of a column's buffers do not fit `rows`."""
    offsets, data, validity = column
    check_offsets(offsets, rows, len(data))
    if validity is not None and len(validity) < (rows + 7) // 8:
        raise ValueError(f"a validity bitmap of {len(validity)} bytes for {rows} rows")


def check_offsets(offsets: bytes, rows: int, end: int) -> None:
    """Raises ValueError unless there are `rows` + 1 offsets, the first 0 and the last `end`. Checks none between."""
    if len(offsets) != 4 * (rows + 1):
        raise ValueError(f"{len(offsets)} bytes of offsets for {rows} rows")
    if int.from_bytes(offsets[:4], "little") or int.from_bytes(offsets[-4:], "little") != end:
        raise ValueError(f"offsets that do not go from 0 to {end}")


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _read(kind: str, buffer: bytes) -> array[int]:
    found = array(kind)
    found.frombytes(buffer)
    if sys.byteorder == "big":
        found.byteswap()
    return found
