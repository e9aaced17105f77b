"""The tree against a model: it does one operation after the other to a copy, and keeps the copy if all were
possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.cluster.tree import (
    ANY,
    PERSISTENT,
    ROOT,
    Changes,
    Check,
    Create,
    Delete,
    Operation,
    Put,
    Refusal,
    RefusedMulti,
    Tree,
    Znode,
    split,
)

PATHS = ["/a", "/a/b", "/a/b/c", "/a/d", "/e"]
paths = st.sampled_from([ROOT, *PATHS])
versions = st.sampled_from([ANY, 0, 1, 2])
data = st.binary(max_size=2)
operations = st.one_of(
    st.builds(Create, paths, data, st.sampled_from([PERSISTENT, PERSISTENT, 7, 8])),
    st.builds(Put, paths, data, versions),
    st.builds(Delete, paths, versions),
    st.builds(Check, paths, versions),
)


def done(nodes: dict[str, Znode], operation: Operation) -> Refusal | None:
    """Does to a plain dictionary what ZooKeeper's documentation says."""
    path = operation.path
    if isinstance(operation, Create):
        if path in nodes:
            return Refusal.NODE_EXISTS
        parent = split(path)[0]
        if parent not in nodes:
            return Refusal.NO_NODE
        if nodes[parent].owner:
            return Refusal.NO_CHILDREN_FOR_EPHEMERALS
        nodes[path] = Znode(operation.data, 0, operation.owner)
        return None
    if path not in nodes:
        return Refusal.NO_NODE
    if operation.version not in (ANY, nodes[path].version):
        return Refusal.BAD_VERSION
    if isinstance(operation, Put):
        nodes[path] = Znode(operation.data, nodes[path].version + 1, nodes[path].owner)
    if isinstance(operation, Delete):
        if path == ROOT or any(other != path and split(other)[0] == path for other in nodes if other != ROOT):
            return Refusal.NOT_EMPTY
        del nodes[path]
    return None


@given(st.lists(st.lists(operations, max_size=6), max_size=12))
def test_as_the_model(sets: list[list[Operation]]) -> None:
    tree, nodes = Tree(), {ROOT: Znode(b"")}
    journal: dict[str, Znode] = {}
    for each in sets:
        copy, why = dict(nodes), None
        for index, operation in enumerate(each):
            if (why := done(copy, operation)) is not None:
                with pytest.raises(RefusedMulti) as refused:
                    tree.plan(each)
                assert (refused.value.index, refused.value.why) == (index, why)
                break
        if why is None:
            nodes = copy
            changes: Changes = tree.plan(each)
            tree.apply(changes)
            for path, znode in changes.items():
                if znode is None:
                    journal.pop(path, None)
                else:
                    journal[path] = znode
        assert dict(tree.under(ROOT)) == nodes
        assert len(tree) == len(nodes)
    assert dict(Tree(journal).under(ROOT)) == nodes  # the disk has kept all of it


def test_what_a_session_leaves() -> None:
    tree = Tree({"/ids": Znode(b""), "/ids/1": Znode(b"", 0, 5), "/ids/2": Znode(b"", 0, 6), "/own": Znode(b"", 0, 5)})
    tree.apply(tree.plan(tree.owned(5)))
    assert [path for path, _ in tree.under(ROOT)] == [ROOT, "/ids", "/ids/2"]


def test_each_is_told_before_what_is_below_it() -> None:
    tree = Tree({path: Znode(path.encode()) for path in reversed(PATHS)})
    assert [path for path, _ in tree.under(ROOT)] == [ROOT, *PATHS]
    assert [path for path, _ in tree.under("/a/b")] == ["/a/b", "/a/b/c"]
    assert list(tree.under("/none")) == []
    assert tree.children("/a") == ["b", "d"]


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/./a", "/a/..", "/a\0"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(ValueError, match="no path"):
        Tree().plan([Create(path)])


def test_names_that_begin_with_dots() -> None:
    tree = Tree()
    tree.apply(tree.plan([Create("/..."), Create("/.../.a")]))
    assert tree.children("/...") == [".a"]


def test_a_refusal_names_the_operation() -> None:
    with pytest.raises(RefusedMulti, match="Put /b: NONODE"):
        Tree().plan([Create("/a"), Put("/b", b"")])
