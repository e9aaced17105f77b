"""What one client writes, every other reads, to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compat.clients.base import Message, Sending, by_partition
from tests.compat.conftest import NAMES, GetClient, NewTopic
from tests.compat.servers import Server

BASE = 1_700_000_000_000


def messages(plain: bool) -> list[Message]:
    """`plain`: only messages that kcat can write, too."""
    if plain:
        headers = (("source", b"kcat"),)
        return [
            Message(f"key-{n % 7}".encode(), None if n % 5 == 4 else f"value-{n}".encode(), headers, None, n % 3)
            for n in range(60)
        ]
    return [
        Message(
            None if n % 6 == 5 else bytes([n, 255, 0, 10]),
            None if n % 6 == 1 else f"välue-{n}\n\t\0".encode() * (n + 1),
            (("number", str(n).encode()), ("empty", b""), ("ünicode", b"\xff\x00"))[: n % 4],
            BASE + n * 1000,
            n % 3,
        )
        for n in range(60)
    ]


@pytest.mark.parametrize("writer", NAMES)
def test_all_read_what_one_writes(writer: str, get_client: GetClient, running: Server, new_topic: NewTopic) -> None:
    client = get_client(writer)
    topic = new_topic(partitions=3)
    sent = messages(plain=writer == "kcat")
    offsets = client.produce(running.address, topic, sent, Sending())
    written = [message.at(offset) for message, offset in zip(sent, offsets, strict=True)]
    for partition, some in by_partition(written).items():
        assert [message.offset for message in some] == list(range(len(some))), f"offsets of partition {partition}"
    readers = 0
    for name in NAMES:
        try:
            reader = get_client(name)
        except pytest.skip.Exception:
            continue
        found = by_partition(reader.consume(running.address, topic, len(sent)))
        expected = by_partition(written)
        if not client.timestamps:
            expected = {number: [replace(m, timestamp=None) for m in some] for number, some in expected.items()}
            found = {number: [replace(m, timestamp=None) for m in some] for number, some in found.items()}
        if name == "kcat":  # kcat prints headers as text
            expected = {number: [replace(m, headers=()) for m in some] for number, some in expected.items()}
            found = {number: [replace(m, headers=()) for m in some] for number, some in found.items()}
        assert found == expected, f"{name} reads something else than {writer} wrote"
        readers += 1
    assert readers >= 3
