"""Produce (0): record batches on their way in.

Each partition's batch goes to `Partition.publish` as it came, a view of the frame, before the next request begins: so
pipelined requests of a connection keep their order, and meet in one group commit. What acks=1 and acks=-1 wait for is
the same here; acks=0 waits for nothing, but its bytes count until they are written, and an error closes the connection,
because there is no answer to tell it. A record's header may make it conditional (core/conditions.py).
"""

from __future__ import annotations

from typing import Any

from krappy.batch import CODEC_MASK, HEADER_SIZE, LENGTH_END, MAGIC
from krappy.errors import (
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    KrappyError,
    OffsetMismatch,
    UnsupportedCompression,
)
from krappy.handlers.kafka.sources import is_internal, topic_of
from krappy.ports import KafkaSessionPort, LaterPort
from krappy.wire.kafka import Code, code_for

Message = dict[str, Any]

BY_ID_SINCE = 13  # the version from which topics are named by their ids (KIP-516)
ZSTD_SINCE = 7  # KIP-110
ZSTD = 4
NO_ANSWER, LEADER, ALL = 0, 1, -1


def produce(session: KafkaSessionPort, request: Message, version: int) -> LaterPort:
    acks = request["acks"]
    laters: list[Any] = []
    waiting: list[tuple[Message, bool, Any]] = []  # (the answer to complete, LogAppendTime, partition) of each later
    responses = []
    for data in request["topic_data"]:
        name, uuid = data["name"], data["topic_id"]
        topic = topic_of(session, name, uuid, version >= BY_ID_SINCE, reading=False)
        answers: list[Message] = []
        responses.append({"name": name, "topic_id": uuid, "partition_responses": answers})
        for asked in data["partition_data"]:
            answer: Message = {"index": asked["index"], "error_code": 0, "base_offset": -1}
            answers.append(answer)
            if isinstance(topic, Code):
                _absent(answer, topic, topic_of(session, name, uuid, version >= BY_ID_SINCE))
                continue
            if acks not in (NO_ANSWER, LEADER, ALL):
                answer["error_code"] = Code.INVALID_REQUIRED_ACKS
                continue
            try:
                partition = topic.partition(asked["index"])
                later = partition.publish(_checked(asked["records"], version), by_header=True)
            except KrappyError as error:
                _refuse(answer, error)
                continue
            laters.append(later)
            waiting.append((answer, topic.config.log_append_time, partition))

    def finish(results: list[Any]) -> Message | None:
        for result, (answer, append_time, partition) in zip(results, waiting, strict=True):
            if isinstance(result, KrappyError):
                _refuse(answer, result)
            elif isinstance(result, Exception):
                raise result
            else:
                answer["base_offset"] = result.offset
                answer["log_start_offset"] = partition.start_offset
                if append_time:
                    answer["log_append_time_ms"] = result.timestamp
        if acks == NO_ANSWER:
            _complain(responses)
            return None
        return {"responses": responses}

    return session.gather(laters, finish)


def _checked(records: memoryview | None, version: int) -> memoryview:
    """What Kafka demands of a request's records before it looks at a partition (`ProduceRequest.validateRecords`)."""
    if records is None or len(records) < HEADER_SIZE:
        raise InvalidRecord("exactly one record batch is expected")
    if records[16] != MAGIC:
        raise InvalidRecord(f"a batch of magic {records[16]}: only version 2 of the format is taken")
    if int.from_bytes(records[8:LENGTH_END], "big", signed=True) + LENGTH_END < len(records):
        raise InvalidRecord("exactly one record batch is expected, and several came")
    if version < ZSTD_SINCE and records[22] & CODEC_MASK == ZSTD:
        raise UnsupportedCompression(f"zstd needs version {ZSTD_SINCE} of Produce")
    return records


def _absent(answer: Message, code: Code, read: Any) -> None:
    """Says why there is no topic to write to. `read`: what could be read there, or a Code."""
    answer["error_code"] = code
    if not isinstance(read, Code):
        what = "it is an internal topic" if is_internal(read) else "write to the topic that it is the table of"
        _refuse(answer, InvalidTopic(f"'{read.name}' can only be read; {what}"))


def _refuse(answer: Message, error: KrappyError) -> None:
    answer["error_code"] = code_for(error)
    answer["error_message"] = error.text
    if isinstance(error, InvalidRecord | OffsetMismatch):
        index = getattr(error, "index", None)
        if index is not None:
            wrong = [(index, error.text), *getattr(error, "others", ())]
            answer["record_errors"] = [
                {"batch_index": index, "batch_index_error_message": text} for index, text in wrong
            ]


def _complain(responses: list[Message]) -> None:
    """Raises for the first error of a request that gets no answer."""
    for topic in responses:
        for answer in topic["partition_responses"]:
            if answer["error_code"]:
                raise InvalidRequest(f"Produce with acks=0: error {int(answer['error_code'])}")
