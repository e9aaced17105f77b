"""Logouts of browsers, stored as znodes, so that they count at all brokers of a cluster.

    /config/sessions/all           {"version":1,"config":{"ended":"<ms since the epoch>-<random>"}}
    /config/sessions/user%3Abob    the same, of one user's sessions

A session remembers the marks that it found when it was opened. It has ended if there are other marks now. The removal
of a mark ends no session: so a mark may go once it is older than any session. A broker knows that of a mark which it
has seen for so long by its steady clock, whatever the time of day is in the mark: clocks are set, and differ. Until
then a session that the mark has ended, but whose browser has sent nothing since, would go on without it.

A mark that can't be stored, as while ZooKeeper is away, is tried again until it is: whoever wanted it can't ask again,
for this broker has ended the session with which he did.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, islice

import trio

from krappy.broker.runtime import Runtime
from krappy.broker.tree_changes import change, config_change
from krappy.core.cluster import paths, znodes
from krappy.core.cluster.tree import Delete, Operation
from krappy.errors import ConnectionLost, StorageError
from krappy.ports.logouts import LogoutMarks
from krappy.store.refusals import reading

ALL = "all"
ENDED = "ended"  # the setting that has the mark
# Everybody who is logged in may ask for a change.
PAUSE = 1.0  # seconds between two changes for which the same user asks, so that he keeps nobody else waiting
GAP = 0.1  # seconds between two changes by this broker
KEPT = 24 * 3600.0  # seconds for which a mark stays at least; sessions last half as long
REMOVED = 100  # old marks that one change removes at most
MADE = 100  # marks that one change makes at most: ZooKeeper ends a connection that sends a MB at once


class Logouts:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # By the name of a znode that needs a new mark: set once it has one. The last one is for those who came since
        # the last try.
        self._wanted: dict[str, list[trio.Event]] = {}
        self._trying = False  # to make what could not be made
        self._turn = trio.Lock()
        self._next = 0.0  # when the next change may be made
        self._last: dict[str, float] = {}  # by the name of a znode, when it got its mark, if that is not long ago
        self._seen: dict[str, tuple[str, float]] = {}  # by the name of a znode, its mark, and when that was seen first

    def marks(self, user: str) -> LogoutMarks:
        held = self._held()
        return _mark(held.get(ALL)), _mark(held.get(_of(user)))

    def ended(self, user: str, marks: LogoutMarks) -> bool:
        return any(now not in ("", then) for now, then in zip(self.marks(user), marks, strict=True))

    async def end(self, user: str | None) -> None:
        name = ALL if user is None else _of(user)
        made = self._wanted.setdefault(name, [trio.Event()])[-1]
        try:
            if name in self._last:
                await trio.sleep_until(self._last[name] + PAUSE)
            async with self._turn:
                if not made.is_set():  # the change before was not for this one, too
                    await self._make(name)
        except BaseException:
            self._make_later()
            raise

    async def _make(self, name: str) -> None:
        """Makes the mark of this name, and some that others want."""
        await trio.sleep_until(self._next)
        now = trio.current_time()
        self._next = now + GAP
        names = list(dict.fromkeys((name, *islice(self._wanted, MADE - 1))))
        self._last = {each: at for each, at in self._last.items() if now - at < PAUSE} | dict.fromkeys(names, now)
        some = {each: self._wanted.pop(each) for each in names}
        try:
            await self._mark(set(some))
        except BaseException:
            for key, events in some.items():
                self._wanted[key] = events + self._wanted.get(key, [])
            raise
        for each in chain.from_iterable(some.values()):
            each.set()

    def _make_later(self) -> None:
        if self._wanted and not (self._trying or self._runtime.stopped):
            self._trying = True
            self._runtime.spawn(self._make_wanted)

    async def _make_wanted(self) -> None:
        """Makes all marks that are still wanted."""
        try:
            while self._wanted:
                await trio.sleep(PAUSE)
                async with self._turn:
                    if (name := next(iter(self._wanted), None)) is not None:
                        with suppress(StorageError, ConnectionLost):
                            await self._make(name)
        finally:
            self._trying = False

    async def _mark(self, names: set[str]) -> None:
        runtime = self._runtime
        mark = {ENDED: f"{runtime.now_ms()}-{secrets.token_hex(8)}"}
        old = self._old()[:REMOVED]

        async def made() -> list[Operation]:
            operations: list[Operation] = []
            for name in sorted(names):
                path = paths.config(paths.SESSION_CONFIG, name)
                operations += config_change(path, await runtime.store.read(path), mark)
            for name in set(old) - names:
                path = paths.config(paths.SESSION_CONFIG, name)
                found = await runtime.store.read(path)
                if found is not None:
                    with reading(path):
                        if self._seen[name][0] == _mark(znodes.settings(found.data)):
                            operations.append(Delete(path, found.version))
            return operations

        await change(runtime.store, made)

    def _held(self) -> Mapping[str, Mapping[str, str]]:
        return self._runtime.image.configs.get(paths.SESSION_CONFIG, {})

    def _old(self) -> list[str]:
        """The names of the znodes whose marks may go."""
        now, before = trio.current_time(), self._seen
        self._seen = {}
        for name, held in self._held().items():
            mark, since = before.get(name, ("", now))
            self._seen[name] = (mark, since) if mark == _mark(held) else (_mark(held), now)
        return [name for name, (_, since) in self._seen.items() if now - since > KEPT]


def _of(user: str) -> str:
    return f"user:{user}"


def _mark(held: Mapping[str, str] | None) -> str:
    return "" if held is None else held.get(ENDED, "")
