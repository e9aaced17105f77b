"""The meta database on a disk that refuses: what was taken is there in the end, and what was refused never is."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from krappy.core.cluster import paths
from krappy.errors import StorageError
from krappy.store import journal
from krappy.store.meta import Meta
from tests.broker.catalogs import SyncCatalog
from tests.store.faulty_meta import Faults, FaultyMeta


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def meta(tmp_path: Path, faults: Faults) -> Iterator[Meta]:
    opened = FaultyMeta(tmp_path / "meta", faults)
    yield opened
    opened.close()


def contents(meta: Meta) -> dict[bytes, bytes]:
    return dict(meta.items(b""))


def test_after_a_failure_it_is_opened_anew_with_all_that_was_taken(meta: Meta, faults: Faults) -> None:
    meta.put(b"a", b"1")
    meta.sync()
    meta.put(b"b", b"1")
    meta.delete(b"a")
    faults.at = faults.count
    with pytest.raises(StorageError, match="No space left"):
        meta.sync()
    with pytest.raises(StorageError, match="No space left"):
        meta.put(b"c", b"1")
    with pytest.raises(StorageError, match="No space left"):
        meta.sync()
    assert contents(meta) == {b"b": b"1"}  # the database can be read meanwhile
    meta.reopen()
    assert contents(meta) == {b"b": b"1"}
    meta.put(b"c", b"2")
    meta.sync()
    assert contents(meta) == {b"b": b"1", b"c": b"2"}


def test_a_write_is_taken_back_whatever_the_disk_says(meta: Meta, faults: Faults) -> None:
    meta.write({b"a": b"1", b"b": b"1"})
    meta.sync()
    take_back = meta.change({b"a": b"2", b"c": b"2"}, [b"b"])
    faults.at = faults.count
    with pytest.raises(StorageError):
        meta.sync()
    take_back()
    meta.reopen()
    assert contents(meta) == {b"a": b"1", b"b": b"1"}
    take_back = meta.change({b"a": b"3"}, [b"b"])
    take_back()
    meta.sync()
    assert contents(meta) == {b"a": b"1", b"b": b"1"}
    take_back = meta.change({b"a": b"3"}, [b"b"])
    faults.at = faults.count  # the operation that fails is the one that takes the write back
    take_back()
    assert meta.failure
    meta.reopen()
    assert contents(meta) == {b"a": b"1", b"b": b"1"}


def test_closing_makes_good_what_failed(tmp_path: Path, faults: Faults) -> None:
    meta = FaultyMeta(tmp_path / "meta", faults)
    meta.put(b"a", b"1")
    faults.at = faults.count
    with pytest.raises(StorageError):
        meta.sync()
    meta.close()
    meta.close()
    again = Meta(meta.folder)
    assert contents(again) == {b"a": b"1"}
    again.close()


def test_a_sync_that_fails_as_it_closes_is_made_good_too(tmp_path: Path, faults: Faults) -> None:
    meta = FaultyMeta(tmp_path / "meta", faults)
    meta.put(b"a", b"1")
    faults.at = faults.count
    meta.close()
    assert faults.happened == "sync"
    with pytest.raises(StorageError, match="closed"):
        meta.get(b"a")
    again = Meta(meta.folder)
    assert contents(again) == {b"a": b"1"}
    again.close()


def test_a_disk_that_can_not_be_read_keeps_it_from_opening_and_no_more(
    meta: Meta, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the disk refuses, whoever opens the database anew gets one kind of error, after which he tries again."""
    meta.put(b"a", b"1")
    faults.at = faults.count
    with pytest.raises(StorageError):
        meta.sync()

    def refused(folder: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(journal, "endless", refused)
        with pytest.raises(StorageError, match="Too many open files"):
            meta.reopen()
        with pytest.raises(StorageError):
            meta.put(b"b", b"1")
    meta.reopen()
    assert contents(meta) == {b"a": b"1"}
    meta.put(b"b", b"1")


def test_an_iterator_that_is_held_keeps_it_from_opening_and_no_more(meta: Meta, faults: Faults) -> None:
    meta.write({b"a": b"1", b"b": b"1"})
    held = meta.items(b"")
    next(held)
    faults.at = faults.count
    with pytest.raises(StorageError):
        meta.sync()
    with pytest.raises(StorageError, match="can't be opened"):
        meta.reopen()
    assert meta.failure
    with pytest.raises(StorageError):
        meta.put(b"c", b"1")
    held.close()  # type: ignore[attr-defined]
    meta.reopen()
    assert contents(meta) == {b"a": b"1", b"b": b"1"}


@pytest.mark.parametrize("seed", range(6))
def test_histories_with_faults_against_a_dict(tmp_path: Path, seed: int) -> None:
    """Any operation fails now and then. After that the database is opened anew, or the process dies and the power goes
    with it."""
    rnd = random.Random(seed)
    faults = Faults()
    meta = FaultyMeta(tmp_path / "meta", faults)
    model: dict[bytes, bytes] = {}  # what memory must have
    durable: dict[bytes, bytes] = {}  # what was synced by the last sync that succeeded
    unsure: dict[bytes, set[bytes | None]] = {}  # key -> the values that it may have after a loss of power
    for step in range(120):
        if rnd.random() < 0.1:
            faults.at = faults.count + rnd.randrange(3)
        keys = [b"k%d" % rnd.randrange(12) for _ in range(rnd.randint(1, 3))]
        puts = dict.fromkeys(keys[1:], b"%d" % step)
        kind = rnd.choice(("write", "write", "change", "sync", "sync", "mend", "die"))
        try:
            if kind == "write":
                meta.write(puts, [key for key in keys[:1] if key not in puts])
            elif kind == "change":
                take_back = meta.change(puts, [key for key in keys[:1] if key not in puts])
                try:
                    meta.sync()
                except StorageError:
                    for key in keys:
                        unsure.setdefault(key, {durable.get(key)}).update((model.get(key), puts.get(key)))
                    take_back()
                    raise
            elif kind == "sync":
                meta.sync()
            elif kind == "mend" and meta.failure:
                meta.reopen()
                durable, unsure = dict(model), {}
        except StorageError:
            pass  # the outcome is checked above
        else:
            if kind in ("write", "change"):
                for key in keys:
                    unsure.setdefault(key, {durable.get(key)}).add(puts.get(key))
                model = {key: value for key, value in model.items() if key not in keys} | puts
            if kind in ("change", "sync"):
                durable, unsure = dict(model), {}
        assert contents(meta) == model or meta.failure
        if kind == "die":
            meta._db.close()
            faults.lose(meta.folder)
            faults.broken, faults.at = False, -1
            meta = FaultyMeta(tmp_path / "meta", faults)
            found = contents(meta)
            for key in {*found, *durable, *unsure}:
                assert found.get(key) in unsure.get(key, {durable.get(key)}), key
            model, unsure = found, {}
            durable = dict(found)
            meta.sync()
    faults.at = -1
    meta.close()
    again = Meta(meta.folder)
    assert contents(again) == model
    again.close()


# --- the catalog


@pytest.mark.parametrize("after", range(4))
def test_a_topic_that_could_not_be_made_takes_its_numbers_with_it(meta: Meta, faults: Faults, after: int) -> None:
    """Else two topics would share a view after a restart."""
    catalog = SyncCatalog(meta)
    happened = []
    for name in ("first", "second", "third"):
        faults.at = faults.count + after
        with pytest.raises(StorageError):
            catalog.create(name, 2)
        happened.append(faults.happened)
        assert name not in catalog
        meta.reopen()
        catalog.create(f"{name}-2", 2)
        again = SyncCatalog(meta)
        numbers = [number for topic in again.list() for number in topic.numbers]
        assert len(numbers) == len(set(numbers))
        assert again.list() == catalog.list()
        assert again.numbers.known() == {topic.id for topic in again.list()}, "numbers of no topic are forgotten"
    assert happened == ["sync" if after % 2 else "write"] * 3


def test_what_the_catalog_refused_is_as_it_was_on_disk_too(meta: Meta, faults: Faults) -> None:
    catalog = SyncCatalog(meta)
    catalog.create("t", 1)
    changes: list[Callable[[], object]] = [
        lambda: catalog.alter("t", {"retention.ms": 5}),
        lambda: catalog.add_partitions("t", len(catalog.list()[0].numbers) + 1),
        lambda: catalog.delete("t"),
    ]
    for change in changes:
        for after in range(4):
            faults.at = faults.count + after
            before = catalog.list()
            try:
                change()
            except StorageError:
                meta.reopen()
                assert catalog.list() == before
            faults.at = -1
            again = SyncCatalog(meta)
            assert (again.list(), again.deleting()) == (catalog.list(), catalog.deleting())
            if "t" not in catalog:
                catalog.create("t", 1)


def test_settings_that_could_not_be_kept_are_as_they_were(meta: Meta, faults: Faults) -> None:
    store = SyncCatalog(meta).overrides(paths.BROKER_CONFIG)
    trio.run(store.save, "", {}, {"a": "1"})
    for settings in ({"a": "2"}, {}):
        faults.at = faults.count + 1
        with pytest.raises(StorageError):
            trio.run(partial(store.save, "", {"a": "1"}, settings))
        meta.reopen()
        assert store.load() == {"": {"a": "1"}}


def test_no_new_one_is_made_while_its_folder_is_away(tmp_path: Path, meta: Meta) -> None:
    """Else what is taken meanwhile would be lost once the folder is back."""
    meta.put(b"a", b"1")
    meta.sync()
    meta.put(b"b", b"1")
    meta.folder.rename(tmp_path / "away")
    with pytest.raises(StorageError, match="No such file"):
        meta.reopen()
    assert not meta.folder.exists()
    (tmp_path / "away").rename(meta.folder)
    meta.reopen()
    assert contents(meta) == {b"a": b"1", b"b": b"1"}
