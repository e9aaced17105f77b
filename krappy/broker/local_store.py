"""The `Store` of a broker that is alone: its tree, in its own folder."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from krappy.core.cluster.decide import decide, touched
from krappy.core.cluster.image import Image
from krappy.core.cluster.presence import Presence
from krappy.core.cluster.tree import Changes, Operation, Znode
from krappy.store.local_tree import SESSION, LocalTree
from krappy.waiting import Signal


class LocalStore:
    """See the port `Store`. `in_thread` runs what waits for the disk."""

    session = SESSION

    def __init__(self, tree: LocalTree, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self.tree = tree
        self.changed = Signal()
        self._in_thread = in_thread

    def control(self) -> None:
        """From here on this broker is the controller. What the controller's rules demand after a change is committed
        together with the change."""
        presence = Presence(grace_ms=0, silence_ms=math.inf)

        def follow(image: Image, changes: Changes) -> list[Operation]:
            presence.look(image, {}, 0)
            return [each for some in decide(image, touched(image, changes), presence) for each in some]

        self.tree.follow(follow)

    @property
    def image(self) -> Image:
        return self.tree.image

    async def read(self, path: str) -> Znode | None:
        return self.tree.get(path)

    async def children(self, path: str) -> list[str]:
        return self.tree.children(path)

    async def multi(self, operations: Sequence[Operation]) -> Image:
        image: Image = await self._in_thread(lambda: self.tree.commit(operations))
        self.changed.fire()
        return image
