"""Unpacking of large requests within bounded memory.

One byte of msgpack can become an object of 70 bytes: 64 MiB of empty maps take 4.5 GiB once unpacked. A proper large
request is large because of a few strings or bins in its map. Those are cut out here; everything else may take `SMALL`
bytes in all.
"""

from __future__ import annotations

from typing import Any

import msgpack

from krappy.errors import ProtocolError
from krappy.wire.schema import unpack

SMALL = 1 << 20
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bin 8 to 32, str 8 to 32: bytes of the length
_STRINGS = 0xD9


class TooMuch:
    """Stands for a field that holds more than it may. No message accepts this type."""

    def __repr__(self) -> str:
        return f"over {SMALL} bytes of values"


def unpack_request(body: bytes | memoryview) -> dict[str, Any]:
    """As `schema.unpack`, for a request of any size. Raises ProtocolError.

    When the small values take more than `SMALL` bytes, the field that exceeds them is a `TooMuch`, and the fields after
    it are missing.
    """
    if len(body) <= SMALL:
        return unpack(body)
    view = memoryview(body)
    if 0x80 <= view[0] <= 0x8F:
        count, position = view[0] & 0x0F, 1
    else:
        raise ProtocolError("a large frame holds one msgpack map of at most 15 fields")
    found: dict[str, Any] = {}
    room = SMALL
    for _ in range(count):
        name, end = _small(view, position, room)
        if type(name) is not str:
            raise ProtocolError("a field's name that is no string, or too long")
        room -= end - position
        position = end
        width = _LENGTHS.get(view[position]) if position < len(view) else None
        if width is None:
            value, end = _small(view, position, room)
            room -= end - position
        else:
            start = position + 1 + width
            end = start + int.from_bytes(view[position + 1 : start], "big")
            if end > len(view):
                raise ProtocolError("not msgpack: cut short")
            value = bytes(view[start:end])
            if view[position] >= _STRINGS:
                try:
                    value = value.decode()
                except UnicodeDecodeError:
                    raise ProtocolError("not msgpack: a string that is no UTF-8") from None
        found[name] = value
        if isinstance(value, TooMuch):
            return found
        position = end
    if position != len(view):
        raise ProtocolError("not msgpack: something follows the map")
    return found


def _small(view: memoryview, position: int, room: int) -> tuple[Any, int]:
    """(value at `position`, position of its end). TooMuch for a value of more than `room` bytes. Raises
    ProtocolError."""
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=True, max_buffer_size=SMALL)
    unpacker.feed(view[position : position + room])
    try:
        return unpacker.unpack(), position + unpacker.tell()
    except msgpack.OutOfData:
        if position + room < len(view):
            return TooMuch(), position + room
        raise ProtocolError("not msgpack: cut short") from None
    except ValueError as error:
        if "exceeds max" in str(error) and position + room < len(view):  # an array that claims more elements than fit
            return TooMuch(), position + room
        raise ProtocolError(f"not msgpack: {str(error)[:80]}") from None
    except Exception as error:  # msgpack's own kinds, RecursionError
        raise ProtocolError(f"not msgpack: {str(error)[:80] or type(error).__name__}") from None
