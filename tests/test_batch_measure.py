"""`measure` is `check` at a third of the cost: whatever the bytes, they agree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from krappy.errors import CorruptBatch
from krappy.records import batch


def cases() -> Iterator[tuple[bytes, int]]:
    """(bytes, position): whole batches, at an offset too, each bit flipped, each length cut."""
    one = batch.encode([b"k", None, b"k"], [b"value", b"", None], timestamps=[5, 3, 9], base_offset=77)
    empty = batch.keep(one, ())
    assert empty is not None
    for data in (one, empty):
        yield data, 0
        yield b"xx" + data + b"tail", 2
        for bit in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            yield bytes(flipped), 0
        for length in range(len(data)):
            yield data[:length], 0
    yield one, len(one)


def test_measure_agrees_with_check() -> None:
    taken = refused = 0
    for data, position in cases():
        try:
            header = batch.check(data, position)
        except CorruptBatch as error:
            if "base offset -" in error.text:
                continue  # outside of the checksum, and left to the caller
            with pytest.raises(CorruptBatch):
                batch.measure(memoryview(data), position)
            refused += 1
        else:
            measured = batch.measure(memoryview(data), position)
            assert measured == (header.size, header.last_offset_delta, header.count)
            taken += 1
    assert taken > 60
    assert refused > 1000
