"""Partitions of keys: the numbers that Java's clients compute."""

from __future__ import annotations

import random
import warnings

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from krappy import partitioner
from krappy.partitioner import LONG, MOST_HASHED, any_elsewhere, home_for, murmur2, murmur2_unsigned, partition_for

with warnings.catch_warnings():  # of functions of Python's own that kafka-python still calls as it is imported
    warnings.simplefilter("ignore")
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2


@pytest.mark.parametrize(
    ("key", "signed"),
    [  # from UtilsTest.testMurmur2 of Apache Kafka: Java's ints
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_vectors_of_kafkas_own_tests(key: bytes, signed: int) -> None:
    assert murmur2_unsigned(key) == signed & 0xFFFFFFFF
    assert murmur2(key) == signed & 0x7FFFFFFF
    assert partition_for(key, 50) == (signed & 0x7FFFFFFF) % 50


@given(st.binary(max_size=600))
def test_others(key: bytes) -> None:
    assert murmur2_unsigned(key) == aiokafka_murmur2(key) & 0xFFFFFFFF == kafka_python_murmur2(key) & 0xFFFFFFFF


def test_long_keys() -> None:
    piece = 4 * partitioner.PIECE
    for size in (1023, 1024, 1025, piece - 1, piece, piece + 1, piece + 4, piece + 7, 2 * piece, 100_000, 100_003):
        key = random.Random(size).randbytes(size)
        assert murmur2_unsigned(key) == aiokafka_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_partitions(key: bytes, partitions: int) -> None:
    assert partition_for(key, partitions) == (aiokafka_murmur2(key) & 0x7FFFFFFF) % partitions
    assert partition_for(key, 1) == 0


keys_of_all_sizes = st.lists(st.binary(max_size=20) | st.binary(min_size=1020, max_size=1030), max_size=40)


@given(keys_of_all_sizes, st.integers(1, 100_000) | st.sampled_from([1, 2, 3, 4, 12, 16, 99_999, 100_000]), st.data())
def test_keys_judged_together_are_judged_as_one_by_one(keys: list[bytes], partitions: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, min(partitions, 5) - 1))
    if data.draw(st.booleans()):  # all of them in their own partition, but for one perhaps
        keys = [key for key in keys if murmur2(key) % partitions == index] * 5 + keys[:1]
    assert any_elsewhere(keys, partitions, index) == any(murmur2(key) % partitions != index for key in keys)


@pytest.mark.parametrize("partitions", [2, 3, 4, 7, 12, 100_000])
def test_many_keys_of_one_length_are_judged_together(partitions: int) -> None:
    for size in range(10):
        keys = [number.to_bytes(10, "big")[10 - size :] for number in range(500)]
        for index in (0, 1, partitions - 1):
            mine = [key for key in keys if murmur2(key) % partitions == index]
            assert not any_elsewhere(mine, partitions, index)
            stranger = next((key for key in keys if murmur2(key) % partitions != index), None)
            assert stranger is None or any_elsewhere([*mine, stranger], partitions, index)


def test_long_keys_are_hashed_within_bounds() -> None:
    """A batch of 869 bytes may contain a key of 24 MB: to hash it would hold up everybody for a second."""
    long = bytes(MOST_HASHED)
    home = partition_for(long, 3)
    assert not any_elsewhere([long], 3, home)
    assert home_for(long, 3) == home
    hashed: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitioner, "murmur2_unsigned", hashed.append)
        for keys in ([long + b"x"], [long[1:], b"k", bytes(LONG)], [bytes(100_000)] * 11):
            assert any_elsewhere(keys, 3, 0)
        assert home_for(long + b"x", 3) == 0
    assert not hashed
