"""Which partition of an internal topic has the records of a group or a transactional id. Its leader coordinates it."""

from __future__ import annotations

import struct


def partition_of(name: str, partitions: int) -> int:
    """As in Kafka: the name's hash in Java (JLS, String.hashCode), without its sign, modulo the partitions."""
    units = name.encode("utf-16-be", "surrogatepass")
    hash = 0
    for [unit] in struct.iter_unpack(">H", units):
        hash = (31 * hash + unit) & 0xFFFFFFFF
    signed = hash - (1 << 32) if hash >= 1 << 31 else hash
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
