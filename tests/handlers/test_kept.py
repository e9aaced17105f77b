"""Registrations are counted by what they keep: a few large ones take the place of many small ones (promise 7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from krappy import errors
from krappy.server.session import REGISTRATION
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from tests.handlers.raw import Raw

MEMORY = 1 << 20
LIMIT = MEMORY // REGISTRATION
LARGE = 100_000  # bytes
WIDE = 400  # partitions


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with run_broker(tmp_path / "data", durability="os", memory_bytes=MEMORY) as running:
        yield running


@pytest.fixture
def topic(raw: Raw) -> str:
    """A topic with two keys, so that a scan of one entry a page stays open."""
    handle = raw.producer("t").handle
    for key in (b"a", b"b"):
        raw.call(m.Message(handle, b"v", key))
    return "t"


LARGE_ONES = {
    "a scan up to a long key": m.Scan("t", end=b"\xff" * LARGE, max_entries=1),
    "a scan from a long key": m.Scan("wide", start=b"\0" * LARGE),
    "a watch of many partitions": m.Watch("wide"),
    "a scan of many partitions": m.Scan("wide", max_entries=1),
    "a reader of many partitions": m.ConsumerRegistration(["wide"]),
}


@pytest.mark.parametrize("name", LARGE_ONES)
def test_large_registrations(broker: RunningBroker, raw: Raw, topic: str, name: str) -> None:
    """All that were taken are given back: when their connection ends, and by Unregister."""
    raw.call(m.CreateTopic("wide", WIDE, {"view.enable": True}))
    handle = raw.producer("wide").handle
    for partition in range(2, 4):
        raw.call(m.Message(handle, b"v", b"z", partition=partition))
    request = LARGE_ONES[name]
    for _ in range(2):
        with Raw(broker.address) as other:
            taken = taken_until_refused(other, request)
            assert 2 <= len(taken) <= MEMORY // LARGE
            with pytest.raises(errors.Overloaded, match="would count as"):
                other.call(request)
            other.call(m.Unregister(taken[0]))
            assert len(taken_until_refused(other, request)) == 1
            raw.producer("t")  # a small one is still taken in spite of the large ones


def taken_until_refused(raw: Raw, request: m.Request) -> list[int]:
    """The handles of the registrations that were taken before one was refused."""
    taken: list[int] = []
    while True:
        try:
            answer: Any = raw.call(request)
        except errors.Overloaded:
            return taken
        taken.append(answer.cursor if isinstance(request, m.Scan) else answer.handle)
        assert len(taken) < LIMIT


def test_a_long_name_of_a_producer_is_refused(raw: Raw) -> None:
    raw.call(m.ProducerRegistration("t", "n" * 1000))
    with pytest.raises(errors.InvalidRequest, match="a producer's name has at most 1000 characters, not 1001"):
        raw.call(m.ProducerRegistration("t", "n" * 1001))
