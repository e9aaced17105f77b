"""Probes: alive, and ready to work."""

from __future__ import annotations

from typing import Literal

import msgspec
import trio

from krappy.console.api import Call, Routes
from krappy.console.problems import Refusal
from krappy.console.slices import in_slices
from krappy.errors import KrappyError
from krappy.ports import BrokerPort

routes = Routes("health", prefix="")
DISK_SECONDS = 5.0
FRESH_SECONDS = 1.0  # so long the disk's last trial counts: probes must not wear it


class Alive(msgspec.Struct):
    status: Literal["ok"]


class Ready(msgspec.Struct):
    status: Literal["ready"]


class DiskTrial:
    """Whether the disk can be written: tried at most once a second; and whether every log still takes appends.

    A log that could not be synced takes none until the broker is started again (what the kernel held may be lost).
    """

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._at = -FRESH_SECONDS
        self._failure: str | None = None

    async def failure(self, broker: BrokerPort) -> str | None:
        """What is wrong with the disk, or None."""
        async with self._turn:
            if trio.current_time() - self._at >= FRESH_SECONDS:
                self._failure = await self._try(broker) or await _failed_logs(broker)
                self._at = trio.current_time()
            return self._failure

    async def _try(self, broker: BrokerPort) -> str | None:
        try:
            with trio.move_on_after(DISK_SECONDS) as scope:
                await broker.machine.try_disk()
        except KrappyError as error:
            return error.text
        return f"the disk took longer than {DISK_SECONDS:g} s" if scope.cancelled_caught else None


async def _failed_logs(broker: BrokerPort) -> str | None:
    partitions = (partition for topic in list(broker.topics.values()) for partition in topic.partitions)
    reasons = [why for why in await in_slices(partition.log_failed for partition in partitions) if why]
    if not reasons:
        return None
    return f"{len(reasons)} partitions take no more events until the broker is started again: {reasons[0]}"


@routes.get("/healthz", summary="Whether the process answers")
async def healthz(call: Call) -> Alive:
    return Alive("ok")


@routes.get(
    "/readyz",
    summary="Whether it works: recovered, listening, the disk can be written (it is tried), every log takes events",
)
async def readyz(call: Call) -> Ready:
    why = None
    if call.broker.stopped:
        why = "the broker is shutting down"
    elif not call.broker.opened:
        why = "the store is being recovered"
    elif not call.console.is_listening():
        why = "the listeners are not open yet"
    else:
        why = await call.console.disk.failure(call.broker)
    if why is not None:
        raise Refusal(503, "NOT_READY", why, Retry_After="1")
    return Ready("ready")
