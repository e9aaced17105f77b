"""Committed offsets of a cluster as Kafka's records, and how older ones become such records: whole, whenever that is
interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from krappy.broker.kafka_groups.offset_records import (
    LATEST_MS,
    is_offset_key,
    key_of_offset,
    offset_in,
    offset_key,
    record_of,
)
from krappy.broker.kafka_groups.replicated import AT_ONCE, ReplicatedKeeper
from krappy.core.cluster.image import Image, Registration
from krappy.core.cluster.znodes import FEATURES
from krappy.errors import CoordinatorNotAvailable, StorageError
from krappy.store.group_offsets import OFFSET, PARTS, GroupChange, KeptGroup, Offset
from krappy.store.groups import group_key
from krappy.store.meta import Meta
from krappy.types import Headers
from krappy.waiting import Later

INT64 = st.integers(-(1 << 63), LATEST_MS)
TEXT = st.text(max_size=50).filter(lambda text: text.isprintable())
OFFSETS = st.builds(
    Offset,
    *(INT64, st.integers(-1, (1 << 31) - 1), TEXT, st.integers(0, LATEST_MS)),
    expires=st.none(),
    topic_id=st.sampled_from([b"", b"i" * 16]),
    owner=st.just(""),
    turn=st.just(0),
)


@given(TEXT, TEXT, st.integers(0, (1 << 31) - 1), OFFSETS, st.none() | st.integers(0, LATEST_MS))
def test_what_is_written_is_read(group: str, topic: str, partition: int, offset: Offset, expires: int | None) -> None:
    key = key_of_offset(group, (topic, partition))
    assert is_offset_key(key)
    assert offset_key(key) == (group, (topic, partition))
    if expires is not None:  # a client that says so knows no leader epochs
        offset = offset._replace(expires=expires, leader_epoch=-1)
    assert offset_in(*record_of(offset)) == offset


def test_a_time_that_is_too_far_is_the_last_one() -> None:
    offset = Offset(1, -1, "", 5, LATEST_MS + 5)
    assert offset_in(*record_of(offset)) == offset._replace(expires=LATEST_MS)


def test_own_keys_are_no_keys_of_offsets() -> None:
    assert not any(map(is_offset_key, PARTS))


@pytest.mark.parametrize("cut", [1, 3, 8])
def test_what_can_t_be_read_is_an_error(cut: int) -> None:
    key, (value, headers) = key_of_offset("g", ("t", 0)), record_of(Offset(1, 2, "m", 3))
    with pytest.raises(StorageError):
        offset_key(key[:-cut])
    with pytest.raises(StorageError):
        offset_in(value[:-cut], headers)
    with pytest.raises(StorageError):
        offset_in(value + bytes(cut), headers)
    with pytest.raises(StorageError):
        offset_in(b"\0\5" + value[2:], headers)


class Table:
    """A table without a log: its rows are those of all writes. The write with the number `fails` is refused."""

    def __init__(self, rows: Mapping[bytes, tuple[bytes, Headers]], fails: int = -1, *, enough: bool = True) -> None:
        self.partition = SimpleNamespace(index=0, replicas=SimpleNamespace(enough=enough))
        self.rows = dict(rows)
        self.writes: list[set[bytes]] = []
        self._fails = fails

    def write(
        self, name: str, puts: Mapping[bytes, bytes], deletes: list[bytes], headers: Mapping[bytes, Headers]
    ) -> None:
        if len(self.writes) == self._fails:
            raise CoordinatorNotAvailable("refused")
        self.writes.append({*puts, *deletes})
        self.rows |= {key: (value, headers.get(key, ())) for key, value in puts.items()}
        for key in deletes:
            self.rows.pop(key, None)

    def written(self) -> Later[None]:
        later: Later[None] = Later()
        later.resolve(None)
        return later

    def all(self) -> list[tuple[bytes, bytes, Headers]]:
        return [(key, *row) for key, row in self.rows.items()]


def keeper(tmp_path: Path, *known: Mapping[str, int]) -> tuple[Any, Meta]:
    """`known`: the features of each registered broker."""
    meta = Meta(tmp_path / "meta")
    brokers = {id: Registration(id, 0, {}, features=each) for id, each in enumerate(known)}
    topics = {"t": SimpleNamespace(id=b"i" * 16)}
    image = SimpleNamespace(topics=topics, level=Image(brokers=brokers).level)
    runtime: Any = SimpleNamespace(meta=meta, image=image, topics=SimpleNamespace(table_of=lambda name: None))

    async def sync_meta() -> None:
        """Does nothing."""

    runtime.sync_meta = sync_meta
    return ReplicatedKeeper(runtime, lambda groups: None, lambda is_in: None), meta


def read(made: Any, table: Table) -> dict[str, KeptGroup]:
    async def run() -> dict[str, KeptGroup]:
        found: dict[str, KeptGroup] = await made.read(0, table, table.all())
        return found

    return trio.run(run)


def old_rows(group: str, count: int) -> dict[bytes, tuple[bytes, Headers]]:
    offsets = {("t", index): Offset(index, 3, "m", 1000, topic_id=b"i" * 16) for index in range(count)}
    puts, _ = GroupChange(group, b"head", {"m": b"member"}, offsets, {(5, "t", 0): Offset(9, -1, "", 1)}).rows()
    return {key: (value, ()) for key, value in puts.items()}


def check_once(table: Table, count: int) -> None:
    """Each offset is there once."""
    records = {offset_key(key)[1] for key in table.rows if is_offset_key(key)}
    old = {("t", index) for index in range(count) if group_key(OFFSET, "g", "t", index) in table.rows}
    assert not records & old
    assert len(records | old) == count


@pytest.mark.parametrize("fails", [0, 1, 2, 3])
def test_old_offsets_become_records_also_if_that_is_interrupted(tmp_path: Path, fails: int) -> None:
    count = 2 * AT_ONCE + 7
    made, meta = keeper(tmp_path, FEATURES, FEATURES)
    table = Table(old_rows("g", count), fails)
    if fails < 3:
        with pytest.raises(CoordinatorNotAvailable):
            read(made, table)
        check_once(table, count)
        table = Table(table.rows)
    groups = read(made, table)
    check_once(table, count)
    assert not any(key.startswith(OFFSET) for key in table.rows)
    assert max(map(len, table.writes)) <= 2 * AT_ONCE
    wanted = groups["g"]
    assert wanted.offsets == {("t", at): Offset(at, 3, "m", 1000, topic_id=b"i" * 16) for at in range(count)}
    assert (wanted.head, wanted.members, len(wanted.pending)) == (b"head", {"m": b"member"}, 1)
    again = Table(table.rows)
    assert read(made, again) == groups
    assert not again.writes
    meta.close()


@pytest.mark.parametrize("features", [{}, {"another": 5}])
@pytest.mark.parametrize("enough", [True, False])
def test_offsets_stay_as_they_are_while_they_can_t_become_records(
    tmp_path: Path, features: Mapping[str, int], enough: bool
) -> None:
    """A broker does not know records, or there are too few replicas in sync to replace anything."""
    made, meta = keeper(tmp_path, FEATURES, features if enough else FEATURES)
    table = Table(old_rows("g", 3), enough=enough)
    groups = read(made, table)
    assert len(groups["g"].offsets) == 3
    assert not table.writes
    change = GroupChange("g", offsets={("t", 0): Offset(5, -1, "", 1), ("t", 1): None})
    assert made._rows_of(table, change) == (*change.rows(), {})
    meta.close()


def test_records_stay_records_where_a_broker_does_not_know_them(tmp_path: Path) -> None:
    """That broker may have come later. It can't coordinate by this partition in any case."""
    made, meta = keeper(tmp_path, FEATURES, {})
    value, headers = record_of(Offset(7, 1, "", 1, topic_id=b"i" * 16))
    table = Table({**old_rows("g", 1), key_of_offset("g", ("t", 5)): (value, headers)})
    groups = read(made, table)
    assert {at: offset.offset for at, offset in groups["g"].offsets.items()} == {("t", 0): 0, ("t", 5): 7}
    check_once(table, 2)
    assert not any(key.startswith(OFFSET) for key in table.rows)
    meta.close()
