"""An idempotent producer for one partition, over the bare client."""

from __future__ import annotations

import struct

from krappy.records import batch
from krappy.records.checksum import crc32c
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, produce


class Idempotent:
    """Each batch is one event, whose value is its sequence."""

    def __init__(self, raw: Raw, topic: str, index: int = 0) -> None:
        self.raw, self.topic, self.index = raw, topic, index
        self.id = raw.new_producer_id()

    def batch(self, sequence: int, epoch: int = 0) -> bytes:
        return batch.encode(
            [b"k"],
            [b"%d" % sequence],
            timestamps=1000,
            producer_id=self.id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )

    def sent(self, sequence: int, epoch: int = 0) -> Code:
        answer = self.raw.ask(ApiKey.PRODUCE, produce(self.topic, self.batch(sequence, epoch), self.index), 12)
        [found] = answer["responses"][0]["partition_responses"]
        return Code(found["error_code"])


def damaged(id: int, sequence: int, epoch: int = 0, *, transactional: bool = False) -> bytes:
    """A large batch under a right CRC, whose records are none: that is noticed only when its turn has come."""
    data = bytearray(
        batch.encode(
            [b"k"],
            [bytes(200_000)],
            timestamps=1000,
            producer_id=id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )
    data[batch.HEADER_SIZE : batch.HEADER_SIZE + 20] = b"\xff" * 20
    struct.pack_into(">I", data, batch.CRC_START - 4, crc32c(data[batch.CRC_START :]))
    return bytes(data)
