"""The catalog on a disk that refuses: what was refused has changed nothing, and what it took is not given again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from krappy.core.cluster import places
from krappy.errors import StorageError
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


@pytest.mark.parametrize("after", range(4))
def test_a_topic_that_could_not_be_made_takes_its_numbers_with_it(meta: Meta, faults: Faults, after: int) -> None:
    """Else, after a restart, two topics share a view."""
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
    store = SyncCatalog(meta).overrides(places.BROKER_CONFIG)
    trio.run(store.save, "", {"a": "1"})
    for settings in ({"a": "2"}, {}):
        faults.at = faults.count + 1
        with pytest.raises(StorageError):
            trio.run(partial(store.save, "", settings))
        meta.reopen()
        assert store.load() == {"": {"a": "1"}}
