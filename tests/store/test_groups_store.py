"""The stored native groups: names that begin alike stay apart, and a group is deleted as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.errors import StorageError
from krappy.store.groups import GROUP, STATE, GroupStore, StoredGroup
from krappy.store.meta import Meta


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[Meta]:
    opened = Meta(tmp_path / "meta")
    yield opened
    opened.close()


def test_an_empty_store(meta: Meta) -> None:
    assert GroupStore(meta).load_all() == {}
    GroupStore(meta).delete("nope")


def test_what_is_put_is_loaded(meta: Meta) -> None:
    store = GroupStore(meta)
    states = {("t", 0): b"0", ("t", 1): b"1", ("t", 300): b"300", ("t.u", 0): b"u", ("", 2**31 - 1): b""}
    store.put("g", b"settings", states)
    store.put("g", states={("t", 1): b"one"})
    store.put("empty", b"")
    assert GroupStore(meta).load_all() == {
        "g": StoredGroup(b"settings", {**states, ("t", 1): b"one"}),
        "empty": StoredGroup(b""),
    }


NAMES = ["a", "ab", "a\0", "", "ä", "a" * 31, "a" * 32, "a" * 255, "a" * 256, "a" * 300, "a/b", "\uffff", "t"]


def test_names_never_run_into_each_other(meta: Meta) -> None:
    store = GroupStore(meta)
    expected = {}
    for name in NAMES:
        states = {(topic, 0): f"{name} {topic}".encode() for topic in NAMES}
        store.put(name, name.encode(), states)
        expected[name] = StoredGroup(name.encode(), states)
    assert store.load_all() == expected
    for name in NAMES:
        store.delete(name)
        del expected[name]
        assert store.load_all() == expected


def test_states_of_a_deleted_topic_go(meta: Meta) -> None:
    store = GroupStore(meta)
    store.put("g", b"", {("t", 0): b"0", ("t", 1): b"1", ("u", 0): b"u"})
    store.delete_states("g", [("t", 0), ("t", 1), ("t", 2)])
    assert store.load_all() == {"g": StoredGroup(b"", {("u", 0): b"u"})}


def test_deleting_twice_is_no_error(meta: Meta) -> None:
    store = GroupStore(meta)
    store.put("g", b"", {("t", 0): b""})
    store.delete("g")
    store.delete("g")
    assert list(meta.items(b"")) == []


@pytest.mark.parametrize(
    "key",
    [GROUP, GROUP + b"\xa1g\x01", GROUP + b"\xc1", STATE + b"\xa1g", STATE + b"\xa1g\xa1t\x00"],
    ids=["no name", "too long", "not msgpack", "too short", "no group"],
)
def test_a_damaged_key_is_a_clear_error(meta: Meta, key: bytes) -> None:
    meta.put(key, b"")
    with pytest.raises(StorageError, match="group"):
        GroupStore(meta).load_all()
