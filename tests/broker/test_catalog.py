"""The catalog: numbers and ids that never come again, and changes that a crash can't leave half done."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from krappy.broker.local_store import LocalStore
from krappy.broker.overrides import FOR_ALL, OverrideStore
from krappy.broker.topics.catalog import Catalog
from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import Operation, RefusedMulti
from krappy.core.cluster.znodes import PRODUCER_BLOCK
from krappy.errors import InvalidConfig, InvalidPartitions, InvalidTopic, StorageError, TopicExists, UnknownTopic
from krappy.settings.topic_table import GENERATION
from krappy.store.catalog import FORMAT, StoredTopic, new_id
from krappy.store.format import DATA_FORMAT
from krappy.store.format_2 import TOPIC
from krappy.store.keys import MAX_NUMBER
from krappy.store.meta import Meta
from krappy.store.view_numbers import NEXT_NUMBER, NUMBERS, ViewNumbers
from krappy.types import text_id
from tests.broker.catalogs import SyncCatalog, inline


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[Meta]:
    opened = Meta(tmp_path / "meta")
    yield opened
    opened.close()


@pytest.fixture
def catalog(meta: Meta) -> SyncCatalog:
    return SyncCatalog(meta)


def test_the_cluster_id_is_kafkas_kind_and_stays(meta: Meta) -> None:
    first = SyncCatalog(meta).cluster_id
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", first)
    assert SyncCatalog(meta).cluster_id == first


def test_data_of_a_newer_version_is_refused(meta: Meta) -> None:
    SyncCatalog(meta)
    assert meta.get(FORMAT) == DATA_FORMAT.to_bytes(4, "big")
    meta.delete(FORMAT)  # as versions before it wrote it
    SyncCatalog(meta)
    meta.put(FORMAT, (DATA_FORMAT + 1).to_bytes(4, "big"))
    with pytest.raises(StorageError, match="written by a newer version of Krappy"):
        SyncCatalog(meta)
    assert meta.get(FORMAT) == (DATA_FORMAT + 1).to_bytes(4, "big")


OLD = (  # as a version with Kafka's 7 days wrote them
    b"\x94\xa5plain\xc4\x10Y\xb2:\xa0\x86\xb8KN\xb6}RT\xf7\x10\xc3\xa1\x80\x91\x01",
    b"\x94\xa3own\xc4\x10\x13\x87S\x15\xe3\xa3F\xfa\xa3-\x9a[\x19\xcc\\\x1f\x81\xacretention.ms\xa15\x91\x02",
)


def test_topics_keep_the_defaults_that_they_were_made_under(meta: Meta) -> None:
    meta.write({TOPIC + b"plain": OLD[0], TOPIC + b"own": OLD[1], FORMAT: bytes([0, 0, 0, 1]), NEXT_NUMBER: bytes([3])})
    for change in (None, {"segment.ms": 5}, {"segment.ms": None}):
        catalog = SyncCatalog(meta)
        if change is not None:
            catalog.alter("plain", change)
            catalog.add_partitions("own", len(catalog.list()[0].numbers) + 1)
        for opened in (catalog, SyncCatalog(meta)):
            assert [topic.defaults.get("retention.ms") for topic in opened.list()] == ["604800000", "604800000"]
    catalog.delete("plain")
    assert catalog.create("plain", 1).defaults == {}
    own = catalog.get("own")
    assert own is not None
    assert (own.config, own.numbers) == ({"retention.ms": "5"}, [2, 3, 4])


def test_ids_differ_and_never_look_like_an_option() -> None:
    ids = {text_id(new_id()) for _ in range(2000)}
    assert len(ids) == 2000
    assert not any(id.startswith("-") for id in ids)


def test_a_topic_is_kept_as_it_was_made(catalog: SyncCatalog, meta: Meta) -> None:
    made = catalog.create("a", 3, {"retention.ms": 5, "segment.ms": None})
    assert made == StoredTopic("a", made.id, {"retention.ms": "5"}, [1, 2, 3], GENERATION)
    assert len(made.id) == 16
    assert catalog.get("a") == made
    assert "a" in catalog
    assert [topic.numbers for topic in (catalog.create("b", 1), catalog.create("A", 2))] == [[4], [5, 6]]
    for held in (catalog, SyncCatalog(meta)):
        assert [topic.name for topic in held.list()] == ["A", "a", "b"]
        assert held.get("a") == made
    assert catalog.get("c") is None


def test_what_cannot_be_created(catalog: SyncCatalog) -> None:
    catalog.create("a", 1)
    with pytest.raises(TopicExists):
        catalog.create("a", 1)
    with pytest.raises(InvalidTopic):
        catalog.create("a/b", 1)
    with pytest.raises(InvalidConfig):
        catalog.create("b", 1, {"retention": 1})
    with pytest.raises(InvalidConfig):
        catalog.create("b", 1, {"cleanup.policy": "compact", "view.enable": False})
    for partitions in (0, -1, 100_001):
        with pytest.raises(InvalidPartitions):
            catalog.create("b", partitions)
    assert [topic.name for topic in catalog.list()] == ["a"]
    assert catalog.create("b", 1).numbers == [2]


def test_partitions_only_grow(catalog: SyncCatalog) -> None:
    first = catalog.create("a", 2)
    catalog.create("b", 1)
    grown = catalog.add_partitions("a", 4)
    assert grown == StoredTopic("a", first.id, {}, [1, 2, 4, 5], GENERATION)
    for total in (4, 1, 0, -1, 100_001):
        with pytest.raises(InvalidPartitions):
            catalog.add_partitions("a", total)
    assert catalog.get("a") == grown


def test_settings_change_and_go_back(catalog: SyncCatalog) -> None:
    catalog.create("a", 1, {"retention.ms": 5, "segment.ms": 6})
    assert catalog.alter("a", {"retention.ms": None, "view.enable": False}).config == {
        "segment.ms": "6",
        "view.enable": "false",
    }
    with pytest.raises(InvalidConfig):
        catalog.alter("a", {"cleanup.policy": "compact"})
    assert catalog.get("a") == catalog.alter("a", {})


@pytest.mark.parametrize("use", ["alter", "add_partitions", "delete"])
def test_an_unknown_topic(catalog: SyncCatalog, use: str) -> None:
    arguments: tuple[object, ...] = {"alter": ({},), "add_partitions": (2,), "delete": ()}[use]
    with pytest.raises(UnknownTopic, match="'nope'"):
        getattr(catalog, use)("nope", *arguments)


def test_a_deleted_topic_is_remembered_until_it_is_gone_from_disk(catalog: SyncCatalog, meta: Meta) -> None:
    first = catalog.create("a", 2)
    assert catalog.delete("a") == first
    again = catalog.create("a", 1)
    assert again.id != first.id
    assert again.numbers == [3]
    reopened = SyncCatalog(meta)
    assert list(reopened.deleting()) == [StoredTopic("a", first.id, {}, first.numbers)]
    assert list(reopened.list()) == [again]
    reopened.delete("a")
    reopened.forget(first)
    left = StoredTopic("a", again.id, {}, again.numbers)
    assert list(reopened.deleting()) == list(SyncCatalog(meta).deleting()) == [left]
    reopened.forget(left)
    assert not [key for key, _ in meta.items(NUMBERS)]


def test_producer_ids_never_come_again(catalog: SyncCatalog, meta: Meta) -> None:
    given = [catalog.next_producer_id() for _ in range(PRODUCER_BLOCK + 5)]
    given += [SyncCatalog(meta).next_producer_id() for _ in range(3)]
    assert len(set(given)) == len(given)
    assert given[0] == 0
    assert given[: PRODUCER_BLOCK + 5] == list(range(PRODUCER_BLOCK + 5))


def test_numbers_run_out_with_an_error(meta: Meta) -> None:
    meta.put(NEXT_NUMBER, (MAX_NUMBER - 1).to_bytes(8, "big"))
    catalog = SyncCatalog(meta)
    with pytest.raises(InvalidPartitions):
        catalog.create("a", 3)
    assert catalog.create("a", 2).numbers == [MAX_NUMBER - 1, MAX_NUMBER]
    with pytest.raises(InvalidPartitions):
        catalog.create("b", 1)


@pytest.mark.parametrize("bad", [b"", b"\xc0", b"\x91\x01", b"\xff"])
def test_a_damaged_record_is_a_clear_error(meta: Meta, bad: bytes) -> None:
    meta.put(TOPIC + b"a", bad)
    with pytest.raises(StorageError, match="t/a"):
        SyncCatalog(meta)


names = st.sampled_from(["a", "b", "c"])


class CatalogHistory(RuleBasedStateMachine):
    """The catalog against a dict. A crash loses nothing that is in the meta database (test_meta.py), so it is a new
    catalog on the same database; every change must be whole there as soon as it has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="krappy-catalog-"))
        self.topics: dict[str, StoredTopic] = {}
        self.deleting: dict[bytes, StoredTopic] = {}
        self.numbers: set[int] = set()
        self.ids: set[bytes] = set()
        self.producers: set[int] = set()

    @initialize()
    def opened(self) -> None:
        self.meta = Meta(self.folder / "meta")
        self.catalog = SyncCatalog(self.meta)

    @rule(name=names, partitions=st.integers(1, 3))
    def create(self, name: str, partitions: int) -> None:
        if name in self.topics:
            with pytest.raises(TopicExists):
                self.catalog.create(name, partitions)
            return
        made = self.catalog.create(name, partitions, {"segment.ms": partitions})
        assert len(made.numbers) == partitions
        assert not self.numbers.intersection(made.numbers)
        assert made.id not in self.ids
        self.topics[name] = made
        self.ids.add(made.id)
        self.numbers.update(made.numbers)

    @rule(name=names, more=st.integers(1, 3))
    def grow(self, name: str, more: int) -> None:
        if name in self.topics:
            before = self.topics[name]
            after = self.catalog.add_partitions(name, len(before.numbers) + more)
            assert after.numbers[:-more] == before.numbers
            assert not self.numbers.intersection(after.numbers[-more:])
            self.numbers.update(after.numbers)
            self.topics[name] = after

    @rule(name=names, value=st.none() | st.integers(0, 9))
    def alter(self, name: str, value: int | None) -> None:
        if name in self.topics:
            self.topics[name] = self.catalog.alter(name, {"retention.ms": value})
            assert self.topics[name].config.get("retention.ms") == (None if value is None else str(value))

    @rule(name=names)
    def delete(self, name: str) -> None:
        if name in self.topics:
            gone = self.topics.pop(name)
            assert self.catalog.delete(name) == gone
            self.deleting[gone.id] = StoredTopic(name, gone.id, {}, gone.numbers)

    @rule()
    def forget(self) -> None:
        if self.deleting:
            self.catalog.forget(self.deleting.popitem()[1])

    @rule()
    def producer(self) -> None:
        given = self.catalog.next_producer_id()
        assert given not in self.producers
        self.producers.add(given)

    @rule()
    def crash(self) -> None:
        self.catalog = SyncCatalog(self.meta)

    @rule()
    def reopen(self) -> None:
        self.meta.close()
        self.opened()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "catalog"):
            assert {topic.name: topic for topic in self.catalog.list()} == self.topics
            assert {topic.id: topic for topic in self.catalog.deleting()} == self.deleting

    def teardown(self) -> None:
        if hasattr(self, "meta"):
            self.meta.close()
        shutil.rmtree(self.folder)


CatalogHistory.TestCase.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
TestCatalogHistory = CatalogHistory.TestCase


class Lagging(LocalStore):
    """The store of another broker: its image stays that of `seen` until a write was refused."""

    seen: Image | None = None

    @property
    def image(self) -> Image:
        return self.seen or self.tree.image

    async def multi(self, operations: Sequence[Operation]) -> Image:
        try:
            return await super().multi(operations)
        except RefusedMulti:
            self.seen = None
            raise


def lagging_store(catalog: SyncCatalog) -> Lagging:
    store = Lagging(catalog.tree, inline)
    store.seen = catalog.tree.image
    return store


def lagging(catalog: SyncCatalog) -> Catalog:
    return Catalog(lagging_store(catalog), catalog.numbers, inline, 2)


def settings_of(catalog: SyncCatalog) -> dict[str, str]:
    found = catalog.get("t")
    assert found is not None
    return dict(found.config)


def test_two_brokers_change_settings_at_once(catalog: SyncCatalog) -> None:
    catalog.create("t", 1, {"retention.ms": "1000", "segment.ms": "5000"})
    other = lagging(catalog)
    catalog.alter("t", {"retention.ms": None, "max.message.bytes": "2000"})
    trio.run(other.alter, "t", {"segment.ms": "7000"})
    assert settings_of(catalog) == {"max.message.bytes": "2000", "segment.ms": "7000"}


def test_settings_of_a_deleted_topic_do_not_come_to_one_that_was_made_anew(catalog: SyncCatalog) -> None:
    catalog.create("t", 1, {"retention.ms": "1000"})
    other = lagging(catalog)
    catalog.delete("t")
    catalog.create("t", 1, {"segment.ms": "5000"})
    with pytest.raises(UnknownTopic, match="was deleted meanwhile"):
        trio.run(other.alter, "t", {"max.message.bytes": "2000"})
    assert settings_of(catalog) == {"segment.ms": "5000"}


def test_a_topic_that_another_broker_has_just_made_is_not_damaged(catalog: SyncCatalog, tmp_path: Path) -> None:
    """The image has the topic, or its new partitions, before this broker has numbered them."""
    catalog.create("t", 2, {"retention.ms": "1000"})
    meta = Meta(tmp_path / "other")
    other = Catalog(catalog.store, ViewNumbers(meta), inline, 2)
    with pytest.raises(TopicExists):
        trio.run(other.create, "t", 3)
    assert other.told("t") == {"partitions": 2, "config": {"retention.ms": "1000"}}
    found = other.get("t")
    assert found is not None
    assert (found.config, found.numbers) == ({"retention.ms": "1000"}, [])
    with pytest.raises(InvalidPartitions, match="has 2 partitions; their number can only grow"):
        trio.run(other.add_partitions, "t", 2)
    assert trio.run(other.alter, "t", {"retention.ms": "2000"}).config == {"retention.ms": "2000"}
    assert trio.run(other.add_partitions, "t", 3).numbers == [1, 2, 3]
    catalog.add_partitions("t", 4)
    assert other.told("t") == {"partitions": 4, "config": {"retention.ms": "2000"}}
    assert trio.run(other.delete, "t").numbers == [1, 2, 3]
    assert other.told("t") is None
    meta.close()


def test_a_broker_that_is_alone_tells_of_numbers_that_are_lost(catalog: SyncCatalog, meta: Meta) -> None:
    made = catalog.create("t", 2)
    meta.delete(NUMBERS + made.id)
    with pytest.raises(StorageError, match="is damaged: the topic 't' has 2 partitions, but view numbers for 0"):
        SyncCatalog(meta)


def test_two_brokers_change_settings_of_all_brokers_at_once(catalog: SyncCatalog) -> None:
    """The same holds for users and groups."""
    first = catalog.overrides("brokers")
    trio.run(first.save, FOR_ALL, {}, {"log.retention.ms": "1000", "log.segment.bytes": "5000"})
    other = OverrideStore(lagging_store(catalog), catalog.meta, inline, "brokers")
    known = other.load()[FOR_ALL]
    trio.run(first.save, FOR_ALL, first.load()[FOR_ALL], {"log.segment.bytes": "5000", "message.max.bytes": "2000"})
    trio.run(other.save, FOR_ALL, known, {"log.retention.ms": "1000", "log.segment.bytes": "7000"})
    assert first.load()[FOR_ALL] == {"message.max.bytes": "2000", "log.segment.bytes": "7000"}
    trio.run(other.save, FOR_ALL, first.load()[FOR_ALL], {})
    assert FOR_ALL not in first.load()
