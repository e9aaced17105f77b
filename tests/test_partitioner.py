"""Partitions of keys: the numbers that Java's clients compute."""

from __future__ import annotations

import random
import warnings

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from krappy.partitioner import murmur2, murmur2_unsigned, partition_for

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
    for size in (1023, 1024, 1025, 100_000, 100_003):
        key = random.Random(size).randbytes(size)
        assert murmur2_unsigned(key) == aiokafka_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_partitions(key: bytes, partitions: int) -> None:
    assert partition_for(key, partitions) == (aiokafka_murmur2(key) & 0x7FFFFFFF) % partitions
    assert partition_for(key, 1) == 0
