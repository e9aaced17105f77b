"""What the tests of the clients share."""

from __future__ import annotations

from typing import Any

import krappy


async def fill(client: krappy.Client, topic: str, count: int, partitions: int = 1, **config: Any) -> None:
    await client.create_topic(topic, partitions, config or None)
    async with client.producer(topic, batch_bytes=2000) as producer:
        for partition in range(partitions):
            values: list[Any] = [b"%d:%d" % (partition, number) for number in range(count)]
            await producer.send_columns(None, values, partition=partition, timestamps=list(range(1000, 1000 + count)))


async def truth(client: krappy.Client, topic: str, keys: list[Any]) -> dict[bytes, bytes | None]:
    entries = await client.table(topic).get_many(keys)
    return {entry.key: entry.value for entry in entries if entry is not None}
