"""Live views of partitions that other brokers lead, when those brokers are slow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from krappy.console.elsewhere import ElsewherePartition
from krappy.console.tail import TailQuery, TailView
from krappy.records import batch

WAIT_S = 0.3


def test_what_a_tail_waits_for_another_broker_is_not_of_this_ones_time() -> None:
    """All live views share a small part of this broker's time. If waiting counted, they would stand still for half a
    minute when another broker stood still for a second."""
    data = batch.encode([b"k"], [b"v"], timestamps=1)
    spent, sent = list[float](), list[str]()

    async def read(*_: object) -> tuple[bytes, int]:
        await trio.sleep(WAIT_S)
        return data, 1

    async def turn() -> None:
        await trio.lowlevel.checkpoint()

    async def send(event: str, *_: object) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(event)

    async def main() -> None:
        topic: Any = SimpleNamespace(name="t", id=bytes(16), deleted=False, count=1)
        told: Any = SimpleNamespace(partition=0, start=0, last_stable_offset=0, high_watermark=0, size=0)
        gateway: Any = SimpleNamespace(read=read)
        partition = ElsewherePartition(gateway, topic, told)
        call: Any = SimpleNamespace(
            broker=SimpleNamespace(stopped=False),
            gateway=gateway,
            pacer=SimpleNamespace(spent=spent.append, turn=turn),
            binary=False,
            request=SimpleNamespace(headers={}),
        )
        view = TailView(call, topic, [partition], TailQuery(), grows=False)
        partition.last_stable_offset = partition.high_watermark = 1
        await view._look(partition, 10, send)

    trio.run(main)
    assert sent == ["events"]
    assert 0 < sum(spent) < WAIT_S
