"""Names to partitions of internal topics, against values of Java's String.hashCode and Kafka's Utils.abs."""

from __future__ import annotations

import pytest

from krappy.core.cluster.coordinators import partition_of


@pytest.mark.parametrize(
    ("name", "hash"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("polygenelubricants", -(1 << 31)),  # Integer.MIN_VALUE
        ("hello", 99162322),
        ("é", 233),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),  # two UTF-16 units
        ("consumer-group-with-a-name", None),
    ],
)
def test_as_in_kafka(name: str, hash: int | None) -> None:
    if hash is None:  # the definition, in exact numbers
        hash = sum(ord(each) * 31 ** (len(name) - 1 - at) for at, each in enumerate(name)) % (1 << 32)
        hash = hash - (1 << 32) if hash >= 1 << 31 else hash
    for partitions in (1, 50, 7):
        assert partition_of(name, partitions) == (0 if hash == -(1 << 31) else abs(hash)) % partitions
