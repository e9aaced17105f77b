"""An entry, the row of a view for a key: the msgpack array [offset, timestamp, value or nil, headers or nil].

An entry is sent over the wire as it is stored, and any msgpack library reads it. The two numbers always have their
8-byte forms. So the first 20 bytes have a fixed layout, and offset, timestamp and tombstone are found without decoding:

    0    0x94             array of 4
    1    0xcf             uint64
    2    offset           8 bytes, big-endian
    10   0xd3             int64
    11   timestamp        8 bytes, big-endian, ms since the epoch (-1: the producer gave none)
    19   value            0xc0 (nil): a tombstone; or 0xc4, 0xc5, 0xc6: bin of a 1-, 2-, 4-byte length
    ..   headers          0xc0 (nil): none; or an array of [name, value or nil]

Entries therefore compare as bytes in the order of their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import add
from struct import Struct
from typing import Any

import msgpack

from krappy.errors import StorageError
from krappy.types import Headers

VALUE_AT = 19
NIL = 0xC0
_HEAD = Struct(">HQBq").pack
_START = 0x94CF
_INT64 = 0xD3
_pack_headers = msgpack.Packer(autoreset=True).pack
_BIN = 0xC400  # a bin of a 1-byte length, once the length is added
_BIN8 = [b"\xc4" + bytes([length]) for length in range(256)]


def _pack_long(start: int, offset: int, int64: int, timestamp: int, bin: int, value: bytes, nil: int) -> bytes:
    return b"".join((_HEAD(start, offset, int64, timestamp), bin_header(len(value)), value, b"\xc0"))


class _Packers(dict[int, Callable[..., bytes]]):
    """By a value's length: the function that packs its entry; below 256 it is one call of struct."""

    def __missing__(self, length: int) -> Callable[..., bytes]:
        if length > 255:
            return _pack_long
        found = self[length] = Struct(f">HQBqH{length}sB").pack
        return found


_PACK = _Packers()


@lru_cache(maxsize=256)
def _packer_of(length: int) -> tuple[Callable[..., bytes], bytes]:
    """(the function that packs entries with values of one length, the header that such a value has)."""
    header = bin_header(length)
    return Struct(f">HQBq{len(header)}s{length}sB").pack, header


def bin_header(length: int) -> bytes:
    """The bytes that msgpack puts before a bin of `length` bytes."""
    if length < 256:
        return _BIN8[length]
    return b"\xc5" + length.to_bytes(2, "big") if length < 65536 else b"\xc6" + length.to_bytes(4, "big")


def packed_rows(keys: Sequence[bytes], entries: Sequence[bytes]) -> list[bytes]:
    """Keys, as msgpack bins, and their entries in turn, ready for a message."""
    items = [b""] * (2 * len(keys))
    sizes = list(map(len, keys))
    headers = map(_BIN8.__getitem__ if max(sizes, default=0) < 256 else bin_header, sizes)
    items[::2] = map(add, headers, keys)
    items[1::2] = entries
    return items


def key_of_bin(packed: bytes) -> bytes:
    """The content of a msgpack bin."""
    return packed[{0xC4: 2, 0xC5: 3, 0xC6: 5}[packed[0]] :]


def pack_entry(offset: int, timestamp: int, value: bytes | None, headers: Headers | None = None) -> bytes:
    """One entry. `headers` None or empty: there are none. `value` None: a tombstone."""
    head = _HEAD(_START, offset, _INT64, timestamp)
    tail: bytes = _pack_headers(headers) if headers else b"\xc0"
    if value is None:
        return head + b"\xc0" + tail
    return b"".join((head, bin_header(len(value)), value, tail))


def unpack_entry(entry: bytes) -> tuple[int, int, bytes | None, Headers]:
    """(offset, timestamp, value, headers) of an entry. Raises StorageError for bytes that are not one."""
    try:
        offset, timestamp, value, headers = msgpack.unpackb(entry)
        return offset, timestamp, value, tuple((name, held) for name, held in headers) if headers else ()
    except Exception as error:  # msgpack raises ValueError, its own kinds, UnicodeDecodeError and more
        raise StorageError(f"not an entry of a view: {bytes(entry[:40]).hex()}: {error}") from None


def entry_offset(entry: bytes) -> int:
    """The offset of an entry, without decoding the rest."""
    return int.from_bytes(entry[2:10], "big")


def entry_timestamp(entry: bytes) -> int:
    """The timestamp of an entry, without decoding the rest."""
    return int.from_bytes(entry[11:19], "big", signed=True)


def is_tombstone(entry: bytes) -> bool:
    """Whether an entry says that its key was deleted, without decoding it."""
    return entry[VALUE_AT] == NIL


def floor(offset: int) -> bytes:
    """Bytes that compare below or equal to every entry at `offset` or later, and above every earlier entry."""
    return b"\x94\xcf" + offset.to_bytes(8, "big")


def pack_columns(
    offsets: Sequence[int],
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers] | None = None,
    start: int = 0,
    stop: int | None = None,
) -> dict[bytes, bytes]:
    """The latest entry of each key among the records `start <= index < stop` of these columns.

    Records without a key are left out. `headers` None: no record has any. This runs for every event of a view, so the
    usual cases (keys and values present, no headers) are one comprehension; the one for values of one length takes two
    thirds of the time.
    """
    if stop is None:
        stop = len(keys)
    if (start, stop) != (0, len(keys)):
        offsets, timestamps, keys, values = (
            offsets[start:stop],
            timestamps[start:stop],
            keys[start:stop],
            values[start:stop],
        )
        headers = headers[start:stop] if headers is not None else None
    distinct: Any = set(keys)
    if headers is not None or None in distinct or len(keys) >= 2 * len(distinct):
        latest: dict[Any, int] = dict(zip(keys, range(stop - start), strict=True))
        latest.pop(None, None)
        if headers is not None:
            return {key: pack_entry(offsets[at], timestamps[at], values[at], headers[at]) for key, at in latest.items()}
        rows = latest.values()
        keys, values = list(latest), [values[at] for at in rows]
        offsets, timestamps = [offsets[at] for at in rows], [timestamps[at] for at in rows]
    columns: Any = zip(keys, offsets, timestamps, values, strict=True)  # a later one will take an earlier one's place
    try:
        lengths = set(map(len, values))  # type: ignore[arg-type]
    except TypeError:  # a tombstone has none
        return {key: pack_entry(offset, timestamp, value) for key, offset, timestamp, value in columns}
    if len(lengths) == 1:
        pack, header = _packer_of(*lengths)
        return {
            key: pack(_START, offset, _INT64, timestamp, header, value, NIL)
            for key, offset, timestamp, value in columns
        }
    return {
        key: _PACK[len(value)](_START, offset, _INT64, timestamp, _BIN | len(value), value, NIL)
        for key, offset, timestamp, value in columns
    }
