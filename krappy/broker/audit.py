"""Writes the audit log: to the broker's own log, to a file, or to a topic (the setting `audit_log`).

A file has at most `FILE_BYTES`; it then becomes FILE.1, in place of the one before. What can't be written is kept and
tried again, at most `MOST_WAITING` bytes of it; further lines are counted, and the broker's log says why. No request
waits for it. A line may be written twice to a topic whose leader dies.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import trio

from krappy.core.security import audit
from krappy.core.security.audit import AuditTrail, Facts
from krappy.core.security.operations import Grant, Op
from krappy.core.security.principal import ANONYMOUS, Principal
from krappy.errors import KrappyError
from krappy.ports.audit import ASKED, Position
from krappy.settings.server import ServerConfig
from krappy.waiting import Signal, wait_any

FILE_BYTES = 64 << 20
MOST_WAITING = 8 << 20  # bytes of lines that wait to be written
AT_ONCE = 256 << 10  # bytes of lines that are written at once
FLUSH_S = 0.1  # for which lines are collected
AGAIN_S = 1.0  # until it is tried again to write
DUE_S = 5.0  # between two looks for repeats that are to be told
READS = frozenset({Op.READ, Op.DESCRIBE, Op.DESCRIBE_CONFIGS})
LOGGED = frozenset({"authentication_failed"})  # events that the broker's log has in any case
BROKER = Principal(name="broker")
Write = Callable[[Sequence[str]], Any]  # of a topic; gives an awaitable. Raises KrappyError


class AuditLender(Protocol):
    """What a broker lends."""

    config: ServerConfig

    def report(self, event: str, **facts: Any) -> None: ...


class Audit:
    """`on`: something is written. `allowing`: also what was allowed."""

    def __init__(self, runtime: AuditLender) -> None:
        self._runtime = runtime
        kind, _, where = runtime.config.audit_sink.partition(":")
        self.on = kind != "none"
        self.allowing = self.on and runtime.config.audit_allowed != "none"
        self._reads = runtime.config.audit_allowed == "all"
        self._to_log = kind == "stderr"
        self._file = Path(where) if kind == "file" else None
        self._trail = AuditTrail()
        self._lines: deque[str] = deque()
        self._waiting = 0  # bytes of them
        self._come = Signal()

    # --- events

    def authenticated(self, principal: Principal) -> None:
        repeats = ("authenticated", principal.names, principal.host, principal.listener, principal.mechanism)
        self._report("authenticated", audit.who(principal), principal.host, repeats)

    def failed(self, mechanism: str, host: str, user: str, reason: str) -> None:
        facts = {"user": user, "mechanism": mechanism, "host": host, "reason": reason}
        self._report("authentication_failed", facts, host)

    def denied(self, principal: Principal, grant: Grant, reason: str) -> None:
        facts = {**audit.who(principal), **_resource(grant), "reason": reason}
        self._report("denied", facts, principal.host, ("denied", principal.names, grant))

    def allowed(self, principal: Principal, grant: Grant) -> None:
        if self._reads or grant.op not in READS:
            facts = {**audit.who(principal), **_resource(grant)}
            self._report("allowed", facts, principal.host, ("allowed", principal.names, grant))

    def changed(self, kind: str, name: str, before: Any, after: Any) -> None:
        self._changed(kind, name, before, after)

    def _changed(self, kind: str, name: str, before: Any, after: Any, repeats: tuple[Any, ...] | None = None) -> None:
        asked = ASKED.get()
        principal = BROKER if asked is None else asked.asker.principal
        states = {"before": audit.state(before), "after": audit.state(after)}
        if repeats is not None:
            repeats = (*repeats, principal.names, principal.host, asked and asked.client_id)
        self._report("changed", {**audit.who(principal), "kind": kind, "name": name, **states}, principal.host, repeats)

    def moved(self, group: str, before: Iterable[Position], after: Iterable[Position], *, often: bool = False) -> None:
        if not self.on:
            return
        was, now = audit.positions(before), audit.positions(after)
        if was != now:
            self._changed("positions", group, was, now, ("positions", group) if often else None)

    def ended(self, principal: Principal, reason: str, grant: Grant | None = None) -> None:
        resource = {} if grant is None else _resource(grant)
        repeats = ("ended", principal.names, principal.host, reason, grant)
        self._report("ended", {**audit.who(principal), **resource, "reason": reason}, principal.host, repeats)

    def throttled(self, quota: str, user: str, client_id: str, host: str, seconds: float) -> None:
        asked = ASKED.get()
        principal = ANONYMOUS if asked is None else asked.asker.principal
        facts = {**audit.who(principal), "quota": quota, "user": user or None, "seconds": round(seconds, 3)}
        repeats = ("throttled", quota, user, client_id, host)
        self._report("throttled", facts, principal.host or host, repeats)

    def _report(self, event: str, facts: Facts, source: str, repeats: tuple[Any, ...] | None = None) -> None:
        if not self.on or (self._to_log and event in LOGGED):
            return
        asked = ASKED.get()
        if asked is not None and event != "ended":  # whose request has ended it is told by what was changed
            facts = {**facts, "client_id": asked.client_id, "api": asked.api}
        found = self._trail.take({"event": event, **facts}, source, time.monotonic(), repeats)
        if found is not None:
            self._write(found)

    def _write(self, facts: Facts) -> None:
        event, others = facts["event"], {name: fact for name, fact in facts.items() if name != "event"}
        if self._to_log:
            self._runtime.report(event, **audit.cleaned(others))
        elif self._waiting >= MOST_WAITING:
            self._trail.lost(facts)
        else:
            line = audit.line(datetime.now(UTC).isoformat(timespec="milliseconds"), event, others)
            self._lines.append(line)
            self._waiting += len(line)
            self._come.fire()

    # --- sinks

    async def run(self, write_topic: Write) -> None:
        """Until cancelled; then what waits for a file is written."""
        try:
            while self.on:
                await wait_any([self._come], lambda: bool(self._lines), DUE_S)
                for facts in self._trail.due(time.monotonic()):
                    self._write(facts)
                if self._lines:
                    await trio.sleep(FLUSH_S if await self._flush(write_topic) else AGAIN_S)
        finally:
            if self._file is not None and self._lines:
                with suppress(OSError):
                    _append(self._file, self._lines)

    async def _flush(self, write_topic: Write) -> bool:
        """Writes the first of the lines that wait. False: it has failed."""
        some: list[str] = []
        size = 0
        for each in self._lines:
            some.append(each)
            size += len(each)
            if size >= AT_ONCE:
                break
        try:
            if self._file is not None:
                await trio.to_thread.run_sync(_append, self._file, some)
            else:
                await write_topic(some)
        except (OSError, KrappyError) as error:
            self._runtime.report("audit_failed", error=str(error), lines=len(self._lines))
            return False
        for _ in some:
            self._lines.popleft()
        self._waiting -= size
        return True


def _append(file: Path, lines: Iterable[str]) -> None:
    """Raises OSError."""
    data = "".join(each + "\n" for each in lines).encode()
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if os.fstat(opened).st_size + len(data) > FILE_BYTES:
            os.close(opened)
            os.replace(file, f"{file}.1")
            opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(opened, data)
    finally:
        os.close(opened)


def _resource(grant: Grant) -> Facts:
    return {"operation": grant.op.name, "resource_type": grant.resource.name, "resource": grant.name}
