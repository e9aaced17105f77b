"""Does long work in short slices of the event loop's time, and lets other tasks run in between.

The console shares its event loop with the native port, whose requests take a tenth of a millisecond. So nothing here
may hold the loop for long. A thread would not help: the slow work (JSON, UTF-8, base64) holds the interpreter's lock.
The rule: lists are worked on item by item, in slices. A single body or value can't be cut, so it is bounded in bytes,
and takes some milliseconds at most (`api.MAX_BODY`, `shown.WHOLE`).

A slice waits for its turn (`pause`), since one user may have hundreds of requests at the same moment: in a round of the
event loop one slice is done, and the users take turns with each other and with the clients of other protocols.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from time import perf_counter
from typing import Any, TypeVar

import msgspec
import trio

Item = TypeVar("Item")
SLICE_SECONDS = 0.002


class Pauses:
    """The pauses of one request. `turn`: returns when it is the turn of its user."""

    def __init__(self, turn: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint) -> None:
        self._turn = turn
        self._until = -math.inf  # when the slice ends for which it has had a turn

    async def __call__(self) -> None:
        if perf_counter() >= self._until:
            await self._turn()
            self._until = perf_counter() + SLICE_SECONDS


PAUSES: ContextVar[Pauses | None] = ContextVar("PAUSES", default=None)  # of the request that this task handles


async def pause() -> None:
    """Call it before work that may take a ms or more, and between parts of long work. Returns at once while the slice
    lasts for which this request has had a turn."""
    pauses = PAUSES.get()
    await (trio.lowlevel.checkpoint() if pauses is None else pauses())


async def in_slices(items: Iterator[Item]) -> list[Item]:
    """All items as a list. `items` does the work as it is iterated; others get a turn every SLICE_SECONDS."""
    found: list[Item] = []
    await pause()
    until = perf_counter() + SLICE_SECONDS
    for item in items:
        found.append(item)
        if perf_counter() >= until:
            await pause()
            until = perf_counter() + SLICE_SECONDS
    return found


def encode(value: Any, *, binary: bool) -> bytes:
    return msgspec.msgpack.encode(value) if binary else msgspec.json.encode(value)


async def encode_in_slices(value: Any, *, binary: bool) -> bytes:
    """As `encode`, in slices: the items of a struct's lists are encoded one by one."""
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
