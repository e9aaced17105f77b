"""The catalog of a folder without a broker, for tests and their helpers that are not async."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import trio

from krappy.broker.local_store import LocalStore
from krappy.broker.overrides import OverrideStore
from krappy.broker.topics.catalog import Catalog
from krappy.core.cluster.image import Image
from krappy.core.cluster.paths import Kind
from krappy.core.cluster.state import NOBODY
from krappy.settings.topic_table import Given
from krappy.store.catalog import LocalCatalog, StoredTopic
from krappy.store.meta import Meta

T = TypeVar("T")


async def inline(work: Callable[[], T]) -> T:
    return work()


class SyncCatalog(LocalCatalog):
    """A `Catalog` on the meta database of a folder. Each method waits until it is done."""

    def __init__(self, meta: Meta, **options: Any) -> None:
        super().__init__(meta, **options)
        self.store = LocalStore(self.tree, inline)
        self._begin(NOBODY)
        trio.run(self.changing.forget_unmade)

    def _begin(self, broker: int) -> None:
        self.changing = Catalog(self.store, self.numbers, inline, broker)
        trio.run(self.changing.open)

    def overrides(self, kind: Kind) -> OverrideStore:
        return OverrideStore(self.store, self.meta, inline, kind)

    def register(self, broker: int) -> Image:
        self._begin(broker)
        self.store.control()
        return trio.run(self.changing.register)

    def create(self, name: str, partitions: int, config: Mapping[str, Given] | None = None) -> StoredTopic:
        return trio.run(self.changing.create, name, partitions, config)

    def add_partitions(self, name: str, total: int) -> StoredTopic:
        return trio.run(self.changing.add_partitions, name, total)

    def alter(self, name: str, changes: Mapping[str, Given]) -> StoredTopic:
        return trio.run(self.changing.alter, name, changes)

    def delete(self, name: str) -> StoredTopic:
        return trio.run(self.changing.delete, name)

    def forget(self, topic: StoredTopic) -> None:
        trio.run(self.changing.forget, topic)

    def next_producer_id(self) -> int:
        return trio.run(self.changing.next_producer_id)

    def was_given(self, id: int) -> bool:
        return self.changing.was_given(id)

    def skip_epochs(self, starts: int) -> None:
        trio.run(self.changing.skip_epochs, starts)

    def skip_producer_ids(self, count: int) -> None:
        trio.run(self.changing.skip_producer_ids, count)

    def know_producer_ids(self, ids: set[int]) -> None:
        trio.run(self.changing.know_producer_ids, ids)

    def pass_over(self, changes: int) -> None:
        trio.run(self.changing.pass_over, self.meta, changes)


CATALOGS_LOST = ["nothing", "an empty folder", "no database"]


def lose_catalog(meta: Path, left: str) -> None:
    """Removes the catalog in a folder, but for what is left of CATALOGS_LOST."""
    if left == "no database":
        for file in [meta / "CURRENT", *meta.glob("*.sst"), *meta.glob("*.log")]:
            file.unlink()
        return
    shutil.rmtree(meta)
    if left == "an empty folder":
        meta.mkdir()
