"""Hostile batches: whatever the bytes are, the readers agree with a plain reader, and raise only the declared errors.

`python tests/fuzz/test_batch_decoder.py --seconds 600` searches for as long as one likes, and prints the batch that
breaks a rule.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import struct
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from crc32c import crc32c

from krappy.errors import CorruptBatch, UnsupportedCompression
from krappy.records.batch import HEADER_SIZE, Columns, check, decode, encode, keep, read_header, split, validate
from krappy.records.codecs import decompress
from krappy.types import Headers

NOW = 1_700_000_000_000
LIMIT = 4 << 20


# --- a plain reader ------------------------------------------------------------------------------------------


class Row(NamedTuple):
    delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Refused(Exception):
    pass


class Plain:
    """Reads records as they are defined, one field after the other, and looks before each step."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.position = 0

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.raw) - self.position:
            raise Refused
        self.position += size
        return self.raw[self.position - size : self.position]

    def number(self, bits: int = 32) -> int:
        raw = shift = 0
        while True:
            if shift >= bits:
                raise Refused
            byte = self.take(1)[0]
            raw |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if raw >= 1 << bits:
            raise Refused
        return -((raw + 1) >> 1) if raw & 1 else raw >> 1

    def nullable(self) -> bytes | None:
        size = self.number()
        return None if size == -1 else self.take(size)

    def record(self, base_timestamp: int) -> Row:
        size = self.number()
        start = self.position
        self.take(1)
        timestamp = base_timestamp + self.number(64)
        if not -(2**63) <= timestamp < 2**63:
            raise Refused
        delta = self.number()
        key, value = self.nullable(), self.nullable()
        count = self.number()
        if count < 0:
            raise Refused
        headers = []
        for _ in range(count):
            name = self.take(self.number()).decode("utf-8", "replace")
            headers.append((name, self.nullable()))
        if self.position - start != size:
            raise Refused
        return Row(delta, timestamp, key, value, tuple(headers))


def plainly(raw: bytes) -> list[Row]:
    header = read_header(raw)
    if header.size != len(raw):
        raise Refused
    records = raw[HEADER_SIZE:]
    if header.codec and (header.count or records):
        records = decompress(header.codec, records, LIMIT)
    plain = Plain(records)
    rows: list[Row] = []
    previous = -1
    for _ in range(header.count):
        row = plain.record(0 if header.log_append_time else header.base_timestamp)
        if header.log_append_time:
            row = row._replace(timestamp=header.max_timestamp)
        if not previous < row.delta <= header.last_offset_delta:
            raise Refused
        previous = row.delta
        rows.append(row)
    if plain.position != len(records):
        raise Refused
    return rows


# --- the rules -----------------------------------------------------------------------------------------------


def obey(raw: bytes) -> bool:
    """Asserts every rule for one batch; returns whether the batch was accepted."""
    try:
        wanted: list[Row] | None = plainly(raw)
    except (Refused, CorruptBatch, UnsupportedCompression):
        wanted = None
    columns: Columns | None = None
    for function in (decode, validate, keep):
        try:
            if function is decode:
                columns = decode(raw, limit=LIMIT)
            elif function is validate:
                latest = validate(raw, limit=LIMIT).latest
            else:
                keep(raw, (), limit=LIMIT)
        except (CorruptBatch, UnsupportedCompression):
            assert wanted is None, f"{function.__name__} refuses what it should read"
        else:
            assert wanted is not None, f"{function.__name__} reads what it should refuse"
    for shape in (check, lambda it: list(split(it))):
        with contextlib.suppress(CorruptBatch):
            shape(raw)
    if wanted is None:
        return False
    assert columns is not None
    header = read_header(raw)
    assert latest == max(columns.timestamps, default=header.max_timestamp)
    headers = columns.headers if columns.headers is not None else [()] * len(columns)
    offsets = [offset - header.base_offset for offset in columns.offsets]
    assert [
        Row(*row) for row in zip(offsets, columns.timestamps, columns.keys, columns.values, headers, strict=True)
    ] == wanted
    odd = {header.base_offset + row.delta for row in wanted if row.delta % 2}
    left = keep(raw, odd, limit=LIMIT)
    assert left is not None
    check(left)
    assert plainly(left) == [row for row in wanted if row.delta % 2]
    return True


# --- batches to try ------------------------------------------------------------------------------------------


def seal(raw: bytes | bytearray) -> bytes:
    """The batch with the length and the checksum that its bytes need, so that the readers behind these checks are
    reached."""
    raw = raw[:8] + struct.pack(">i", len(raw) - 12) + raw[12:]
    return bytes(raw[:17] + struct.pack(">I", crc32c(raw[21:])) + raw[21:])


def some_batch(chance: random.Random) -> bytes:
    count = chance.choice([1, 2, 3, 9, 20, 70, 140])
    alike = chance.random() < 0.7

    def column(lengths: list[int]) -> list[bytes | None]:
        length = chance.choice(lengths)
        column = [chance.randbytes(length if alike else chance.choice(lengths)) for _ in range(count)]
        return [None if chance.random() < (0 if alike else 0.2) else each for each in column]

    keys = None if chance.random() < 0.2 else column([0, 1, 3, 8, 64])
    values = column([0, 1, 5, 60, 70])
    steps = chance.choice([[0], [0, 1], [1], [-1, 0, 100], [10_000], [2**21, 0], [2**40, -(2**40)]])
    timestamps, timestamp = [], NOW
    for _ in range(count):
        timestamps.append(timestamp)
        timestamp += chance.choice(steps)
    headers: list[Headers] | None = None
    if chance.random() < 0.3:
        headers = [
            tuple((chance.choice(["", "a", "ü" * 40]), chance.choice([None, b"", b"x" * 70])) for _ in range(each))
            for each in (chance.choice([0, 0, 1, 3]) for _ in range(count))
        ]
    offsets: list[int] | None = None
    if chance.random() < 0.3:
        offsets = sorted(chance.sample(range(count * chance.choice([2, 100, 100_000])), count))
    return encode(
        keys,
        values,
        timestamps=timestamps,
        headers=headers,
        offsets=offsets,
        codec=chance.choice([0, 0, 0, 0, 1, 2, 3, 4]),
        log_append_time=chance.random() < 0.1,
    )


def damage(raw: bytes, chance: random.Random) -> bytes:
    """The batch with a few bytes changed, taken out, put in, or copied from elsewhere."""
    changed = bytearray(raw)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        position = chance.randrange(16, len(changed)) if chance.random() < 0.2 else 0
        if position < HEADER_SIZE and len(changed) > HEADER_SIZE:
            position = chance.randrange(HEADER_SIZE, len(changed))
        width = chance.choice([1, 1, 2, 5])
        match chance.randrange(5):
            case 0:
                changed[position] = chance.choice([0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFE, 0xFF, chance.randrange(256)])
            case 1:
                changed[position] ^= 1 << chance.randrange(8)
            case 2:
                del changed[position : position + width]
            case 3:
                changed[position:position] = chance.choice([chance.randbytes(width), b"\x80" * width, b"\xff" * width])
            case _:
                start = chance.randrange(len(changed))
                changed[position : position + width] = changed[start : start + width]
        if len(changed) <= HEADER_SIZE:
            break
    return bytes(changed)


def attempts(chance: random.Random) -> Iterator[bytes]:
    while True:
        raw = some_batch(chance)
        yield raw
        for _ in range(20):
            yield seal(damage(raw, chance))
        header = bytearray(raw)
        position = chance.randrange(21, HEADER_SIZE)
        header[position] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        yield seal(header)
        yield seal(raw[:HEADER_SIZE] + chance.randbytes(chance.randrange(60)))
        yield chance.randbytes(chance.randrange(200))


@pytest.mark.parametrize("seed", range(4))
def test_hostile_batches(seed: int) -> None:
    chance = random.Random(seed)
    stream = attempts(chance)
    outcomes = [obey(next(stream)) for _ in range(1500)]
    assert 100 < sum(outcomes) < 1400  # some were accepted, and some were refused


def main() -> int:
    parser = argparse.ArgumentParser(description="look for batches that the readers take wrongly")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="to repeat a run")
    arguments = parser.parse_args()
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    stream = attempts(random.Random(seed))
    end = time.monotonic() + arguments.seconds
    tried = accepted = 0
    while time.monotonic() < end:
        raw = next(stream)
        tried += 1
        try:
            accepted += obey(raw)
        except BaseException:
            sys.stderr.write(f"seed {seed}, batch {tried}: {raw.hex()}\n")
            raise
    sys.stdout.write(f"seed {seed}: {tried} batches, {accepted} of them accepted\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
