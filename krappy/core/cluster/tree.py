"""The tree of what a cluster's brokers agree on: ZooKeeper's data model, without ZooKeeper.

A znode has a path, some bytes, and a version that rises by one with each write. Several operations are done together or
not at all (ZooKeeper's `multi`), and each may demand the version that its znode then has. An ephemeral znode belongs to
a session, and is deleted with it.

The tree is pure. `plan` returns what a list of operations would change, and `apply` changes the tree: a store writes
the changes to disk between the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

ANY = -1  # as a version: no certain version is demanded
PERSISTENT = 0  # the owner of a znode that outlives all sessions
ROOT = "/"
_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[^/\0]+)+")


class Znode(NamedTuple):
    """A znode's content. `owner`: the session that an ephemeral znode is deleted with, or PERSISTENT."""

    data: bytes
    version: int = 0
    owner: int = PERSISTENT


class Create(NamedTuple):
    """Makes a znode with version 0. The znode must not exist; its parent must exist and be persistent."""

    path: str
    data: bytes = b""
    owner: int = PERSISTENT


class Put(NamedTuple):
    """Replaces the bytes of a znode that must exist, with this version."""

    path: str
    data: bytes
    version: int = ANY


class Delete(NamedTuple):
    """Deletes a znode that must exist, with this version and without children."""

    path: str
    version: int = ANY


class Check(NamedTuple):
    """Changes nothing, but demands that the znode exists, with this version."""

    path: str
    version: int = ANY


Operation = Create | Put | Delete | Check
Changes = dict[str, Znode | None]  # by path, in the order of the operations; None: deleted


class Refusal(StrEnum):
    """Why an operation is refused, by ZooKeeper's names."""

    NO_NODE = "NONODE"
    NODE_EXISTS = "NODEEXISTS"
    BAD_VERSION = "BADVERSION"
    NOT_EMPTY = "NOTEMPTY"
    NO_CHILDREN_FOR_EPHEMERALS = "NOCHILDRENFOREPHEMERALS"


class RefusedMulti(Exception):
    """None of the operations was done. `index`: the one that was refused, counted from 0."""

    def __init__(self, index: int, operation: Operation, why: Refusal) -> None:
        super().__init__(f"{type(operation).__name__} {operation.path}: {why}")
        self.index = index
        self.operation = operation
        self.why = why


class Tree:
    """All znodes by path. The root is always there, and can't be deleted."""

    def __init__(self, znodes: Mapping[str, Znode] | None = None) -> None:
        """`znodes`: by path; a znode's parents must be among them. Raises KeyError for a missing parent."""
        self._znodes = {ROOT: Znode(b"")}
        self._children: dict[str, set[str]] = {ROOT: set()}  # by path: their names
        self.apply(dict(sorted((znodes or {}).items())))

    def __len__(self) -> int:
        return len(self._znodes)

    def get(self, path: str) -> Znode | None:
        return self._znodes.get(path)

    def children(self, path: str) -> list[str]:
        """The children's names, sorted; empty for a znode that does not exist."""
        return sorted(self._children.get(path, ()))

    def under(self, path: str) -> Iterator[tuple[str, Znode]]:
        """This znode and all below it: parents before children, children in the order of their names."""
        znode = self._znodes.get(path)
        if znode is None:
            return
        yield path, znode
        for name in self.children(path):
            yield from self.under(child_of(path, name))

    def plan(self, operations: Sequence[Operation]) -> Changes:
        """What these operations would change, done in order. Raises RefusedMulti, and ValueError for a bad path."""
        plan = Plan(self)
        plan.do(operations)
        return plan.changes

    def apply(self, changes: Mapping[str, Znode | None]) -> None:
        """Makes the changes that `plan` gave for the tree as it is now."""
        for path, znode in changes.items():
            if path == ROOT:
                if znode is not None:
                    self._znodes[ROOT] = znode
                continue
            parent, name = split(path)
            if znode is None:
                if self._znodes.pop(path, None) is not None:
                    del self._children[path]
                    self._children[parent].discard(name)
            else:
                self._znodes[path] = znode
                self._children.setdefault(path, set())
                self._children[parent].add(name)

    def owned(self, owner: int) -> list[Operation]:
        """The operations that end this session: they delete its ephemeral znodes."""
        return [Delete(path) for path, znode in self._znodes.items() if znode.owner == owner]


class Plan:
    """Collects what operations would change in a tree, in `changes`; the tree itself stays."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.changes: Changes = {}
        self._more: dict[str, int] = {}  # by path: how many more children the znode has than in the tree

    def do(self, operations: Sequence[Operation]) -> None:
        """Adds operations, in order. Raises RefusedMulti, after which the plan can't be used, and ValueError for an
        invalid path."""
        for index, operation in enumerate(operations):
            if operation.path != ROOT and not _PATH.fullmatch(operation.path):
                raise ValueError(f"{operation.path!r} is no path of a znode")
            why = self._refusal(operation)
            if why is not None:
                raise RefusedMulti(index, operation, why)
            self._do(operation)

    def _find(self, path: str) -> Znode | None:
        return self.changes[path] if path in self.changes else self._tree.get(path)

    def _refusal(self, operation: Operation) -> Refusal | None:
        found = self._find(operation.path)
        if isinstance(operation, Create):
            if found is not None:
                return Refusal.NODE_EXISTS
            parent = self._find(split(operation.path)[0])
            if parent is None:
                return Refusal.NO_NODE
            return Refusal.NO_CHILDREN_FOR_EPHEMERALS if parent.owner != PERSISTENT else None
        if found is None:
            return Refusal.NO_NODE
        if operation.version not in (ANY, found.version):
            return Refusal.BAD_VERSION
        if isinstance(operation, Delete):
            children = len(self._tree._children.get(operation.path, ())) + self._more.get(operation.path, 0)
            return Refusal.NOT_EMPTY if children or operation.path == ROOT else None
        return None

    def _do(self, operation: Operation) -> None:
        path = operation.path
        if isinstance(operation, Put):
            found = self._find(path)
            assert found is not None
            self.changes[path] = found._replace(data=operation.data, version=found.version + 1)
        elif isinstance(operation, Create | Delete):
            made = isinstance(operation, Create)
            self.changes.pop(path, None)  # so that a znode that is made again comes behind its parent
            self.changes[path] = Znode(operation.data, 0, operation.owner) if isinstance(operation, Create) else None
            parent = split(path)[0]
            self._more[parent] = self._more.get(parent, 0) + (1 if made else -1)


def split(path: str) -> tuple[str, str]:
    """(path of the parent, name below it)."""
    parent, _, name = path.rpartition("/")
    return parent or ROOT, name


def child_of(path: str, name: str) -> str:
    return f"/{name}" if path == ROOT else f"{path}/{name}"
