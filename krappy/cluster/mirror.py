"""The tree in ZooKeeper as a `Store`: a copy of it is kept up to date, and folded into an image.

Watches tell which znodes have changed; those are read again. An image is published once nothing is left to read. So an
image is the tree as it was at one moment; but not each state of the tree has an image. After each new connection
everything is read anew: ZooKeeper does not tell a persistent watch what it missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from krappy.cluster.zk.client import ZooKeeper
from krappy.cluster.zk.session import Status
from krappy.core.cluster import paths
from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import Changes, Operation, RefusedMulti, Znode
from krappy.errors import ConnectionLost, KrappyError
from krappy.waiting import Signal, wait_any

RETRY_S = 0.5  # after a read that ZooKeeper refused


class Mirror:
    """See the port `Store`. `connect(entered=…, happened=…)` makes the client. `is_over`: the session is over."""

    def __init__(self, connect: Callable[..., ZooKeeper], producer_ids: int = 0) -> None:
        """`producer_ids`: that of an image of an earlier session. ZooKeeper may have been given older data since."""
        self.image = Image(producer_ids=producer_ids)
        self.changed = Signal()
        self.client = connect(entered=self._entered, happened=self._happened)
        self._znodes: dict[str, Znode] = {}
        self._unread: set[str] = set()  # paths that have changed since they were read
        self._whole = True  # everything has to be read
        self._told = 0  # how often something was found to be unread
        self._seen = 0  # the same count, as of the image
        self._moved = Signal()  # there is something to read, or the session is over
        self.is_over = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows the tree until the session is over. Reports that it has started with the first whole image, or when
        the session is over before that."""
        begun = False

        def started() -> None:
            nonlocal begun
            if not begun:
                begun = True
                task_status.started()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow, started)
                await self.client.run()
                nursery.cancel_scope.cancel()
        finally:
            self.is_over = True
            self._moved.fire()
            self.changed.fire()
        started()

    @property
    def is_current(self) -> bool:
        """Whether the image has everything that ZooKeeper has told of. (It may not have told of everything.)"""
        return self._seen >= self._told

    @property
    def session(self) -> int:
        return self.client.session.id

    async def read(self, path: str) -> Znode | None:
        return await self.client.get(path)

    async def children(self, path: str) -> list[str]:
        return await self.client.children(path)

    async def multi(self, operations: Sequence[Operation]) -> Image:
        try:
            await self.client.multi(operations)
        except RefusedMulti:
            await self._catch_up()
            raise
        await self._catch_up()
        return self.image

    async def _catch_up(self) -> None:
        """Waits until the image has all that was told before now. ZooKeeper tells of a change before it answers the
        request that made it."""
        told = self._told
        await wait_any([self.changed], lambda: self._seen >= told or self.is_over)
        if self._seen < told:
            raise ConnectionLost("the session with ZooKeeper has ended: the change may have been made", sent=True)

    # --- following

    def _entered(self, fresh: bool) -> None:
        self._whole = True
        self._note()

    def _happened(self, path: str) -> None:
        self._unread.add(path)
        self._note()

    def _note(self) -> None:
        self._told += 1
        self._moved.fire()

    async def _follow(self, started: Callable[[], None]) -> None:
        while True:
            await wait_any([self._moved], lambda: self._seen < self._told)
            try:
                changes, seen = await self._read()
            except ConnectionLost:
                await wait_any([self._moved], lambda: self.client.session.status == Status.UP)
                continue
            except KrappyError:
                self._whole = True
                await trio.sleep(RETRY_S)
                continue
            self._publish(changes, seen)
            started()

    async def _read(self) -> tuple[Changes, int]:
        """(what has changed since the last image, the value of `_told` when it was read)."""
        found: dict[str, Znode | None] = {}
        while True:
            seen = self._told
            if self._whole:
                self._whole = False
                try:
                    found = await self._read_all()
                except BaseException:
                    self._whole = True
                    raise
            else:
                unread, self._unread = self._unread, set()
                try:
                    found |= await self.client.read(sorted(unread))
                except BaseException:
                    self._unread |= unread
                    raise
            if not self._unread and not self._whole:
                return self._changed(found), seen

    def _changed(self, found: dict[str, Znode | None]) -> Changes:
        """The znodes that have changed, and all below a topic's znode that has changed: if a topic was deleted and made
        anew, its states may be the same bytes, but to the image they are another topic's."""
        changed = {path for path, znode in found.items() if self._znodes.get(path) != znode}
        below = tuple(f"{path}/" for path in changed if path.startswith(f"{paths.TOPICS}/"))
        return {path: found[path] for path in sorted(found) if path in changed or path.startswith(below)}

    async def _read_all(self) -> dict[str, Znode | None]:
        self._unread.clear()
        for path in paths.WATCHED:
            await self.client.watch(path)
        await self.client.sync()
        found: dict[str, Znode | None] = dict.fromkeys(self._znodes)
        for path in paths.WATCHED:
            found |= await self.client.under(path)
        return found

    def _publish(self, changes: Changes, seen: int) -> None:
        for path, znode in changes.items():
            if znode is None:
                self._znodes.pop(path, None)
            else:
                self._znodes[path] = znode
        self.image = self.image.after(changes) if changes else self.image
        self._seen = seen
        self.changed.fire()
