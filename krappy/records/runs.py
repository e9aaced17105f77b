"""Finds runs of records with one layout, at the speed of C.

Events of one kind often have keys of one length and values of one length. Then their records lie at a fixed stride, and
every byte that is not key, value, time or offset is the same in all of them. A strided slice gives the column of such a
byte, and one comparison checks it for the whole run. `struct` cuts out the keys and values.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from krappy.records.varint import decode, delta_of

SHORTEST = 8  # a search for fewer records does not pay off
_LONGEST = 1024  # records that one search looks at: without a bound many short runs would cost quadratic time
_BLOCK = 16  # records that one unpacking takes
_LOW, _HIGH = bytes(range(128)), bytes(range(128, 256))
REACH = 1 << 27  # ms: bound of the timestamp deltas of a run whose times differ
_ODD = bytes(range(1, 256, 2))

# Offset deltas 0 to 8191 as varints: their only byte (below 64), their first, their second. A third would follow
# from 8192 on, and stay the same for 8192 records.
_ONE = bytes(range(0, 128, 2))
_FIRST = bytes(range(128, 256, 2)) * 128
_SECOND = b"".join(bytes([high]) * 64 for high in range(128))
_SECOND_OF_THREE = bytes(byte | 128 for byte in _SECOND)


class RecordRun(NamedTuple):
    """`count` records of `size` bytes each. Positions are from the start of a record; a length of -1 is null."""

    count: int  # type: ignore[assignment]
    size: int
    delta: int  # offset delta of the first record; the others follow one by one
    time_at: int
    time_width: int  # bytes of the timestamp delta
    one_time: bool  # whether all have the same timestamp delta
    key_at: int
    key_length: int
    value_at: int
    value_length: int


def find(buf: bytes, position: int, count: int) -> RecordRun | None:
    """The run that starts at `position`, at most `count` records; None when it is shorter than SHORTEST.

    A run is well-formed, whatever the bytes. Raises IndexError or CorruptBatch only if the first record is malformed.
    """
    if count < SHORTEST:
        return None
    length, at = decode(buf, position)
    size = at - position + length
    count = min(count, _LONGEST, (len(buf) - position) // size if length > 0 else 0)
    if count < SHORTEST or buf[position] != buf[position + size] or buf[position] != buf[position + 2 * size]:
        return None
    time_at = at + 1
    _, offset_at = decode(buf, time_at, 10)
    delta, key_length_at = decode(buf, offset_at)
    key_length, key_at = decode(buf, key_length_at)
    value_length_at = key_at + max(key_length, 0)
    value_length, value_at = decode(buf, value_length_at)
    tail = value_at + max(value_length, 0)
    width = offset_at - time_at
    if key_length < -1 or value_length < -1 or width > 4 or tail + 1 != position + size or buf[tail]:
        return None

    fixed = (*range(position, time_at), *range(key_length_at, key_at), *range(value_length_at, value_at), tail)
    for column in fixed:
        count = _same(buf, column, size, count)
        if count < SHORTEST:
            return None
    count = _ascending(buf, offset_at, key_length_at - offset_at, size, count, delta)
    count, one_time = _times(buf, time_at, width, size, count)
    if count < SHORTEST:
        return None
    return RecordRun(
        count,
        size,
        delta,
        time_at - position,
        width,
        one_time,
        key_at - position,
        key_length,
        value_at - position,
        value_length,
    )


def _same(buf: bytes, at: int, size: int, count: int) -> int:
    """How many records, of `count`, have the first one's byte at `at`."""
    column = buf[at : at + size * count : size]
    first = column[:1]
    return count if column == first * count else count - len(column.lstrip(first))


def _matching(buf: bytes, at: int, size: int, wanted: bytes) -> int:
    """How many records, from the first on, have at `at` the byte that `wanted` has for each."""
    column = buf[at : at + size * len(wanted) : size]
    if column == wanted:
        return len(wanted)
    return next(index for index, (a, b) in enumerate(zip(column, wanted, strict=True)) if a != b)


def _ascending(buf: bytes, at: int, width: int, size: int, count: int, delta: int) -> int:
    """How many records have the offset deltas `delta`, `delta` + 1, … in varints of this width."""
    if delta < 0:
        return 0
    if width == 1:
        return _matching(buf, at, size, _ONE[delta : delta + count])
    if width > 3:
        return 0
    low = delta & 8191
    count = _matching(buf, at, size, _FIRST[low : low + count])
    if width == 2:
        return _matching(buf, at + 1, size, _SECOND[low : low + count])
    count = _matching(buf, at + 1, size, _SECOND_OF_THREE[low : low + count])
    return _same(buf, at + 2, size, count)


def _times(buf: bytes, at: int, width: int, size: int, count: int) -> tuple[int, bool]:
    """(how many records have a varint of this width at `at`, whether all are the same number)."""
    columns = [buf[start : start + size * count : size] for start in range(at, at + width)]
    if all(column == column[:1] * count for column in columns):
        return count, True
    for column in columns[:-1]:
        if column.translate(None, _HIGH):
            count = min(count, len(column) - len(column.lstrip(_HIGH)))
    if not columns[-1].isascii():
        count = min(count, len(columns[-1]) - len(columns[-1].lstrip(_LOW)))
    return count, False


def latest(buf: bytes, position: int, run: RecordRun) -> int:
    """The largest timestamp delta of a run at `position`."""
    first, width = position + run.time_at, run.time_width
    if run.one_time:
        return decode(buf, first, 10)[0]
    packed = bytearray(4 * run.count)
    for index in range(width):
        packed[index::4] = buf[first + index : first + index + run.size * run.count : run.size]
    # Varints of one width sort like the little-endian numbers of their bytes; odd ones are negative.
    numbers = struct.unpack(f"<{run.count}I", packed)
    if packed[::4].translate(None, _ODD) != packed[::4]:
        numbers = tuple(number for number in numbers if not number & 1) or (min(numbers),)
    return delta_of(max(numbers).to_bytes(4, "little")[:width])


def earliest(buf: bytes, position: int, run: RecordRun) -> int:
    """The smallest timestamp delta of a run at `position` whose times differ; never below -REACH."""
    return min(delta_of(raw) for raw in set(cut(buf, position, run)[0]))


@lru_cache(maxsize=512)
def _cutters(
    size: int, times: tuple[int, int], keys: tuple[int, int], values: tuple[int, int]
) -> tuple[struct.Struct, struct.Struct]:
    """Structs that cut the (start, length) fields out of one record of `size` bytes, and out of _BLOCK records."""
    form, at = "", 0
    for start, length in (times, keys, values):
        if length > 0:
            form += f"{start - at}x{length}s"
            at = start + length
    form += f"{size - at}x"
    return struct.Struct("<" + form), struct.Struct("<" + form * _BLOCK)


def cut(buf: bytes, position: int, run: RecordRun) -> tuple[list[bytes], list[bytes | None], list[bytes | None]]:
    """The columns of a run at `position`: timestamp deltas as raw varints (only one if `one_time`), keys, values."""
    times = (run.time_at, 0 if run.one_time else run.time_width)
    single, block = _cutters(run.size, times, (run.key_at, run.key_length), (run.value_at, run.value_length))
    middle = position + run.size * (run.count - run.count % _BLOCK)
    end = position + run.size * run.count
    with memoryview(buf) as view, view[position:middle] as blocks, view[middle:end] as rest:
        flat: list[Any] = list(chain.from_iterable(block.iter_unpack(blocks)))
        flat += chain.from_iterable(single.iter_unpack(rest))
    step = (not run.one_time) + (run.key_length > 0) + (run.value_length > 0)
    taken = 0
    columns: list[list[Any]] = []
    for length in (times[1], run.key_length, run.value_length):
        if length > 0:
            columns.append(flat[taken::step])
            taken += 1
        else:
            columns.append([None if length < 0 else b""] * run.count)
    if run.one_time:
        start = position + run.time_at
        columns[0] = [buf[start : start + run.time_width]]
    return columns[0], columns[1], columns[2]
