"""A catalog of format 2 becomes one of this version's, wherever it is cut short."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

from krappy.broker.overrides import FOR_ALL, STATIC
from krappy.core.cluster import paths
from krappy.core.cluster.state import PartitionState
from krappy.errors import StorageError
from krappy.store import catalog as catalog_module
from krappy.store import format_2
from krappy.store.catalog import FORMAT, StoredTopic
from krappy.store.local_tree import LocalTree
from krappy.store.meta import Meta
from krappy.types import text_id
from tests.broker.catalogs import SyncCatalog
from tests.store.faulty_meta import Faults, FaultyMeta

IDS = [bytes([number]) * 16 for number in range(1, 5)]


def packed(value: Any) -> bytes:
    found: Any = msgpack.packb(value)
    return bytes(found)


OLD: Mapping[bytes, bytes] = {
    b"c/format": (2).to_bytes(4, "big"),
    b"c/cluster": b"\x07" * 16,
    b"c/next-number": (9).to_bytes(8, "big"),
    b"c/next-producer": (3000).to_bytes(8, "big"),
    b"t/a": packed(["a", IDS[0], {"segment.ms": "5"}, [1, 2], 1]),
    b"t/B.b_-": packed(["B.b_-", IDS[1], {}, [4]]),  # of format 1
    b"d/" + IDS[2]: packed(["gone", IDS[2], {"segment.ms": "6"}, [3, 8], 1]),
    b"cb/": packed({"num.partitions": "3"}),
    b"cb/0": packed({"num.partitions": "4"}),
    b"cb/static": packed({"log.retention.ms": "7"}),
    b"cg/g/\xc3\xa4": packed({"consumer.heartbeat.interval.ms": "5000"}),
    b"g/x": b"another's",
}


def check(catalog: SyncCatalog) -> None:
    assert catalog.cluster_id == text_id(b"\x07" * 16)
    assert list(catalog.list()) == [
        StoredTopic("B.b_-", IDS[1], {}, [4]),
        StoredTopic("a", IDS[0], {"segment.ms": "5"}, [1, 2], 1),
    ]
    assert list(catalog.deleting()) == [StoredTopic("gone", IDS[2], {}, [3, 8])]
    assert catalog.was_given(2999)
    assert not catalog.was_given(3000)
    brokers, groups = (catalog.overrides(kind).load() for kind in (paths.BROKER_CONFIG, paths.GROUP_CONFIG))
    assert brokers[FOR_ALL] == {"num.partitions": "3"}
    assert brokers["0"] == {"num.partitions": "4"}
    assert brokers.get(STATIC, {"log.retention.ms": "7"}) == {"log.retention.ms": "7"}
    assert groups == {"g/ä": {"consumer.heartbeat.interval.ms": "5000"}}


def check_goes_on(catalog: SyncCatalog) -> None:
    """What comes then is as if it had always been so."""
    catalog.register(3)
    image = catalog.tree.image
    assert [each.replicas for each in image.topics["a"].partitions] == [(3,), (3,)]
    assert image.topics["a"].partitions[1].state == PartitionState(3, 0, 0, (3,))
    assert catalog.create("new", 1).numbers == [9]
    assert catalog.next_producer_id() == 3000
    catalog.forget(catalog.deleting()[0])
    assert not catalog.deleting()


def test_it_becomes_one_of_this_format(tmp_path: Path) -> None:
    meta = Meta(tmp_path)
    meta.write(OLD)
    told: list[int] = []
    check(SyncCatalog(meta, tell=told.append))
    assert told == [8]
    assert meta.get(b"g/x") == b"another's"
    assert not list(format_2.steps(meta))
    meta.close()
    meta = Meta(tmp_path)
    again = SyncCatalog(meta, tell=told.append)
    assert told == [8]  # nothing is left to do
    check(again)
    check_goes_on(again)
    meta.close()


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "STEP", 2)
    meta = Meta(tmp_path)
    meta.write(OLD)
    told: list[int] = []
    SyncCatalog(meta, tell=told.append)
    assert told == [2, 4, 6, 8]
    meta.close()


@pytest.mark.parametrize("lost", [False, True], ids=["killed", "lost power"])
def test_it_is_cut_short_anywhere(tmp_path: Path, lost: bool) -> None:
    for number in range(100):
        folder, copy, faults = tmp_path / str(number), tmp_path / f"{number}-cut", Faults()
        meta = FaultyMeta(folder, faults)
        meta.write(OLD)
        meta.sync()

        def cut(folder: Path = folder, copy: Path = copy, faults: Faults = faults) -> None:
            shutil.copytree(folder, copy)
            if lost:
                faults.lose(copy)

        faults.at, faults.on_failure = faults.count + number, cut
        with suppress(StorageError):
            SyncCatalog(meta)
        meta.close()
        if not faults.happened:
            break
        for each in (copy, folder):
            again = Meta(each)
            catalog = SyncCatalog(again)
            check(catalog)
            check_goes_on(catalog)
            again.close()
    assert number > 8  # one for each record, at least


def test_to_look_into_it_changes_nothing(tmp_path: Path) -> None:
    meta = Meta(tmp_path)
    meta.write(OLD)
    check(SyncCatalog(meta, change=False))
    assert dict(meta.items(b"")) == OLD
    SyncCatalog(meta)
    meta.write({}, [b"c/cluster"])
    before = dict(meta.items(b""))
    check(SyncCatalog(meta, change=False))
    assert dict(meta.items(b"")) == before
    meta.close()


def test_a_version_before_refuses_it_from_the_first_step_on(tmp_path: Path) -> None:
    meta = Meta(tmp_path)
    meta.write({**OLD, b"t/bad": b"\xc1"})
    with pytest.raises(StorageError, match="t/bad"):
        SyncCatalog(meta)
    assert meta.get(FORMAT) == (3).to_bytes(4, "big")
    meta.close()


@pytest.mark.parametrize("key", [b"t/a", b"d/" + IDS[2], b"cb/0", b"cg/g/\xc3\xa4"])
@pytest.mark.parametrize("bad", [b"", b"\xc0", b"\xff"])
def test_a_damaged_record_is_named(tmp_path: Path, key: bytes, bad: bytes) -> None:
    meta = Meta(tmp_path)
    meta.write({**OLD, key: bad})
    for change in (False, True):
        with pytest.raises(StorageError, match=r"the catalog's record .* can't be read"):
            SyncCatalog(meta, change=change)
    meta.close()


def test_a_damaged_znode_is_named(tmp_path: Path) -> None:
    meta = Meta(tmp_path)
    SyncCatalog(meta).create("t", 1)
    meta.put(b"tree/brokers/topics/t", b"\0\0\0\0{")
    with pytest.raises(StorageError, match="/brokers/topics/t can't be read"):
        SyncCatalog(meta)
    meta.delete(b"tree/brokers/topics/t")
    with pytest.raises(StorageError, match="is missing"):
        LocalTree(meta)
    meta.delete(b"tree/brokers/topics/t/partitions")
    meta.put(b"tree/x", b"")
    with pytest.raises(StorageError, match="tree/x"):
        SyncCatalog(meta)
    meta.close()


def test_each_start_is_another_epoch(tmp_path: Path) -> None:
    meta = Meta(tmp_path)
    found = []
    for start in range(3):
        catalog = SyncCatalog(meta)
        catalog.register(5)
        catalog.create(f"t{start}", 1)
        catalog.add_partitions("t0", start + 2)
        found.append(
            [(each.state.leader_epoch, each.state.leader_inc) for each in catalog.tree.image.topics["t0"].partitions]
        )
    assert found == [[(0, 0), (0, 0)], [(1, 1), (1, 1), (0, 1)], [(2, 2), (2, 2), (1, 2), (0, 2)]]
    assert catalog.tree.image.epochs == {5: 2}
    meta.close()


def test_epochs_that_a_catalog_does_not_know_of_are_passed_over(tmp_path: Path) -> None:
    """After a restore, and where changes were lost: a log may have events of them."""
    meta = Meta(tmp_path)
    found: list[list[int]] = []
    for skip in (0, 0, 7, 2_000):
        catalog = SyncCatalog(meta)
        if skip == 7:
            catalog.skip_epochs(skip)
        elif skip:
            catalog.pass_over(skip)
        catalog.register(5)
        if not skip:
            catalog.create(f"t{len(found)}", 1)
        found.append([each.partitions[0].state.leader_epoch for each in catalog.tree.image.topics.values()])
    assert found == [[0], [1, 0], [9, 8], [1010, 1009]]
    meta.close()


def test_a_broker_with_another_id_has_it_all(tmp_path: Path) -> None:
    meta = Meta(tmp_path)
    first = SyncCatalog(meta)
    first.register(1)
    first.create("t", 2)
    second = SyncCatalog(meta)
    second.register(2)
    partition = second.tree.image.topics["t"].partitions[1]
    assert (partition.replicas, partition.state.leader, partition.state.isr) == ((2,), 2, (2,))
    assert list(second.list()) == list(first.list())
    meta.close()
