"""The tree of a broker that is alone (krappy.core.cluster.tree), in its meta database: the key is `tree` and a znode's
path, the value its version and its data.

This broker is its own controller: the consequences of a change, such as a leader for a new partition, are written
together with it. Ephemeral znodes are in memory only, for they end with this process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock

from krappy.core.cluster import paths
from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import PERSISTENT, ROOT, Changes, Operation, Plan, Tree, Znode
from krappy.errors import StorageError
from krappy.store.meta import Meta
from krappy.store.refusals import reading

KEY = b"tree"
SESSION = 1  # the only one that this tree ever has
_VERSION = struct.Struct(">I")
Follow = Callable[[Image, Changes], Sequence[Operation]]  # is given the image after these changes


class LocalTree:
    """A commit blocks until it is synced. Safe for several threads; `image` is the newest, an immutable value."""

    def __init__(self, meta: Meta, more: Mapping[str, bytes] | None = None) -> None:
        """`more`: znodes beside those in the database. Raises StorageError for a record that can't be read."""
        self.meta = meta
        self._lock = Lock()
        self._follow: Follow = lambda image, changes: ()
        znodes = dict(_stored(meta)) | {path: Znode(data) for path, data in (more or {}).items()}
        self._unwritten = [path for path in paths.ROOTS if path not in znodes]  # written with the first change
        try:
            self._tree = Tree({path: Znode(b"") for path in paths.ROOTS} | znodes)
        except KeyError as error:
            raise StorageError(f"the catalog is damaged: the znode {error} is missing. Restore a backup") from error
        self.image = Image().after(dict(self._tree.under(ROOT)))
        if self.image.unreadable:
            raise StorageError(f"the catalog's znode {min(self.image.unreadable)} can't be read. Restore a backup")

    def get(self, path: str) -> Znode | None:
        return self._tree.get(path)

    def children(self, path: str) -> list[str]:
        return self._tree.children(path)

    def under(self, path: str) -> Iterator[tuple[str, Znode]]:
        return self._tree.under(path)

    def follow(self, follow: Follow) -> None:
        """From here on each commit also does the operations that `follow` returns for it, until it returns none."""
        self._follow = follow

    def commit(self, operations: Sequence[Operation]) -> Image:
        """Writes all or nothing, durably. Returns the image after it. Raises RefusedMulti, StorageError."""
        with self._lock:
            plan = Plan(self._tree)
            plan.do(operations)
            image = self.image.after(plan.changes)
            while more := self._follow(image, plan.changes):
                plan.do(more)
                image = self.image.after(plan.changes)
            if plan.changes:
                self._write(plan.changes)
                self._tree.apply(plan.changes)
                self.image = image
            return image

    def _write(self, changes: Changes) -> None:
        written: Changes = {path: self._tree.get(path) for path in self._unwritten} | changes
        kept = {path: znode for path, znode in written.items() if znode is not None and znode.owner == PERSISTENT}
        gone = [_key(path) for path, znode in written.items() if znode is None]
        self.meta.change_durably({_key(path): _packed(znode) for path, znode in kept.items()}, gone)
        self._unwritten.clear()


def records(znodes: Mapping[str, bytes]) -> dict[bytes, bytes]:
    """New znodes as keys and values of the database."""
    return {_key(path): _packed(Znode(data)) for path, data in znodes.items()}


def _key(path: str) -> bytes:
    return KEY + path.encode()


def _packed(znode: Znode) -> bytes:
    return _VERSION.pack(znode.version) + znode.data


def _stored(meta: Meta) -> Iterator[tuple[str, Znode]]:
    for key, value in meta.items(KEY):
        with reading(key):
            [version] = _VERSION.unpack_from(value)
            path = key[len(KEY) :].decode()
        yield path, Znode(value[_VERSION.size :], version)
