"""compression.type: what the broker makes of batches that came with another compression."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.records import batch, codecs
from krappy.records.batch import BatchHeader
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, create
from tests.peer import Peer
from tests.process import BrokerProcess

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
VALUES = [b"%d of many, much alike" % number for number in range(200)]


def produced(codec: int, **more: Any) -> bytes:
    keys = [b"key-%d" % number for number in range(len(VALUES))]
    return batch.encode(keys, VALUES, timestamps=7000, codec=codec, **more)


def stored(raw: Raw, topic: str) -> list[tuple[BatchHeader, bytes]]:
    records = raw.fetch(topic, 0)["records"]
    return [(header, bytes(data)) for header, data in batch.split(records)]


@pytest.mark.parametrize("wanted", CODECS)
def test_batches_are_stored_as_the_topic_has_it(raw: Raw, broker: BrokerProcess, wanted: str) -> None:
    topic = f"as-{wanted}"
    create(broker, topic, compression_type=wanted)
    producer = raw.new_producer_id()
    for count, codec in enumerate(CODECS.values()):
        sent = produced(codec, producer_id=producer, producer_epoch=0, base_sequence=count * len(VALUES))
        assert raw.produce(topic, sent)["base_offset"] == count * len(VALUES)
        again = raw.produce(topic, sent)
        assert (again["error_code"], again["base_offset"]) == (0, count * len(VALUES)), "a retry is known as one"
    found = stored(raw, topic)
    assert len(found) == len(CODECS)
    for count, (header, data) in enumerate(found):
        assert header.codec == CODECS[wanted]
        assert (header.producer_id, header.producer_epoch) == (producer, 0)
        assert (header.base_sequence, header.base_offset) == (count * len(VALUES), count * len(VALUES))
        assert (header.count, header.max_timestamp) == (len(VALUES), 7000)
        assert batch.decode(data).values == VALUES
    with Peer(broker.address) as peer:
        entry = peer.get(topic, b"key-5")
        assert entry is not None
        assert entry[2] == VALUES[5]


def test_by_default_a_batch_stays_as_it_came_byte_by_byte(raw: Raw) -> None:
    raw.make("as-it-came")
    sent = produced(codecs.GZIP)
    raw.produce("as-it-came", sent)
    [(_, data)] = stored(raw, "as-it-came")
    assert data[batch.STAMPED :] == sent[batch.STAMPED :]


def test_a_batch_that_grows_over_the_limit_is_refused_and_the_next_is_taken(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "grows", compression_type="uncompressed", max_message_bytes="3000")
    large = batch.encode([b"k"], [b"x" * 50_000], timestamps=1, codec=codecs.ZSTD)
    assert len(large) < 3000
    assert raw.produce("grows", large)["error_code"] == Code.MESSAGE_TOO_LARGE
    assert raw.produce("grows", batch.encode([b"k"], [b"v"], timestamps=1))["base_offset"] == 0


def test_conditional_batches_are_decided_as_ever(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "conditional", compression_type="zstd")
    absent = batch.encode([b"k"], [b"v"], timestamps=1, headers=[(("krappy-expect-offset", b"absent"),)])
    assert raw.produce("conditional", absent)["error_code"] == 0
    assert raw.produce("conditional", absent)["error_code"] == Code.INVALID_RECORD
    [(header, _)] = stored(raw, "conditional")
    assert header.codec == codecs.ZSTD


def test_transactional_batches_and_their_markers(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "in-transaction", compression_type="lz4")
    begun = raw.ask(ApiKey.INIT_PRODUCER_ID, {"transactional_id": "lz4", "transaction_timeout_ms": 60_000})
    producer = {"producer_id": begun["producer_id"], "producer_epoch": begun["producer_epoch"]}
    asked = {"transactional_id": "lz4", "topics": [{"name": "in-transaction", "partitions": [0]}], **producer}
    raw.ask(ApiKey.ADD_PARTITIONS_TO_TXN, {f"v3_and_below_{key}": value for key, value in asked.items()}, 3)
    records = produced(codecs.NONE, transactional=True, base_sequence=0, **producer)
    body = {
        "transactional_id": "lz4",
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": "in-transaction", "partition_data": [{"index": 0, "records": records}]}],
    }
    [topic] = raw.ask(ApiKey.PRODUCE, body, 11)["responses"]
    assert topic["partition_responses"][0]["error_code"] == 0
    assert raw.ask(ApiKey.END_TXN, {"transactional_id": "lz4", "committed": True, **producer}, 3)["error_code"] == 0
    written, marker = (header for header, _ in stored(raw, "in-transaction"))
    assert (written.codec, written.is_transactional) == (codecs.LZ4, True)
    assert (marker.codec, marker.is_control) == (codecs.NONE, True)


def test_it_counts_from_when_it_is_changed_and_for_native_producers_too(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "changed")
    with Peer(broker.address) as peer:
        handle = peer.producer("changed").handle
        for setting in (None, "gzip"):
            if setting is not None:
                peer.ask(m.AlterTopic("changed", {"compression.type": setting}), m.TopicAltered)
            peer.ask(m.Message(handle, b"v", b"k"), m.MessageStored)
    assert [header.codec for header, _ in stored(raw, "changed")] == [codecs.NONE, codecs.GZIP]
