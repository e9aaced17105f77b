"""Zigzag varints (Protocol Buffers' sint32 and sint64), the numbers inside a RecordBatch v2."""

from __future__ import annotations

from functools import lru_cache

from krappy.errors import CorruptBatch


def encode(number: int) -> bytes:
    """`number` (a signed 64-bit int) as zigzag varint: 1 to 10 bytes."""
    raw = number << 1 if number >= 0 else ~number << 1 | 1
    if raw < 0x80:
        return bytes((raw,))
    if raw < 0x4000:
        return bytes((raw & 0x7F | 0x80, raw >> 7))
    if raw < 0x200000:
        return bytes((raw & 0x7F | 0x80, raw >> 7 & 0x7F | 0x80, raw >> 14))
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def decode_raw(buf: bytes, position: int, widest: int = 5) -> tuple[int, int]:
    """The unsigned varint at `position` and the position after it; at most `widest` bytes (5: 32 bits, 10: 64).

    Raises CorruptBatch when it is longer or does not fit, IndexError when `buf` ends within it.
    """
    raw = buf[position]
    if raw < 0x80:
        return raw, position + 1
    byte = buf[position + 1]
    raw += (byte << 7) - 0x80
    if byte < 0x80:
        return raw, position + 2
    byte = buf[position + 2]
    raw += (byte << 14) - 0x4000
    if byte < 0x80:
        return raw, position + 3
    byte = buf[position + 3]
    raw += (byte << 21) - 0x200000
    if byte < 0x80:
        return raw, position + 4
    raw -= 0x10000000
    for more in range(4, widest):
        byte = buf[position + more]
        raw += (byte & 0x7F) << 7 * more
        if byte < 0x80:
            if raw >> (32 if widest == 5 else 64):
                break
            return raw, position + more + 1
    raise CorruptBatch("a varint that is too long")


def decode(buf: bytes, position: int, widest: int = 5) -> tuple[int, int]:
    """The zigzag number at `position`, as `decode_raw`."""
    raw, position = decode_raw(buf, position, widest)
    return raw >> 1 ^ -(raw & 1), position


@lru_cache(maxsize=1 << 14)
def delta_of(raw: bytes) -> int:
    """The number that `raw`, one zigzag varint, encodes. Cached: batches have similar timestamp deltas."""
    return decode(raw, 0, 10)[0]
