"""A broker's membership in a cluster, for as long as the process lives: one session with ZooKeeper after the other.

A session has its own mirror, member and controller. Between two sessions the image stays as it was, and nothing can be
read or changed in the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from krappy.cluster.controller import Controller, ControllerSettings
from krappy.cluster.member import UNREGISTERED, ClusterMember, make_roots
from krappy.cluster.mirror import Mirror
from krappy.cluster.zk.client import ZooKeeper
from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import Operation, Znode
from krappy.errors import UNCHANGED, ConnectionLost, StorageError
from krappy.ports.cluster import HomePort
from krappy.waiting import Signal, wait_any

PAUSE_S = 0.5  # between the end of a session and the next one
Report = Callable[..., None]


class ClusterMembership:
    """Implements `MembershipPort`. `connect(entered=…, happened=…)` makes a client of ZooKeeper."""

    def __init__(
        self,
        connect: Callable[..., ZooKeeper],
        broker: int,
        rack: str | None = None,
        report: Report = lambda event, **facts: None,
        now_ms: Callable[[], int | None] = lambda: None,
        settings: ControllerSettings = ControllerSettings(),  # noqa: B008  (a constant)
    ) -> None:
        """`now_ms()`: the time of day. `settings`: in force while this broker is the controller."""
        self._settings = settings
        self.image = Image()
        self.changed = Signal()
        self._connect, self._broker, self._rack, self._report = connect, broker, rack, report
        self._now_ms = now_ms
        self._mirror: Mirror | None = None
        self._member: ClusterMember | None = None
        self._home: HomePort | None = None
        self._joined = trio.Event()
        self._closed = False

    # --- life

    async def run(self, started: Callable[[], None]) -> None:
        try:
            while not self._closed:
                await self._session(started)
                started = _nothing
                if self._closed:
                    return
                self._report("zookeeper_session_ended", broker=self._broker)
                await trio.sleep(PAUSE_S)
        finally:
            self._mirror = self._member = None

    async def _session(self, started: Callable[[], None]) -> None:
        mirror = Mirror(self._connect, self.image.producer_ids)
        async with trio.open_nursery() as nursery:
            await nursery.start(mirror.run)
            if mirror.is_over:  # before anything was read
                return
            with suppress(ConnectionLost, StorageError):  # the registration makes those that are missing
                await make_roots(mirror)
            self._mirror = mirror
            mirror.changed.subscribe(self._see)
            try:
                self._see()
                started()
                nursery.start_soon(self._take_part, mirror, nursery)
                await wait_any([mirror.changed], lambda: mirror.is_over)
            finally:
                mirror.changed.unsubscribe(self._see)
                self._mirror = self._member = None
                self.changed.fire()
            nursery.cancel_scope.cancel()

    async def _take_part(self, mirror: Mirror, nursery: trio.Nursery) -> None:
        await self._joined.wait()
        assert self._home is not None
        self._member = member = ClusterMember(mirror, self._broker, self._home, self._rack, self._report, self._now_ms)
        member.changed.subscribe(self.changed.fire)
        nursery.start_soon(member.run)
        controller = Controller(mirror, member, self._broker, self._report, self._settings)
        while not mirror.is_over:
            try:
                await controller.run()
            except Exception:  # a bug of ours, which must not end the membership
                self._report("internal_error", task="Controller.run", exc_info=True)
                await trio.sleep(PAUSE_S)

    def _see(self) -> None:
        mirror = self._mirror
        if mirror is not None and mirror.image is not self.image:
            self.image = mirror.image
        self.changed.fire()

    def join(self, home: HomePort) -> None:
        self._home = home
        self._joined.set()

    async def close(self) -> None:
        self._closed = True
        if self._mirror is not None:
            await self._mirror.client.close()

    # --- as it stands

    @property
    def epoch(self) -> int:
        return UNREGISTERED if self._member is None else self._member.epoch

    @property
    def is_current(self) -> bool:
        return self._mirror is not None and self._mirror.is_current

    def may_read(self) -> bool:
        member = self._member
        return self.is_current and member is not None and member.lease.holds(trio.current_time() * 1000)

    # --- the tree

    @property
    def session(self) -> int:
        return self._now().session

    def _now(self) -> Mirror:
        if self._mirror is None:
            raise ConnectionLost("there is no session with ZooKeeper now" + UNCHANGED, sent=False)
        return self._mirror

    async def read(self, path: str) -> Znode | None:
        return await self._now().read(path)

    async def children(self, path: str) -> list[str]:
        return await self._now().children(path)

    async def multi(self, operations: Sequence[Operation]) -> Image:
        return await self._now().multi(operations)


def _nothing() -> None:
    """Instead of `started`, from the second session on."""
