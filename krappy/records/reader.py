"""Reads the records of a RecordBatch v2 (`DefaultRecord.readFrom`); `writer.py` shows their layout.

Rules of this file: positions only grow, by lengths that were checked not to be negative. So if the last position is the
end of the buffer, none before it lay outside (until then a slice may be cut short, and an index past the end raises
IndexError). Only CorruptBatch is raised. The loops are written out, varints included, because a call costs as much as
half a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from krappy.errors import CorruptBatch
from krappy.records import runs as record_runs
from krappy.records.varint import decode, decode_raw, delta_of
from krappy.types import Headers

_I64 = 2**63
_CALM = 2**62  # a base timestamp below this and a delta of few bytes cannot pass 64 bits
_FIRST_CHUNK = 16  # records to read one by one before the next search for a run; doubled each time


class Columns(NamedTuple):
    """The records of a batch, by column; all columns are of one length."""

    offsets: Sequence[int]  # absolute; a range when dense
    timestamps: Sequence[int]  # ms
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers] | None  # None: no record has any

    def __len__(self) -> int:
        return len(self.keys)


def read(
    buf: bytes,
    position: int,
    count: int,
    base_offset: int,
    last_delta: int,
    time: int,
    one_time: bool,
    most_headers: int,
    keyed: bool = False,
) -> Columns:
    """All records from `position` to the end of `buf`.

    `time`: the base timestamp (ms), or with `one_time` the timestamp of all records. `most_headers`: the most headers
    that all records may have together. `keyed`: values of records without a key may be None, which is faster.
    """
    reader = _Reader(buf, position, count, base_offset, last_delta, 0 if one_time else time, most_headers, keyed)
    reader.read()
    return Columns(
        reader.offsets or range(base_offset, base_offset + count),
        [time] * count if one_time else reader.times,
        reader.keys,
        reader.values,
        [reader.headers.get(index, ()) for index in range(count)] if reader.headers else None,
    )


class _Reader:
    """Fills the columns of one batch."""

    def __init__(
        self,
        buf: bytes,
        position: int,
        count: int,
        base_offset: int,
        last_delta: int,
        base: int,
        most_headers: int,
        keyed: bool,
    ) -> None:
        self.buf = buf
        self.position = position
        self.count = count
        self.base_offset = base_offset
        self.last_delta = last_delta
        self.base = base
        self.dense = count == last_delta + 1
        self.next_delta = 0  # the least offset delta that the next record may have
        self.offsets: list[int] = []  # stays empty when dense
        self.times: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: dict[int, Headers] = {}  # by index
        self.header_room = most_headers
        self.keyed = keyed

    def read(self) -> None:
        buf = self.buf
        chunk = _FIRST_CHUNK
        try:
            while (left := self.count - len(self.keys)) > 0:
                run = record_runs.find(buf, self.position, left)
                if run is not None:
                    self._take(run)
                    chunk = _FIRST_CHUNK
                else:
                    self._step(min(chunk, left))
                    chunk *= 2
        except IndexError:
            raise CorruptBatch("a record cut short") from None
        _check_end(buf, self.position)
        if self.next_delta > self.last_delta + 1:
            raise CorruptBatch(f"offset delta {self.next_delta - 1}, the last is {self.last_delta}")
        if not -_CALM < self.base < _CALM and self.times and not -_I64 <= min(self.times) <= max(self.times) < _I64:
            raise CorruptBatch("a timestamp out of range")

    def _take(self, run: record_runs.RecordRun) -> None:
        """Reads a whole run."""
        if run.delta < self.next_delta:
            raise CorruptBatch(f"offset delta {run.delta} where {self.next_delta} was next")
        if self.keyed and run.key_length < 0:
            run = run._replace(value_length=-1)
        raws, keys, values = record_runs.cut(self.buf, self.position, run)
        self.keys += keys
        self.values += values
        if run.one_time:
            self.times += [self.base + delta_of(raws[0])] * run.count
        else:
            table = {raw: self.base + delta_of(raw) for raw in set(raws)}
            self.times += map(table.__getitem__, raws)
        if not self.dense:
            first = self.base_offset + run.delta
            self.offsets += range(first, first + run.count)
        self.next_delta = run.delta + run.count
        self.position += run.size * run.count

    def _step(self, count: int) -> None:
        """Reads the next `count` records, of any layout."""
        buf, position, base, dense = self.buf, self.position, self.base, self.dense
        times, keys, values = self.times, self.keys, self.values
        expected = self.next_delta << 1
        last, time = 0, base
        for _ in range(count):
            size = buf[position]
            position += 1
            if size > 127:
                byte = buf[position]
                if byte < 128:
                    size += (byte << 7) - 128
                    position += 1
                else:
                    size, position = decode_raw(buf, position - 1)
            start = position
            raw = buf[position + 1]  # after the attributes, of which none are defined
            position += 2
            if raw > 127:
                byte = buf[position]
                if byte < 128:
                    raw += (byte << 7) - 128
                    position += 1
                elif (third := buf[position + 1]) < 128:
                    raw += (byte << 7) + (third << 14) - 16512
                    position += 2
                else:
                    raw, position = decode_raw(buf, position - 1, 10)
            if raw != last:  # many have the time of the one before
                last = raw
                time = base + (raw >> 1 ^ -(raw & 1))
                if raw > _CALM and not -_I64 <= time < _I64:
                    raise CorruptBatch("a timestamp out of range")
            times.append(time)
            raw = buf[position]
            position += 1
            if raw > 127:
                byte = buf[position]
                if byte < 128:
                    raw += (byte << 7) - 128
                    position += 1
                else:
                    raw, position = decode_raw(buf, position - 1)
            if raw != expected:
                if raw & 1 or raw < expected:
                    raise CorruptBatch(f"offset delta {raw >> 1 ^ -(raw & 1)} where {expected >> 1} was next")
                expected = raw
            expected += 2
            if not dense:
                self.offsets.append(self.base_offset + (raw >> 1))
            raw = buf[position]
            position += 1
            if raw > 127:
                byte = buf[position]
                if byte < 128:
                    raw += (byte << 7) - 128
                    position += 1
                else:
                    raw, position = decode_raw(buf, position - 1)
            if raw & 1:
                if raw != 1:
                    raise CorruptBatch("a key of negative length")
                keys.append(None)
            else:
                end = position + (raw >> 1)
                keys.append(buf[position:end])
                position = end
            raw = buf[position]
            position += 1
            if raw > 127:
                byte = buf[position]
                if byte < 128:
                    raw += (byte << 7) - 128
                    position += 1
                else:
                    raw, position = decode_raw(buf, position - 1)
            if raw & 1:
                if raw != 1:
                    raise CorruptBatch("a value of negative length")
                values.append(None)
            else:
                end = position + (raw >> 1)
                values.append(buf[position:end])
                position = end
            if buf[position]:
                found, position = _read_headers(buf, position, self.header_room)
                if found:
                    self.headers[len(values) - 1] = found
                    self.header_room -= len(found)
            else:
                position += 1
            if (position - start) << 1 != size:
                raise CorruptBatch("a record whose length does not match its fields")
        self.position = position
        self.next_delta = expected >> 1


def _check_end(buf: bytes, position: int) -> None:
    if position != len(buf):
        raise CorruptBatch(f"the records end at byte {position} of {len(buf)}")


def _read_headers(buf: bytes, position: int, most: int) -> tuple[Headers, int]:
    """(the headers whose count is at `position`, at most `most`; the position after them).

    Names are decoded as Java does it: bytes that are not UTF-8 become U+FFFD.
    """
    count = buf[position]
    position += 1
    if count > 127:
        count, position = decode_raw(buf, position - 1)
    if count & 1:
        raise CorruptBatch("a negative number of headers")
    if count >> 1 > most:  # a header takes 2 bytes here, and far more in memory
        raise CorruptBatch(f"{count >> 1} headers where the limit allows {most}")
    found: list[tuple[str, bytes | None]] = []
    for _ in range(count >> 1):
        raw = buf[position]
        position += 1
        if raw > 127:
            raw, position = decode_raw(buf, position - 1)
        if raw & 1:
            raise CorruptBatch("a header name of negative length")
        end = position + (raw >> 1)
        try:
            name = buf[position:end].decode()
        except UnicodeDecodeError:
            name = buf[position:end].decode(errors="replace")
        raw = buf[end]
        position = end + 1
        if raw > 127:
            raw, position = decode_raw(buf, end)
        if raw & 1:
            if raw != 1:
                raise CorruptBatch("a header of negative length")
            found.append((name, None))
        else:
            end = position + (raw >> 1)
            found.append((name, buf[position:end]))
            position = end
    return tuple(found), position


def validate(buf: bytes, position: int, count: int, base: int, most_headers: int) -> tuple[int, int]:
    """Raises CorruptBatch for all that `read` refuses in a dense batch. `base`: the base timestamp (ms).

    Returns the smallest timestamp of its records (0 if none is negative), and the largest.
    """
    if not -_CALM < base < _CALM:
        times = read(buf, position, count, 0, count - 1, base, False, most_headers).timestamps
        return min([0, *times]), max(times)
    done = 0
    latest: list[int] = []  # deltas, of each run
    earliest: list[int] = []  # the smallest deltas, of runs whose timestamps may be below 0
    stepped: set[int] = set()  # deltas of the records between runs, zigzag
    chunk = _FIRST_CHUNK
    try:
        while done < count:
            run = record_runs.find(buf, position, count - done)
            if run is not None:
                if run.delta != done:
                    raise CorruptBatch(f"offset delta {run.delta} where {done} was next")
                latest.append(record_runs.latest(buf, position, run))
                if run.one_time:
                    earliest.append(latest[-1])
                elif base < record_runs.REACH:
                    earliest.append(record_runs.earliest(buf, position, run))
                position += run.size * run.count
                done += run.count
                chunk = _FIRST_CHUNK
            else:
                some = min(chunk, count - done)
                position, most_headers = _validate_steps(buf, position, done, some, base, most_headers, stepped)
                done += some
                chunk *= 2
    except IndexError:
        raise CorruptBatch("a record cut short") from None
    _check_end(buf, position)
    between = [raw >> 1 ^ -(raw & 1) for raw in stepped]
    return min(0, base + min([0, *earliest, *between])), base + max([*latest, *between])


def _validate_steps(
    buf: bytes, position: int, first: int, count: int, base: int, most_headers: int, times: set[int]
) -> tuple[int, int]:
    """As `_Reader._step`, for `count` records from `first` on of a dense batch; adds only their raw `times`.

    Returns the position after them, and how many headers the rest may have.
    """
    keep = times.add
    for expected in range(2 * first, 2 * (first + count), 2):
        size = buf[position]
        position += 1
        if size > 127:
            byte = buf[position]
            if byte < 128:
                size += (byte << 7) - 128
                position += 1
            else:
                size, position = decode_raw(buf, position - 1)
        start = position
        raw = buf[position + 1]  # after the attributes
        position += 2
        if raw > 127:
            byte = buf[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = decode_raw(buf, position - 1, 10)
                if raw > _CALM and not -_I64 <= base + (raw >> 1 ^ -(raw & 1)) < _I64:
                    raise CorruptBatch("a timestamp out of range")
        keep(raw)
        raw = buf[position]
        position += 1
        if raw > 127:
            byte = buf[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = decode_raw(buf, position - 1)
        if raw != expected:
            raise CorruptBatch("offset deltas that do not ascend one by one")
        raw = buf[position]
        position += 1
        if raw > 127:
            byte = buf[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = decode_raw(buf, position - 1)
        if raw & 1:
            if raw != 1:
                raise CorruptBatch("a key of negative length")
        else:
            position += raw >> 1
        raw = buf[position]
        position += 1
        if raw > 127:
            byte = buf[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = decode_raw(buf, position - 1)
        if raw & 1:
            if raw != 1:
                raise CorruptBatch("a value of negative length")
        else:
            position += raw >> 1
        if buf[position]:
            found, position = _read_headers(buf, position, most_headers)
            most_headers -= len(found)
        else:
            position += 1
        if (position - start) << 1 != size:
            raise CorruptBatch("a record whose length does not match its fields")
    return position, most_headers


def bounds(buf: bytes, position: int, count: int) -> list[int]:
    """The position where each record starts, and where the last one ends. For bytes that passed `validate`."""
    found = [position]
    for _ in range(count):
        size = buf[position]
        if size < 128:
            position += 1 + (size >> 1)
        elif (byte := buf[position + 1]) < 128:
            position += 2 + ((byte << 7) + size - 128 >> 1)
        else:
            size, position = decode(buf, position)
            position += size
        found.append(position)
    return found
