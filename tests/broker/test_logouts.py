"""Logouts that count at all brokers: marks in the tree."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from krappy.broker import logouts
from krappy.broker.logouts import Logouts
from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import Operation
from krappy.errors import StorageError
from krappy.store.meta import Meta
from tests.broker.catalogs import SyncCatalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SyncCatalog]:
    meta = Meta(tmp_path / "meta", keep=False)
    yield SyncCatalog(meta)
    meta.close()


class Here(SimpleNamespace):
    """What `Logouts` takes of a broker's runtime."""

    now = 1_000
    stopped = False

    @staticmethod
    def spawn(run: Callable[[], Awaitable[None]]) -> None:
        trio.lowlevel.spawn_system_task(run)

    @property
    def image(self) -> Image:
        image: Image = self.store.image
        return image

    def now_ms(self) -> int:
        return self.now


def test_a_mark_ends_the_sessions_that_were_opened_before_it(catalog: SyncCatalog) -> None:
    ended = Logouts(here := Here(store=catalog.store))  # type: ignore[arg-type]
    before = {user: ended.marks(user) for user in ("ada", "all")}
    trio.run(ended.end, "ada")
    assert [ended.ended(user, marks) for user, marks in before.items()] == [True, False]
    other = Logouts(here)  # type: ignore[arg-type]
    since = other.marks("ada")
    assert not other.ended("ada", since)
    trio.run(other.end, None)
    assert other.ended("ada", since)
    assert other.ended("all", before["all"])
    assert not other.ended("ada", other.marks("ada"))


def test_old_marks_go_and_end_nothing(catalog: SyncCatalog) -> None:
    here = Here(store=catalog.store)

    async def main() -> None:
        await Logouts(here).end("ada")  # type: ignore[arg-type]
        ended = Logouts(here)  # type: ignore[arg-type]
        since = ended.marks("ada")
        await ended.end("bob")
        await trio.sleep(logouts.KEPT - 1)
        await ended.end("bob")  # a new mark, which is not old
        assert set(here.image.configs["sessions"]) == {"user:ada", "user:bob"}
        await trio.sleep(2)
        await ended.end("cyd")
        assert set(here.image.configs["sessions"]) == {"user:bob", "user:cyd"}
        assert not ended.ended("ada", since)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("ahead", [logouts.KEPT, 2 * logouts.KEPT, -2 * logouts.KEPT])
def test_a_mark_counts_at_brokers_whose_clocks_differ(catalog: SyncCatalog, ahead: float) -> None:
    """The session's browser sends nothing until a broker whose clock is wrong has made a mark, too."""
    here, other = Here(store=catalog.store), Here(store=catalog.store, now=Here.now + int(1000 * ahead) + 1)
    quiet = Logouts(here).marks("ada")  # type: ignore[arg-type]

    async def main() -> None:
        await Logouts(here).end("ada")  # type: ignore[arg-type]
        wrong = Logouts(other)  # type: ignore[arg-type]
        for user in ("bob", "cyd"):
            await wrong.end(user)
        assert Logouts(here).ended("ada", quiet)  # type: ignore[arg-type]

    trio.run(main, clock=MockClock(autojump_threshold=0))


class Tree:
    """A tree whose writes take a moment, and fail while there is `trouble`. `written`: how many operations each had."""

    def __init__(self, catalog: SyncCatalog, trouble: str = "") -> None:
        self._store = catalog.store
        self.read = catalog.store.read
        self.trouble = trouble
        self.written: list[int] = []

    @property
    def image(self) -> Image:
        return self._store.image

    async def multi(self, operations: list[Operation]) -> object:
        if self.trouble:
            raise StorageError(self.trouble)
        self.written.append(len(operations))
        await trio.sleep(0.1)
        return await self._store.multi(operations)


def test_changes_of_many_are_one(catalog: SyncCatalog) -> None:
    tree = Tree(catalog)
    ended = Logouts(Here(store=tree))  # type: ignore[arg-type]

    async def many() -> float:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ended.end, f"user {number % 10}")
        return trio.current_time() - began

    took = trio.run(many, clock=MockClock(autojump_threshold=0))
    assert tree.written in ([10], [1, 10], [1, 9])
    assert took < 2


def test_a_change_that_fails_is_made_later(catalog: SyncCatalog) -> None:
    """Nobody has to ask again: whoever has logged out can't."""
    tree = Tree(catalog, trouble="the disk is full")
    ended = Logouts(Here(store=tree))  # type: ignore[arg-type]
    before = ended.marks("ada")

    async def main() -> None:
        with pytest.raises(StorageError):
            await ended.end("ada")
        await trio.sleep(10)
        assert not ended.ended("ada", before)
        tree.trouble = ""
        await trio.sleep(2)
        assert ended.ended("ada", before)
        await trio.sleep(10)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert tree.written == [1]


def test_what_one_wanted_who_has_left_is_made(catalog: SyncCatalog) -> None:
    tree = Tree(catalog)
    ended = Logouts(Here(store=tree))  # type: ignore[arg-type]
    before = ended.marks("ada")

    async def main() -> None:
        with trio.move_on_after(0.05):  # in the middle of the change
            await ended.end("ada")
        await trio.sleep(3)
        assert ended.ended("ada", before)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_what_many_wanted_while_the_tree_was_away_comes_in_changes_of_some(catalog: SyncCatalog) -> None:
    tree = Tree(catalog, trouble="ZooKeeper is away")
    ended = Logouts(Here(store=tree))  # type: ignore[arg-type]
    users = [f"user {number}" for number in range(2 * logouts.MADE + 1)]

    async def many() -> None:
        for user in users:
            with pytest.raises(StorageError):
                await ended.end(user)
        tree.trouble = ""
        for user in users:
            await ended.end(user)
            assert ended.marks(user) != ("", "")

    trio.run(many, clock=MockClock(autojump_threshold=0))
    assert max(tree.written) <= logouts.MADE


def test_who_comes_later_keeps_nobody_waiting(catalog: SyncCatalog) -> None:
    """A user who logs out again and again is served as often as others."""
    ended = Logouts(Here(store=catalog.store))  # type: ignore[arg-type]

    async def again(name: str, took: list[float]) -> None:
        for _ in range(3):
            began = trio.current_time()
            await ended.end(name)
            took.append(trio.current_time() - began)

    async def main() -> list[float]:
        took: list[float] = []
        async with trio.open_nursery() as nursery:
            for name in ("zoe",) * 20 + ("ada",):
                nursery.start_soon(again, name, took)
        return took

    took = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert max(took) <= 2 * logouts.PAUSE


def test_who_logs_out_again_and_again_keeps_nobody_waiting(catalog: SyncCatalog) -> None:
    tree = Tree(catalog)
    ended = Logouts(Here(store=tree))  # type: ignore[arg-type]

    async def again() -> None:
        while True:
            await ended.end("bob")

    async def main() -> list[float]:
        took: list[float] = []
        async with trio.open_nursery() as nursery:
            for _ in range(250):
                nursery.start_soon(again)
            for number in range(9):
                await trio.sleep(0.3)  # soon after a change for the one before
                began = trio.current_time()
                await ended.end(f"user {number}")
                took.append(trio.current_time() - began)
            assert len(tree.written) <= 2 * 9, "his come once a second at most"
            nursery.cancel_scope.cancel()
        return took

    took = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert max(took) < 0.5


def test_who_waited_while_a_change_failed_waits_for_one_more_alone(catalog: SyncCatalog) -> None:
    """A user's who came during it keep nobody waiting, nor those who came before it."""
    tree = Tree(catalog)
    ended = Logouts(Here(store=tree))  # type: ignore[arg-type]
    took: list[float] = []

    async def fails(operations: list[Operation]) -> object:
        await trio.sleep(0.1)
        if trio.current_time() - began < 0.5:
            raise StorageError("ZooKeeper was away for a moment")
        return await catalog.store.multi(operations)

    tree.multi = fails  # type: ignore[method-assign]
    began = 0.0

    async def ends(name: str) -> None:
        with suppress(StorageError):
            await ended.end(name)
        took.append(trio.current_time() - began)

    async def main() -> None:
        nonlocal began
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ends, "bob")
            await trio.sleep(0.05)
            for name in ("bob",) * 20 + ("ada",):
                nursery.start_soon(ends, name)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len(took) == 26
    assert max(took) <= 2 * logouts.PAUSE
    assert ended.marks("ada") != ("", "")
