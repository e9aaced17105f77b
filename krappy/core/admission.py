"""What may be appended: the checks on one record batch that need nothing but the batch and its topic's settings."""

from __future__ import annotations

from krappy import batch as batches
from krappy.batch import BatchHeader, Columns
from krappy.errors import CorruptBatch, InvalidRecord, RecordTooLarge
from krappy.topic_config import TopicConfig


def admit(data: bytes | memoryview, config: TopicConfig) -> tuple[BatchHeader, Columns | None]:
    """Checks a producer's batch: size, CRC, structure, and what the topic demands of its records.

    Returns its header, and its decoded columns where the view or the topic's policy needed them anyway.
    The rules are Kafka's (LogValidator.java): magic 2, not a control batch, offsets dense from 0, every
    record keyed when the topic is compacted. Raises RecordTooLarge, InvalidRecord or CorruptBatch.
    """
    if len(data) > config.max_message_bytes:
        raise RecordTooLarge(
            f"a batch of {len(data)} bytes; max.message.bytes is {config.max_message_bytes}",
            limit=config.max_message_bytes,
        )
    header = batches.check(data)
    if header.size != len(data):
        raise CorruptBatch(f"exactly one record batch is expected; {len(data) - header.size} bytes follow it")
    if header.is_control:
        raise InvalidRecord("control batches are the broker's to write")
    if header.count < 1 or header.last_offset_delta != header.count - 1:
        raise InvalidRecord(f"{header.count} records do not fit a last offset delta of {header.last_offset_delta}")
    if not (config.view or config.compact):
        batches.validate(data)
        return header, None
    columns = batches.decode(data)
    if config.compact and None in columns.keys:
        index = columns.keys.index(None)
        raise InvalidRecord(f"record {index} has no key; a topic with cleanup.policy=compact needs one", index=index)
    return header, columns
