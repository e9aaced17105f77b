"""The port to the tree that a cluster's brokers agree on (krappy.core.cluster.tree).

Two carry it: the broker's own folder, for a broker that is alone, and ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import Operation, Znode
from krappy.waiting import Signal


class Store(Protocol):
    """`image`: what this broker has seen of the tree, an immutable value. `changed`: fired with each new image.
    `session`: the owner of this broker's ephemeral znodes."""

    changed: Signal

    @property
    def image(self) -> Image: ...

    @property
    def session(self) -> int: ...

    async def read(self, path: str) -> Znode | None:
        """The znode as it is now. Raises ConnectionLost, StorageError."""

    async def children(self, path: str) -> list[str]:
        """The names of its children, sorted; empty if it does not exist. Raises ConnectionLost, StorageError."""

    async def multi(self, operations: Sequence[Operation]) -> Image:
        """Does all of them or none, durably. Returns an image that has seen them.

        Raises RefusedMulti and StorageError: none was done. `image` has then seen why an operation was refused. Raises
        ConnectionLost: with `sent` True they may have been done, so read them back; with `sent` False none was.
        """
