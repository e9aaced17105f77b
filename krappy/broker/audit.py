"""Writes the audit log: to the broker's own log, to a file, or to a topic (the setting `audit_log`).

Anybody can cause failures to log in. So they go to a file of their own, FILE.failures, or to the topic's second
partition: nobody without a login can drive out other lines. A file has at most `FILE_BYTES`; then it becomes FILE.1 and
replaces the FILE.1 before. What can't be written is kept and tried again (audit_backlog.py). No request waits for the
audit log. A line may be written twice to a topic whose leader dies.

A change and its line are one step (`change`): the change is made, and logged, even if its sender leaves meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import trio

from krappy.broker.audit_backlog import AuditBacklog, append
from krappy.core.security import audit
from krappy.core.security.audit import ALLOWED, FAILED, LONGEST, USUAL, AuditTrail, Facts, LinePace, Source
from krappy.core.security.operations import Grant, Op
from krappy.core.security.principal import ANONYMOUS, Principal
from krappy.errors import ConnectionLost, KrappyError, RequestTimeout, ShuttingDown, StorageError
from krappy.hosts import network
from krappy.ports.audit import ASKED, Change, Position
from krappy.settings.server import ServerConfig
from krappy.waiting import Signal, wait_any

FLUSH_S = 0.1  # seconds for which lines are collected before they are written
AGAIN_S = 1.0  # seconds until a failed write is tried again
DUE_S = 5.0  # seconds between two looks for repeats that are due to be logged
READS = frozenset({Op.READ, Op.DESCRIBE, Op.DESCRIBE_CONFIGS})
BROKER = Principal(name="broker")
TROUBLE = (ConnectionLost, RequestTimeout, ShuttingDown, StorageError)  # after one of these a change may have been made
USUALLY, FAILURES = 0, 1  # the backlogs, and the partitions of a topic
FINISH_S = 5.0  # seconds to write to a topic what waits when the broker stops
Write = Callable[[Sequence[str], int], Any]  # to a partition of a topic; gives an awaitable. Raises KrappyError


class AuditLender(Protocol):
    """What a broker lends."""

    config: ServerConfig

    def report(self, event: str, **facts: Any) -> None: ...


class Audit:
    """`on`: the audit log is written. `allowing`: it has also what was allowed."""

    def __init__(self, runtime: AuditLender) -> None:
        self._runtime = runtime
        kind, _, where = runtime.config.audit_sink.partition(":")
        self.on = kind != "none"
        self.allowing = self.on and runtime.config.audit_allowed != "none"
        self._reads = runtime.config.audit_allowed == "all"
        self._to_log = kind == "stderr"
        self._files = [Path(where), Path(f"{where}.failures")] if kind == "file" else None
        self._trails = AuditTrail(), AuditTrail()
        self._changes = AuditTrail()  # of changes that are told once a minute: nothing else drives these out
        self._backlogs = AuditBacklog(self._failed), AuditBacklog(self._failed)
        self._come = Signal()

    @property
    def failing(self) -> bool:
        return any(each.failing for each in self._backlogs)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self._backlogs)

    # --- events

    def authenticated(self, principal: Principal) -> None:
        repeats = ("authenticated", principal.names, principal.host, principal.listener, principal.mechanism)
        self._report("authenticated", audit.who(principal), _source(principal), repeats)

    def failed(self, mechanism: str, host: str, user: str, reason: str) -> None:
        if not self._to_log:  # else the broker's log has it in any case
            facts = {"user": user, "mechanism": mechanism, "host": host, "reason": reason}
            self._report("authentication_failed", facts, (network(host),), place=FAILURES, pace=FAILED)

    def denied(self, principal: Principal, grant: Grant, reason: str) -> None:
        facts = {**audit.who(principal), **_resource(grant), "reason": reason}
        self._report("denied", facts, _source(principal), ("denied", *_asker(principal), _short(grant)))

    def allowed(self, principal: Principal, grant: Grant) -> None:
        if self._reads or grant.op not in READS:
            facts = {**audit.who(principal), **_resource(grant)}
            repeats = ("allowed", *_asker(principal), _short(grant))
            self._report("allowed", facts, _source(principal), repeats, pace=ALLOWED)

    def changed(self, kind: str, name: str, before: Any, after: Any) -> None:
        self._changed(kind, name, before, after)

    @contextmanager
    def change(
        self,
        kind: str,
        names: Sequence[str],
        look: Callable[[str], Any] = lambda name: None,
        *,
        elsewhere: bool = False,
    ) -> Iterator[Change]:
        told = Change()
        before = {name: look(name) for name in names}
        told.before |= before
        with trio.CancelScope(shield=True):
            trouble: str | None = None
            try:
                yield told
            except BaseException as error:
                sent = isinstance(error, ConnectionLost) and error.details.get("sent", False)
                known = isinstance(error, KrappyError) and not isinstance(error, TROUBLE)
                trouble = str(error) or type(error).__name__
                told.made = not known and (sent or elsewhere or any(look(name) != before[name] for name in names))
                told.made |= elsewhere and len(names) > 1  # some of them may have been made, others refused
                raise
            finally:
                for name in names if told.made else ():
                    after = told.after[name] if name in told.after else look(name)
                    if trouble or not elsewhere or after != told.before[name]:
                        self._changed(kind, name, told.before[name], after, trouble=trouble)

    def _changed(
        self,
        kind: str,
        name: str,
        before: Any,
        after: Any,
        repeats: Source | None = None,
        trouble: str | None = None,
    ) -> None:
        asked = ASKED.get()
        principal = BROKER if asked is None else asked.asker.principal
        facts = {"kind": kind, "name": name, "before": audit.state(before), "after": audit.state(after)}
        if repeats is not None:
            repeats = (*repeats, *_source(principal))
        self._report("changed", {**audit.who(principal), **facts, "error": trouble}, None, repeats)

    def moved(self, group: str, before: Iterable[Position], after: Iterable[Position], *, often: bool = False) -> None:
        if not self.on:
            return
        was, now = audit.positions(before), audit.positions(after)
        if was != now:
            self._changed("positions", group, was, now, ("positions", group) if often else None)

    def ended(self, principal: Principal, reason: str, grant: Grant | None = None) -> None:
        resource = {} if grant is None else _resource(grant)
        repeats = ("ended", *_asker(principal), reason, grant and _short(grant))
        self._report("ended", {**audit.who(principal), **resource, "reason": reason}, _source(principal), repeats)

    def throttled(self, quota: str, user: str, client_id: str, host: str, seconds: float) -> None:
        asked = ASKED.get()
        principal = ANONYMOUS if asked is None else asked.asker.principal
        facts = {**audit.who(principal), "quota": quota, "user": user or None, "seconds": round(seconds, 3)}
        if host:  # of one who has not logged in: so far it may have sent no request that could tell
            facts["host"] = host
        repeats = ("throttled", quota, user, client_id, host)
        self._report("throttled", facts, (*_source(principal), network(host)), repeats)

    def _report(
        self,
        event: str,
        facts: Facts,
        source: Source | None,
        repeats: Source | None = None,
        *,
        place: int = USUALLY,
        pace: LinePace = USUAL,
    ) -> None:
        """`source`: None: the event is logged in any case."""
        if not self.on:
            return
        asked = ASKED.get()
        # Not of what ends: the line of the change says whose request ended it.
        if asked is not None and event != "ended" and _has_asked(asked.asker.principal, facts):
            facts = {**facts, "client_id": asked.client_id, "api": asked.api}
        summed = None
        if place == FAILURES:
            summed = {"event": event, "host": facts["host"], "reason": "further failures of this address"}
        facts = audit.kept({"event": event, **facts})
        trail = self._trails[place] if source is not None or repeats is None else self._changes
        found = trail.take(facts, source, time.monotonic(), repeats, pace, summed)
        if found is not None:
            self._write(found, place, important=source is None)

    def _write(self, facts: Facts, place: int, *, important: bool = False) -> None:
        event, others = facts["event"], {name: fact for name, fact in facts.items() if name != "event"}
        if self._to_log:
            self._runtime.report(event, **audit.cleaned(others))
        else:
            self._backlogs[place].put(event, others, important=important)
            self._come.fire()

    # --- where it goes

    async def run(self, write_topic: Write) -> None:
        """Until cancelled. Then what waits for a file is written; what can't be written goes to the broker's own
        log."""
        try:
            async with trio.open_nursery() as nursery:
                for place in range(len(self._backlogs) if self.on else 0):
                    nursery.start_soon(self._run, place, self._writer(write_topic, place))
        finally:
            for place, backlog in enumerate(self._backlogs):
                for line in backlog.end(None if self._files is None else self._files[place]):
                    self._runtime.report("audit_unwritten", line=line)

    async def _run(self, place: int, write: Callable[[Sequence[str]], Any]) -> None:
        """Each place is written by itself: a partition whose leader hangs keeps the other one from nothing."""
        backlog = self._backlogs[place]
        while True:
            await wait_any([self._come], lambda: len(backlog) > 0, DUE_S)
            for facts in self._trails[place].due(time.monotonic()):
                self._write(facts, place)
            for facts in self._changes.due(time.monotonic()) if place == USUALLY else ():
                self._write(facts, place, important=True)
            if len(backlog):
                await trio.sleep(FLUSH_S if await backlog.flush(write) else AGAIN_S)

    async def finish(self, write_topic: Write) -> None:
        """Writes the lines that wait for a topic, while it can be written to. Takes `FINISH_S` at most."""

        async def finish(place: int) -> None:
            while len(self._backlogs[place]):
                if not await self._backlogs[place].flush(self._writer(write_topic, place)):
                    await trio.sleep(FLUSH_S)

        with trio.move_on_after(FINISH_S):
            async with trio.open_nursery() as nursery:
                for place in range(len(self._backlogs) if self._files is None else 0):
                    nursery.start_soon(finish, place)

    def _writer(self, write_topic: Write, place: int) -> Callable[[Sequence[str]], Any]:
        if self._files is None:
            return lambda lines: write_topic(lines, place)
        file = self._files[place]
        return lambda lines: trio.to_thread.run_sync(append, file, lines)

    def _failed(self, error: str, lines: int) -> None:
        self._runtime.report("audit_failed", error=error, lines=lines)


def _has_asked(principal: Principal, facts: Facts) -> bool:
    """Whether these facts are of who sends the request that is handled now. Else the request has only ended the wait of
    somebody else's."""
    name = str(principal)
    return (facts["host"], facts.get("principal", name)) == (principal.host, name)


def _source(principal: Principal) -> Source:
    """Whose pace counts. All addresses of a network are one: whoever has one of them has all."""
    return (principal.names, network(principal.host))


def _asker(principal: Principal) -> Source:
    """Who is denied or allowed something again."""
    return (principal.names, principal.host)


def _short(grant: Grant) -> Grant:
    """The grant with a shorter name, since it is remembered: a peer may send a name of megabytes."""
    return grant if len(grant.name) <= LONGEST else grant._replace(name=grant.name[:LONGEST])


def _resource(grant: Grant) -> Facts:
    return {"operation": grant.op.name, "resource_type": grant.resource.name, "resource": grant.name}
