"""The record header krappy-expect-offset: in raw requests, and in the delivery reports of confluent-kafka."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from krappy.core.conditions import HEADER
from krappy.records import batch
from krappy.types import Headers
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, create, values_of
from tests.process import BrokerProcess

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas by importlib.resources.read_text
    from kafka import KafkaProducer
    from kafka.errors import InvalidRecordError

Row = tuple[bytes, bytes | None, bytes | None]  # key, value, value of the header or None


def rows(*given: Row, **more: Any) -> bytes:
    headers: list[Headers] = [() if wanted is None else ((HEADER, wanted),) for _, _, wanted in given]
    return batch.encode([row[0] for row in given], [row[1] for row in given], timestamps=1, headers=headers, **more)


def wrong(answer: dict[str, Any]) -> list[tuple[int, str]]:
    assert answer["error_code"] == Code.INVALID_RECORD
    found = [(each["batch_index"], each["batch_index_error_message"]) for each in answer["record_errors"]]
    assert answer["error_message"] == found[0][1]
    return found


@pytest.mark.parametrize("codec", range(5))
def test_a_write_on_a_condition(raw: Raw, codec: int) -> None:
    topic = f"condition-{codec}"
    raw.make(topic)
    assert raw.produce(topic, rows((b"k", b"1", b"absent"), codec=codec))["base_offset"] == 0
    refused = wrong(raw.produce(topic, rows((b"x", b"1", None), (b"k", b"2", b"absent"), codec=codec)))
    assert refused == [(1, "the key was expected absent and is at offset 0")]
    assert raw.produce(topic, rows((b"k", b"2", b"0"), codec=codec))["base_offset"] == 1
    refused = wrong(raw.produce(topic, rows((b"k", b"3", b"0"), codec=codec)))
    assert refused == [(0, "the key was expected at offset 0 and is at offset 1")]
    assert raw.produce(topic, rows((b"k", None, b"1"), codec=codec))["base_offset"] == 2
    refused = wrong(raw.produce(topic, rows((b"k", b"3", b"1"), codec=codec)))
    assert refused == [(0, "the key was expected at offset 1 and is absent")]
    assert raw.produce(topic, rows((b"k", b"3", b"absent"), codec=codec))["base_offset"] == 3
    records = raw.fetch(topic, 3)["records"]
    [(_, view)] = batch.split(records)
    assert batch.decode(bytes(view)).headers == [((HEADER, b"absent"),)], "it is stored as it came"


def test_a_batch_is_written_as_a_whole_or_not_at_all(raw: Raw) -> None:
    raw.make("whole")
    raw.produce("whole", rows((b"a", b"1", None), (b"b", b"1", None)))
    answer = raw.produce(
        "whole", rows((b"c", b"1", b"absent"), (b"a", b"2", b"9"), (b"d", b"1", None), (b"b", b"2", b"8"))
    )
    assert [index for index, _ in wrong(answer)] == [1, 3]
    assert raw.fetch("whole", 0)["high_watermark"] == 2


def test_what_stands_before_in_the_same_batch_counts(raw: Raw) -> None:
    raw.make("same")
    answer = raw.produce("same", rows((b"k", b"1", b"absent"), (b"k", b"2", b"absent")))
    assert wrong(answer) == [(1, "the key was expected absent and is at offset 0")]
    answer = raw.produce("same", rows((b"k", b"1", b"absent"), (b"k", None, None), (b"k", b"2", b"absent")))
    assert answer["base_offset"] == 0


def test_pipelined_writers_of_one_key_take_turns(raw: Raw, broker: BrokerProcess) -> None:
    """Many believe the same, and one of them is right."""
    raw.make("race")
    connections = [Raw(broker.kafka) for _ in range(10)]
    for number, each in enumerate(connections):
        for _ in range(3):
            body = {"index": 0, "records": rows((b"k", b"%d" % number, b"absent"))}
            topic = {"name": "race", "partition_data": [body]}
            each.send(ApiKey.PRODUCE, {"acks": -1, "timeout_ms": 30_000, "topic_data": [topic]}, 12)
    codes = [
        each.receive()["responses"][0]["partition_responses"][0]["error_code"] for each in connections for _ in range(3)
    ]
    for each in connections:
        each.close()
    assert sorted(codes) == [Code.NONE] + [Code.INVALID_RECORD] * 29
    assert raw.fetch("race", 0)["high_watermark"] == 1


@pytest.mark.parametrize("value", [b"", b"-1", b"soon", b"99999999999999999999"])
def test_a_header_that_makes_no_sense(raw: Raw, value: bytes) -> None:
    raw.make("nonsense")
    [(index, text)] = wrong(raw.produce("nonsense", rows((b"k", b"1", None), (b"k", b"1", value))))
    assert index == 1
    assert HEADER in text


def test_without_a_view_there_is_nothing_to_decide_it_by(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "viewless", view_enable="false")
    for codec in (0, 4):
        answer = raw.produce("viewless", rows((b"k", b"1", b"absent"), codec=codec))
        assert answer["error_code"] == Code.INVALID_REQUEST
        assert "view" in answer["error_message"]
    assert raw.produce("viewless", rows((b"k", b"1", None)))["base_offset"] == 0


def test_a_retry_of_what_was_written_is_no_second_write(raw: Raw) -> None:
    """The producer is idempotent. Its condition does not hold any more, because of that very write."""
    raw.make("retry")
    id = raw.ask(ApiKey.INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout_ms": 1000})["producer_id"]
    data = rows((b"k", b"1", b"absent"), producer_id=id, producer_epoch=0, base_sequence=0)
    assert raw.produce("retry", data)["base_offset"] == 0
    assert raw.produce("retry", data)["base_offset"] == 0
    refused = rows((b"k", b"2", b"7"), producer_id=id, producer_epoch=0, base_sequence=1)
    assert raw.produce("retry", refused)["error_code"] == Code.INVALID_RECORD
    after = rows((b"k", b"3", b"0"), producer_id=id, producer_epoch=0, base_sequence=1)
    assert raw.produce("retry", after)["base_offset"] == 1, "a refused batch has used no sequence number"
    assert values_of(raw.fetch("retry", 0)["records"]) == [b"1", b"3"]


@pytest.mark.parametrize("idempotent", [False, True])
def test_confluent_kafka_reports_it(broker: BrokerProcess, idempotent: bool) -> None:
    topic = f"reports-{idempotent}"
    producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": idempotent, "linger.ms": 0})
    reports: list[tuple[KafkaError | None, int]] = []

    def write(value: bytes, wanted: bytes) -> tuple[KafkaError | None, int]:
        def told(error: KafkaError | None, message: Any) -> None:
            reports.append((error, message.offset()))

        producer.produce(topic, value, b"k", headers=[(HEADER, wanted)], on_delivery=told)
        assert producer.flush(30) == 0
        return reports[-1]

    assert write(b"1", b"absent") == (None, 0)
    error, _ = write(b"2", b"absent")
    assert error is not None
    assert (
        error.code() == KafkaError.INVALID_RECORD
    )  # librdkafka has the message's text, and its Python client does not show it
    assert write(b"2", b"0") == (None, 1)
    error, _ = write(b"3", b"0")
    assert error is not None
    assert error.code() == KafkaError.INVALID_RECORD
    assert write(b"3", b"1") == (None, 2)


def test_kafka_python_raises_it(broker: BrokerProcess) -> None:
    """Without idempotence: an idempotent producer of kafka-python ends with any error that can't be retried."""
    producer = KafkaProducer(bootstrap_servers=broker.kafka, enable_idempotence=False)
    try:

        def write(value: bytes, wanted: bytes) -> int:
            future = producer.send("raises", value, b"k", headers=[(HEADER, wanted)])
            return int(future.get(30).offset)

        assert write(b"1", b"absent") == 0
        with pytest.raises(InvalidRecordError, match="is at offset 0"):
            write(b"2", b"absent")
        assert write(b"2", b"0") == 1
    finally:
        producer.close()
