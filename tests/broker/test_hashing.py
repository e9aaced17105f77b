"""Keys are looked at a step at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from krappy.broker.partition import hashing
from krappy.broker.partition.hashing import look_for_strays
from krappy.broker.partition.pending import Singles
from krappy.partitioner import MOST_HASHED, any_elsewhere, murmur2
from krappy.types import Record

KEYS = st.lists(st.none() | st.binary(max_size=20) | st.integers(1, 90_000).map(bytes), max_size=30)


@given(KEYS, st.integers(1, 4), st.integers(0, 2000))
def test_they_are_looked_at_as_all_at_once(keys: list[bytes | None], partitions: int, more: int) -> None:
    keys += [b"%d" % number for number in range(more)]
    for index in (0, partitions - 1):
        mine = [key for key in keys if key is None or murmur2(key) % partitions == index]
        if sum(len(key or b"") for key in mine) <= MOST_HASHED:
            assert not trio.run(look_for_strays, mine, partitions, index)
        expected = len(mine) < len(keys)
        assert trio.run(look_for_strays, keys, partitions, index) or not expected
        assert expected or not trio.run(look_for_strays, keys[:5], partitions, index)


class Rounds(trio.abc.Instrument):
    """How many steps are taken in each round of the event loop."""

    def __init__(self) -> None:
        self.steps = [0]

    def looked(self, keys: Sequence[bytes], partitions: int, index: int) -> bool:
        self.steps[-1] += 1
        return any_elsewhere(keys, partitions, index)

    def before_io_wait(self, timeout: float) -> None:
        self.steps.append(0)


def test_partitions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of them have something to look at."""
    key, rounds = bytes(hashing.STEP), Rounds()
    home = murmur2(key) % 2
    monkeypatch.setattr(hashing, "any_elsewhere", rounds.looked)

    async def look() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(look_for_strays, [key] * 3, 2, home)

    trio.run(look, instruments=[rounds])
    assert sum(rounds.steps) == 12
    assert max(rounds.steps) == 1


def test_very_many_bytes_are_not_hashed() -> None:
    assert trio.run(look_for_strays, [bytes(100_000)] * 11, 2, murmur2(bytes(100_000)) % 2)


def test_single_records_are_looked_at_again_when_there_are_more() -> None:
    """Records for which a drain has no room wait for the next drain, and others join them."""
    strays = [key for key in map(str, range(100)) if murmur2(key.encode()) % 2]
    at_home = [key for key in map(str, range(100)) if not murmur2(key.encode()) % 2]
    single = Singles()
    single.add(Record(b"", at_home[0].encode()), 0)
    assert not trio.run(single.has_elsewhere, 2, 0)
    single.add(Record(b"", at_home[1].encode()), 0)
    assert not trio.run(single.has_elsewhere, 2, 0)
    single.add(Record(b"", strays[0].encode()), 0)
    assert trio.run(single.has_elsewhere, 2, 0)
    assert trio.run(single.has_elsewhere, 2, 1)
