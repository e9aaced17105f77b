"""What Kafka's consumers are given of a compacted log."""

from __future__ import annotations

from pathlib import Path

import trio

from krappy.ports import Raw
from krappy.records import batch
from krappy.types import FilePart
from tests.broker import engine


def counts(raw: Raw) -> list[int]:
    """How many records each batch has."""
    assert not isinstance(raw.records, FilePart)
    return [header.count for header, _ in batch.split(raw.records)]


def test_an_answer_has_a_record_where_there_is_one(tmp_path: Path) -> None:
    """Emptied batches alone would stop a consumer that moves on by the records it is given, as kafkajs does."""

    async def main() -> None:
        async with engine.running(tmp_path) as broker:
            config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
            topic, _ = await broker.create_topic("t", 1, config)
            partition = topic.led(0)
            await broker.catalog.skip_producer_ids(20)
            for number in range(20):
                producer = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0}
                await engine.publish(partition, 1, [b"k" if number < 19 else b"last"], **producer)
                partition.log.roll()
            await broker.wait_for_views([partition])
            await broker.housekeeper.clean(partition, broker.now_ms())
            end = partition.high_watermark
            assert counts(partition.fetch_now(0, 1 << 14, end))[0] == 0, (
                "the compaction left nothing empty: this tests nothing"
            )
            found = partition.fetch_now(0, 1, end)
            assert counts(found) == [1]
            assert (await partition.fetch(0, 1, end)).end == found.end

    trio.run(main)
