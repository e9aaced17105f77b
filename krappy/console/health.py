"""Probes: whether the broker is alive, and whether it is ready to serve.

A broker is ready if it answers reads and lookups. It stays ready if its disk refuses writes (because it is full, say):
otherwise Kubernetes would keep away the readers, too, and the clients that free space. The answer lists what is
refused, and why. The reason names topics and folders, so where the console asks for a login, only those who may
describe the cluster are told it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec
import trio
from starlette.responses import JSONResponse

from krappy.console.api import Call, Routes
from krappy.console.problems import HttpError
from krappy.console.slices import in_slices
from krappy.core.security import needs
from krappy.errors import KrappyError
from krappy.ports import BrokerPort

routes = Routes("health", prefix="")
DISK_SECONDS = 5.0
FRESH_SECONDS = 1.0  # how long the result of a disk trial is used again, so that probes do not wear the disk


class Alive(msgspec.Struct):
    status: Literal["ok"]


class Ready(msgspec.Struct, omit_defaults=True):
    status: Literal["ready"]
    refused: list[str] = []


class DiskRefusal(NamedTuple):
    """`what`: what is refused, without names of topics and folders. `told`: the same with the reason, which may name
    them."""

    what: str
    told: str


class DiskTrial:
    """What the disk refuses, tried at most once a second.

    A log whose sync failed takes no appends until the broker is restarted: bytes that the kernel had not written may be
    lost.
    """

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._at = -FRESH_SECONDS
        self._refused: list[DiskRefusal] = []
        self._hangs = ""

    async def look(self, broker: BrokerPort) -> tuple[str, list[DiskRefusal]]:
        """(why reads fail, too, or ""; what is refused)."""
        async with self._turn:
            if trio.current_time() - self._at >= FRESH_SECONDS:
                machine = broker.machine
                reasons = {
                    "events": machine.events_refused(),
                    "topics, groups and transactions": machine.catalog_failed(),
                    "tables": machine.tables_refused(),
                    "writing": await self._try(broker),
                }
                self._refused = [DiskRefusal(what, f"{what}: {why}") for what, why in reasons.items() if why]
                if logs := await _failed_logs(broker):
                    self._refused.append(DiskRefusal("events of partitions whose log failed", logs))
                self._at = trio.current_time()
            return self._hangs, self._refused

    async def _try(self, broker: BrokerPort) -> str:
        self._hangs = ""
        try:
            with trio.move_on_after(DISK_SECONDS) as scope:
                await broker.machine.try_disk()
        except KrappyError as error:
            return error.text
        if scope.cancelled_caught:
            self._hangs = f"the disk took longer than {DISK_SECONDS:g} s"
        return self._hangs


async def _failed_logs(broker: BrokerPort) -> str:
    reasons = [why for why in await in_slices(broker.machine.failed_logs()) if why]
    if not reasons:
        return ""
    return f"{len(reasons)} partitions take no more events until the broker is started again: {reasons[0]}"


@routes.get("/healthz", needs=needs.NOTHING, summary="Whether the process answers")
async def healthz(call: Call) -> Alive:
    return Alive("ok")


@routes.get(
    "/readyz",
    needs=needs.NOTHING,
    summary="Whether it is recovered and listening. `refused`: what the disk does not take now (it is tried). Where a "
    "login is needed, only who may describe the cluster is told why",
)
async def readyz(call: Call) -> Ready:
    why, refused = await look(call.broker, call.console.is_listening(), call.console.disk)
    if why:
        raise HttpError(503, "NOT_READY", why, Retry_After="1")
    return Ready("ready", [each.told if call.may_know_why else each.what for each in refused])


async def look(broker: BrokerPort, listening: bool, disk: DiskTrial) -> tuple[str, list[DiskRefusal]]:
    """(why the broker is not ready, or ""; what is refused)."""
    if broker.stopped:
        return "the broker is shutting down", []
    if not broker.opened:
        return "the store is being recovered", []
    if not listening:
        return "the listeners are not open yet", []
    return await disk.look(broker)


class Probes:
    """The application (ASGI) of a listener that has the probes alone: anybody may ask, and is told yes or no."""

    def __init__(self, broker: BrokerPort, is_listening: Callable[[], bool]) -> None:
        self._broker, self._is_listening = broker, is_listening
        self._disk = DiskTrial()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        code, status = await self._answer(scope["method"], scope["raw_path"])
        headers = {"cache-control": "no-store"}
        await JSONResponse({"status": status}, code, headers)(scope, receive, send)

    async def _answer(self, method: str, path: bytes) -> tuple[int, str]:
        if path not in (b"/healthz", b"/readyz"):
            return 404, "not found"
        if method not in ("GET", "HEAD"):
            return 405, "not allowed"
        if path == b"/healthz":
            return 200, "ok"
        why, _ = await look(self._broker, self._is_listening(), self._disk)
        return (503, "not ready") if why else (200, "ready")
