"""Much work in slices of the event loop's time, with turns for others in between.

The console shares its event loop with the native port, whose requests take a tenth of a millisecond. So nothing here
may hold it for long, and a thread would not help: what takes long (JSON, UTF-8, base64) holds the interpreter's lock.
The rule: lists are worked on item by item, in slices; and what can't be cut, one body or one value, is bounded in
bytes, so that it takes a few milliseconds at the worst (`api.MAX_BODY`, `shown.WHOLE`).
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any, TypeVar

import msgspec
import trio

Item = TypeVar("Item")
SLICE_SECONDS = 0.002


async def in_slices(items: Iterator[Item]) -> list[Item]:
    """All of them: making each takes some work, and there may be very many."""
    found: list[Item] = []
    until = perf_counter() + SLICE_SECONDS
    for item in items:
        found.append(item)
        if perf_counter() >= until:
            await trio.lowlevel.checkpoint()
            until = perf_counter() + SLICE_SECONDS
    return found


def encode(value: Any, *, binary: bool) -> bytes:
    return msgspec.msgpack.encode(value) if binary else msgspec.json.encode(value)


async def encode_in_slices(value: Any, *, binary: bool) -> bytes:
    """As `encode`; the items of a struct's lists one by one."""
    if not isinstance(value, msgspec.Struct):
        return encode(value, binary=binary)
    changes: dict[str, Any] = {}
    for name in value.__struct_fields__:
        held = getattr(value, name)
        if isinstance(held, list) and len(held) > 1:
            items = await in_slices(encode(item, binary=binary) for item in held)
            changes[name] = msgspec.Raw(_array(len(items)) + b"".join(items) if binary else b"[%b]" % b",".join(items))
    if changes:
        value = msgspec.structs.replace(value, **changes)
    return encode(value, binary=binary)


def _array(count: int) -> bytes:
    """The head of a msgpack array."""
    return b"\xdd" + count.to_bytes(4, "big")
