"""The stored offsets of Kafka's groups: what is written is loaded, a group is deleted as a whole, names stay apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.errors import StorageError
from krappy.store.group_offsets import HEAD, OFFSET, GroupChange, GroupOffsets, KeptGroup, Offset
from krappy.store.groups import GroupStore, group_key
from krappy.store.meta import Meta

ONE = Offset(1, -1, "", 1000)
TWO = Offset(2**62, 7, "ä\0 metadata", 2000, 3000)


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[Meta]:
    opened = Meta(tmp_path / "meta")
    yield opened
    opened.close()


def test_what_is_written_is_loaded(meta: Meta) -> None:
    store = GroupOffsets(meta)
    assert store.load_all() == {}
    store.write(GroupChange("g", b"head", members={"m": b"1", "n": b"2"}, offsets={("t", 0): ONE, ("t", 1): ONE}))
    store.write(
        GroupChange("g", members={"m": None, "n": b"3"}, offsets={("t", 0): TWO, ("t", 1): None, ("u", 300): ONE})
    )
    store.write(GroupChange("g", pending={(5, "t", 0): ONE, (6, "t", 0): TWO}))
    store.write(GroupChange("g", pending={(5, "t", 0): None}))
    store.write(GroupChange("h", offsets={("t", 0): ONE}))
    expected = KeptGroup(b"head", {"n": b"3"}, {("t", 0): TWO, ("u", 300): ONE}, {(6, "t", 0): TWO})
    assert GroupOffsets(meta).load_all() == {"g": expected, "h": KeptGroup(None, offsets={("t", 0): ONE})}


@pytest.mark.parametrize("other", ["a", "ab", "a\0", "", "a" * 300])
def test_a_group_goes_whole_and_alone(meta: Meta, other: str) -> None:
    store = GroupOffsets(meta)
    for name in ("aa", other):
        store.write(GroupChange(name, b"h", members={"m": b""}, offsets={("t", 0): ONE}, pending={(1, "t", 0): ONE}))
    store.delete("aa")
    assert [*store.load_all()] == [other]
    store.delete(other)
    store.delete(other)
    assert store.load_all() == {}


def test_native_groups_are_kept_apart(meta: Meta) -> None:
    GroupStore(meta).put("g", b"settings", {("t", 0): b"state"})
    GroupOffsets(meta).write(GroupChange("g", b"head"))
    assert [*GroupStore(meta).load_all()] == [*GroupOffsets(meta).load_all()] == ["g"]
    GroupOffsets(meta).delete("g")
    assert [*GroupStore(meta).load_all()] == ["g"]


def test_what_can_t_be_read_is_an_error(meta: Meta) -> None:
    meta.put(group_key(OFFSET, "g", "t", 0), b"\xc1")
    with pytest.raises(StorageError, match="offset"):
        GroupOffsets(meta).load_all()
    meta.delete(group_key(OFFSET, "g", "t", 0))
    meta.put(HEAD + b"\xc1", b"")
    with pytest.raises(StorageError, match="key"):
        GroupOffsets(meta).load_all()
