"""Whoever asks all partitions names the number of partitions that it knows, and begins anew when that
number is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from krappy.clients.router import OthersNeeded
from krappy.clients.scattering import counted, is_scattered
from krappy.errors import InvalidRequest, KrappyError, RequestTimeout, UnknownPartition


class FakeRouter:
    """`counts`: the number of partitions that each question for Metadata brings; the last one stays. `told`: what
    leaders tell of the topic."""

    def __init__(self, *counts: int, told: list[dict[str, Any]] | None = None) -> None:
        self.counts = list(counts)
        self.told = told or []
        self.is_older = False
        self.runtime = SimpleNamespace(now=trio.current_time, sleep=trio.sleep)
        self.timeout = 5.0
        self.learning = self

    async def topic(self, name: str, deadline: float) -> Any:
        return SimpleNamespace(partitions=[None] * self.counts[0])

    async def recounted(self, topic: str, count: int, deadline: float) -> bool:
        if len(self.counts) > 1:
            del self.counts[0]
        return self.counts[0] != count

    async def look_again(self, topic: str, error: KrappyError, backoff: Any, deadline: float) -> None:
        if trio.current_time() >= deadline:
            raise error
        await trio.sleep(backoff.pause())

    def note_older(self, error: InvalidRequest) -> bool:
        self.is_older = error.details.get("field") == "among"
        return self.is_older

    async def of_leaders(self, topic: str, partitions: Any, request: Any, answer: Any, deadline: float) -> Any:
        told = self.told[0] if len(self.told) == 1 else self.told.pop(0)
        return [(None, [0], SimpleNamespace(topics=[told]))]

    def take(self, found: Any) -> None: ...


def run(router: FakeRouter, errors: list[KrappyError], seconds: float = 5.0) -> list[tuple[int, int | None]]:
    """The numbers that were asked with, until there is no error left."""
    asked: list[tuple[int, int | None]] = []

    async def ask(count: int, among: int | None) -> None:
        asked.append((count, among))
        if errors:
            raise errors.pop(0)

    async def main() -> None:
        await counted(cast("Any", router), "t", trio.current_time() + seconds, ask)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return asked


def wrong(partitions: int) -> OthersNeeded:
    return OthersNeeded("another number", topic="t", partition=-1, partitions=partitions)


def test_another_number_is_asked_for_and_all_is_done_anew() -> None:
    assert run(FakeRouter(3, 6), [wrong(6)]) == [(3, 3), (6, 6)]
    assert run(FakeRouter(4, 2), [UnknownPartition("2")]) == [(4, 4), (2, 2)]
    assert run(FakeRouter(3, 6, 9), [wrong(6), wrong(9)]) == [(3, 3), (6, 6), (9, 9)]


def test_a_broker_that_is_behind_is_asked_until_it_knows() -> None:
    assert run(FakeRouter(3, 3, 3, 6), [wrong(6)] * 3) == [(3, 3)] * 3 + [(6, 6)]
    with pytest.raises(OthersNeeded):
        run(FakeRouter(3), [wrong(6)] * 100, 2.0)


def test_strays_are_no_other_number() -> None:
    with pytest.raises(OthersNeeded):
        run(FakeRouter(3), [OthersNeeded("led elsewhere", topic="t", partition=1)])


def test_an_older_broker_is_asked_without_the_number() -> None:
    router = FakeRouter(3)
    assert run(router, [InvalidRequest("Get: unknown field", field="among")]) == [(3, 3), (3, None)]
    assert run(router, []) == [(3, None)]
    with pytest.raises(InvalidRequest):
        run(FakeRouter(3), [InvalidRequest("another field", field="key")])


def scattered(*told: dict[str, Any], may_guess: bool = False) -> bool:
    async def main() -> bool:
        router = cast("Any", FakeRouter(3, told=list(told)))
        return await is_scattered(router, "t", trio.current_time() + 5, may_guess=may_guess)

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def test_leaders_that_do_not_know_yet_are_asked_again() -> None:
    """A table without strays is not refused for strays."""
    unsure, sure = {"scattered": True, "unsure": True}, {"scattered": True, "unsure": False}
    assert not scattered({"scattered": False, "unsure": False})
    assert scattered(sure)
    assert not scattered(*[unsure] * 6, {"scattered": False, "unsure": False})  # two or three seconds
    assert scattered(*[unsure] * 6, sure)
    with pytest.raises(RequestTimeout):
        scattered(unsure)
    assert scattered(unsure, may_guess=True)
    assert scattered({"scattered": True})  # an older broker does not tell whether it is sure: then a second is enough
