"""A batch was refused for now, and is to be sent again, while the next batches of its producer are under way. If those
were stored meanwhile, librdkafka (2.16) would take the first one for stored, too: "implicitly acked by subsequent
batch"."""

from __future__ import annotations

from pathlib import Path

import pytest

from krappy.core.refused_batches import MANY, MAX_SEQUENCE
from krappy.records import batch
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.idempotent import Idempotent, damaged
from tests.kafka.raw import Raw, produce
from tests.kafka.transactional import Transactional
from tests.process import BrokerProcess, broker_process, wait_until


@pytest.mark.parametrize("known", [0, 2])
def test_while_the_data_folder_was_away(tmp_path: Path, known: int) -> None:
    """`known`: how many batches the producer has stored before."""
    folder, away = tmp_path / "data", tmp_path / "away"
    with broker_process(folder, listen_kafka="127.0.0.1:0") as broker, Raw(broker.kafka) as raw:
        raw.make("t")
        producer = Idempotent(raw, "t")
        assert [producer.sent(each) for each in range(known)] == [Code.NONE] * known
        folder.rename(away)
        wait_until(lambda: bool(broker.events("data_folder_away")), "it is away")
        assert producer.sent(known) == Code.KAFKA_STORAGE_ERROR
        assert producer.sent(known + 1) == Code.KAFKA_STORAGE_ERROR
        away.rename(folder)
        wait_until(lambda: bool(broker.events("events_taken_again")), "it is back")
        for each in (2, 3):
            assert producer.sent(known + each) == Code.KAFKA_STORAGE_ERROR
        assert [producer.sent(known + each) for each in range(4)] == [Code.NONE] * 4
        assert raw.values("t") == [b"%d" % each for each in range(known + 4)]


def test_the_folder_goes_away_while_events_come(tmp_path: Path) -> None:
    """What the broker has taken before it notices that the folder is away waits until the folder is back."""
    folder, away = tmp_path / "data", tmp_path / "away"
    with broker_process(folder, listen_kafka="127.0.0.1:0") as broker, Raw(broker.kafka) as raw:
        for each in range(20):
            raw.make(f"t{each}")
        producers = [Idempotent(raw, f"t{each}") for each in range(20)]
        folder.rename(away)
        for producer in producers:
            raw.send(ApiKey.PRODUCE, produce(producer.topic, producer.batch(0)), 12)
        wait_until(lambda: bool(broker.events("data_folder_away")), "it is away")
        away.rename(folder)
        for _ in producers:
            [found] = raw.receive()["responses"][0]["partition_responses"]
            assert found["error_code"] in (Code.NONE, Code.KAFKA_STORAGE_ERROR)
        wait_until(lambda: bool(broker.events("events_taken_again")), "it is back")
        for producer in producers:
            assert [producer.sent(each) for each in range(2)] == [Code.NONE] * 2
            assert raw.values(producer.topic) == [b"0", b"1"]
        assert not broker.events("log_failed")


def test_in_many_partitions_at_once(tmp_path: Path) -> None:
    """Kafka's Java producer sends one request with a batch for each partition, and the next request before
    the answer."""
    folder, away, partitions = tmp_path / "data", tmp_path / "away", MANY + 5
    with broker_process(folder, listen_kafka="127.0.0.1:0") as broker, Raw(broker.kafka) as raw:
        topic = {"name": "t", "num_partitions": partitions, "replication_factor": 1}
        raw.ask(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout_ms": 60_000})
        id = raw.new_producer_id()

        def sent(sequence: int) -> set[int]:
            data = batch.encode(
                *([b"k"], [b"v"]), timestamps=1, producer_id=id, producer_epoch=0, base_sequence=sequence
            )
            body = produce("t", data)
            body["topic_data"][0]["partition_data"] = [{"index": each, "records": data} for each in range(partitions)]
            [found] = raw.ask(ApiKey.PRODUCE, body, 12)["responses"]
            return {each["error_code"] for each in found["partition_responses"]}

        folder.rename(away)
        wait_until(lambda: bool(broker.events("data_folder_away")), "it is away")
        assert sent(0) == {Code.KAFKA_STORAGE_ERROR}
        away.rename(folder)
        wait_until(lambda: bool(broker.events("events_taken_again")), "it is back")
        assert sent(1) == {Code.KAFKA_STORAGE_ERROR}
        assert [sent(each) for each in (0, 1)] == [{Code.NONE}] * 2


def test_before_there_was_the_topic(raw: Raw) -> None:
    producer = Idempotent(raw, "not-yet-there")
    assert producer.sent(0) == Code.UNKNOWN_TOPIC_OR_PARTITION
    raw.make("not-yet-there")
    assert producer.sent(1) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert [producer.sent(each) for each in range(3)] == [Code.NONE] * 3
    assert producer.sent(0, epoch=1) == Code.NONE


def test_one_that_its_producer_has_given_up_holds_up_no_new_epoch(raw: Raw) -> None:
    producer = Idempotent(raw, "given-up")
    assert producer.sent(0) == Code.UNKNOWN_TOPIC_OR_PARTITION
    raw.make("given-up")
    assert producer.sent(1) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert [producer.sent(each, epoch=1) for each in range(2)] == [Code.NONE] * 2


def test_one_that_its_producer_has_given_up_holds_up_no_next_transaction(raw: Raw) -> None:
    raw.make("given-up-transaction")
    producer = Transactional(raw).init()
    for given_up in (False, True):
        producer.add(("given-up-transaction", 0))
        assert producer.write("given-up-transaction", b"v") == Code.NONE
        if given_up:
            bad = damaged(producer.id, producer.sequences["given-up-transaction"], producer.epoch, transactional=True)
            body = produce("given-up-transaction", bad) | {"transactional_id": producer.name}
            [found] = raw.ask(ApiKey.PRODUCE, body, 11)["responses"][0]["partition_responses"]
            assert found["error_code"] == Code.CORRUPT_MESSAGE
            producer.sequences["given-up-transaction"] += 1
        assert producer.end(not given_up) == Code.NONE
    producer.add(("given-up-transaction", 0))
    assert producer.write("given-up-transaction", b"v") == Code.CORRUPT_MESSAGE
    assert producer.write("given-up-transaction", b"v") == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


BEFORE_ALL = MAX_SEQUENCE - 5  # sequences wrap, so this one is before those from 0 on


@pytest.mark.parametrize("epoch", [0, 1])
def test_what_a_stranger_sends_by_the_same_id_holds_up_nobody(broker: BrokerProcess, raw: Raw, epoch: int) -> None:
    topic = f"strange-{epoch}"
    raw.make(topic)
    producer = Idempotent(raw, topic)
    assert [producer.sent(0, each) for each in range(epoch)] == [Code.NONE] * epoch
    with Raw(broker.kafka) as stranger:
        refused = stranger.produce(topic, damaged(producer.id, BEFORE_ALL, epoch))
        assert refused["error_code"] == Code.CORRUPT_MESSAGE
    assert [producer.sent(each, epoch) for each in range(2)] == [Code.NONE] * 2


def test_what_a_stranger_sends_by_the_same_id_holds_up_no_transaction(broker: BrokerProcess, raw: Raw) -> None:
    raw.make("strange-transaction")
    producer = Transactional(raw).init()
    with Raw(broker.kafka) as stranger:
        for value in (b"0", b"1"):  # the end of each transaction raises the epoch
            refused = stranger.produce("strange-transaction", damaged(producer.id, BEFORE_ALL, producer.epoch))
            assert refused["error_code"] == Code.CORRUPT_MESSAGE
            assert producer.write("strange-transaction", value, version=12) == Code.NONE
            assert producer.end(True, version=5) == Code.NONE


def test_what_a_stranger_sends_lets_no_batches_overtake_each_other(broker: BrokerProcess, raw: Raw) -> None:
    raw.make("strange-order")
    producer = Idempotent(raw, "strange-order")
    with Raw(broker.kafka) as stranger:
        for epoch in (1, 2**15 - 1):
            stranger.produce("strange-order", damaged(producer.id, 0, epoch))
    assert raw.produce("strange-order", damaged(producer.id, 0))["error_code"] == Code.CORRUPT_MESSAGE
    assert producer.sent(1) == Code.CORRUPT_MESSAGE
    assert [producer.sent(each) for each in range(2)] == [Code.NONE] * 2
