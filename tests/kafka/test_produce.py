"""Produce: what is taken, what is refused and with which code, and in which order answers come."""

from __future__ import annotations

from time import time_ns

import pytest

from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code, encode_request
from tests.kafka.raw import Raw, create, produce, values_of
from tests.peer import Peer
from tests.process import BrokerProcess, wait_until


def one(value: bytes = b"v", key: bytes | None = b"k", **more: object) -> bytes:
    return batch.encode([key], [value], timestamps=1000, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_stores_and_says_where(raw: Raw, version: int) -> None:
    topic = f"versions-{version}"
    uuid = raw.make(topic)
    for count, expected in ((1, 0), (3, 1), (1, 4)):
        body = produce(topic, batch.encode(None, [b"x"] * count, timestamps=5))
        body["topic_data"][0]["topic_id"] = uuid
        (responses,) = raw.ask(ApiKey.PRODUCE, body, version)["responses"]
        (found,) = responses["partition_responses"]
        assert (found["error_code"], found["base_offset"], found["log_append_time_ms"]) == (0, expected, -1)
        assert (responses["topic_id"] == uuid) if version >= 13 else (responses["name"] == topic)
    assert len(raw.values(topic)) == 5


@pytest.mark.parametrize("acks", [1, -1])
def test_acks_1_and_all_are_the_same_where_there_is_one_replica(raw: Raw, acks: int) -> None:
    raw.make("acked")
    assert raw.produce("acked", one(), acks=acks)["error_code"] == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_other_acks_do_not_exist(raw: Raw, acks: int) -> None:
    raw.make("acked")
    assert raw.produce("acked", one(), acks=acks)["error_code"] == Code.INVALID_REQUIRED_ACKS


def test_acks_0_is_stored_and_not_answered(raw: Raw) -> None:
    raw.make("unanswered")
    raw.send_bytes(encode_request(ApiKey.PRODUCE, 9, 77, "raw", produce("unanswered", one(b"quiet"), acks=0)))
    assert raw.ask(ApiKey.METADATA, {"topics": []})["brokers"]  # the next answer is that to this request
    assert raw.values("unanswered", max_wait_ms=10_000) == [b"quiet"]


def test_an_error_with_acks_0_closes_the_connection(raw: Raw) -> None:
    raw.make("unanswered")
    damaged = bytearray(one())
    damaged[-1] ^= 1
    raw.send_bytes(encode_request(ApiKey.PRODUCE, 9, 77, "raw", produce("unanswered", bytes(damaged), acks=0)))
    assert raw.closed()


def _damaged() -> bytes:
    data = bytearray(one())
    data[-1] ^= 1
    return bytes(data)


def _old_format() -> bytes:
    data = bytearray(one())
    data[16] = 1
    return bytes(data)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, Code.INVALID_RECORD),
        (b"", Code.INVALID_RECORD),
        (b"\0" * 61, Code.INVALID_RECORD),
        (one() + one(), Code.INVALID_RECORD),
        (_damaged(), Code.CORRUPT_MESSAGE),
        (one()[:-1], Code.CORRUPT_MESSAGE),
        (_old_format(), Code.INVALID_RECORD),
        (one(control=True), Code.INVALID_RECORD),
        (one(log_append_time=True), Code.INVALID_TIMESTAMP),
        (batch.encode(None, [b"x", b"y"], timestamps=1, offsets=[0, 5]), Code.INVALID_RECORD),
        (batch.encode(None, [b"x" * 2_000_000], timestamps=1), Code.MESSAGE_TOO_LARGE),
    ],
)
def test_what_is_refused_and_why(raw: Raw, records: bytes | None, code: Code) -> None:
    raw.make("strict")
    before = raw.fetch("strict", 0)["high_watermark"]
    found = raw.ask(ApiKey.PRODUCE, produce("strict", records), 12)["responses"][0]["partition_responses"][0]
    assert (found["error_code"], found["base_offset"]) == (code, -1)
    assert found["error_message"]
    assert raw.fetch("strict", 0)["high_watermark"] == before


def test_zstd_needs_version_7(raw: Raw) -> None:
    raw.make("zstd")
    records = one(codec=4)
    assert raw.produce("zstd", records, version=6)["error_code"] == Code.UNSUPPORTED_COMPRESSION_TYPE
    assert raw.produce("zstd", records, version=7)["error_code"] == 0


@pytest.mark.parametrize("codec", range(5))
def test_compressed_batches_come_back_as_they_went(raw: Raw, codec: int) -> None:
    topic = f"codec-{codec}"
    raw.make(topic)
    records = batch.encode(None, [b"again and again" * 20] * 50, timestamps=1, codec=codec)
    assert raw.produce(topic, records)["error_code"] == 0
    back = bytes(raw.fetch(topic, 0)["records"])
    assert back[21:] == records[21:]


def test_a_compacted_topic_wants_keys_and_says_which_record_has_none(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "compacted", cleanup_policy="compact")
    found = raw.produce("compacted", batch.encode([b"a", None, b"b"], [b"1", b"2", b"3"], timestamps=1))
    assert found["error_code"] == Code.INVALID_RECORD
    (wrong,) = found["record_errors"]
    assert wrong["batch_index"] == 1
    assert "key" in wrong["batch_index_error_message"]


def test_every_record_without_a_key_is_named_but_no_endless_list_of_them(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "compacted-too", cleanup_policy="compact")
    keys = [b"a", None, b"b", None, None]
    found = raw.produce("compacted-too", batch.encode(keys, [b"1"] * 5, timestamps=1))
    assert [wrong["batch_index"] for wrong in found["record_errors"]] == [1, 3, 4]
    assert "record 3" in found["record_errors"][1]["batch_index_error_message"]
    found = raw.produce("compacted-too", batch.encode(None, [b""] * 5000, timestamps=1))
    assert [wrong["batch_index"] for wrong in found["record_errors"]] == list(range(1000))


TIMES = [1000, -1, 5000]


@pytest.mark.parametrize("view", ["true", "false"])
@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("wrong", [-2, -1000, -(2**40), -(2**62), -(2**63)])
def test_a_timestamp_before_1970_is_refused_and_named(
    raw: Raw, broker: BrokerProcess, wrong: int, codec: int, view: str
) -> None:
    """In topics with a table and without, in a batch of one layout and of several, at the start and in the middle."""
    topic = f"times{wrong}-{codec}-{view}"
    create(broker, topic, view_enable=view)
    for times in ([wrong], [0, wrong], [5, wrong, wrong, 5], [1] * 30 + [wrong] + [1] * 30, [wrong] * 40):
        if max(times) - wrong >= 2**63:
            continue  # no batch can hold both timestamps
        for values in ([b"v"] * len(times), [b"v" * (n % 3) for n in range(len(times))]):
            found = raw.produce(topic, batch.encode(None, values, timestamps=times, codec=codec))
            assert (found["error_code"], found["base_offset"]) == (Code.INVALID_TIMESTAMP, -1)
            named = [each["batch_index"] for each in found["record_errors"]]
            assert named == [index for index, time in enumerate(times) if time == wrong]
            assert f"has the timestamp {wrong}," in found["record_errors"][0]["batch_index_error_message"]
    assert raw.fetch(topic, 0)["high_watermark"] == 0


@pytest.mark.parametrize("view", ["true", "false"])
def test_timestamps_far_from_the_brokers_clock_are_refused_and_named(
    raw: Raw, broker: BrokerProcess, view: str
) -> None:
    """By default, these are timestamps more than an hour ahead, as in Kafka. What is stored stays readable when the
    limits change."""
    topic, hour, now = f"far-{view}", 3_600_000, time_ns() // 1_000_000
    create(broker, topic, view_enable=view)
    for times in ([now - 40 * 365 * 24 * hour], [0], [-1], [now], [now + hour // 2]):
        assert raw.produce(topic, batch.encode(None, [b"v"], timestamps=times))["error_code"] == 0
    for wrong in (now + 2 * hour, now * 1000, now * 1_000_000, 2**63 - 1):
        found = raw.produce(topic, batch.encode(None, [b"v"] * 3, timestamps=[now, wrong, -1 if wrong < 2**62 else 0]))
        assert (found["error_code"], found["base_offset"]) == (Code.INVALID_TIMESTAMP, -1)
        assert [each["batch_index"] for each in found["record_errors"]] == [1]
        assert "message.timestamp.after.max.ms is 3600000" in found["record_errors"][0]["batch_index_error_message"]
    with Peer(broker.address) as peer:
        limits = {"message.timestamp.after.max.ms": 0, "message.timestamp.before.max.ms": hour}
        peer.ask(m.AlterTopic(topic, limits), m.TopicAltered)
    for times, code in (([now - hour // 2, -1], 0), ([-1], 0), ([now, 0], 32), ([now + hour // 2], 32)):
        assert raw.produce(topic, batch.encode(None, [b"v"] * len(times), timestamps=times))["error_code"] == code
    read = [time for _, data in batch.split(raw.fetch(topic, 0)["records"]) for time in batch.decode(data).timestamps]
    assert read == [now - 40 * 365 * 24 * hour, 0, -1, now, now + hour // 2, now - hour // 2, -1, -1]


@pytest.mark.parametrize("view", ["true", "false"])
def test_no_timestamp_is_one_as_in_kafka(raw: Raw, broker: BrokerProcess, view: str) -> None:
    topic = f"timeless-{view}"
    create(broker, topic, view_enable=view)
    for times in ([-1], TIMES, [-1] * 20):
        found = raw.produce(topic, batch.encode([b"k"] * len(times), [b"v"] * len(times), timestamps=times))
        assert (found["error_code"], found["log_append_time_ms"]) == (0, -1)
    read = [time for _, data in batch.split(raw.fetch(topic, 0)["records"]) for time in batch.decode(data).timestamps]
    assert read == [-1, *TIMES, *[-1] * 20]


@pytest.mark.parametrize("view", ["true", "false"])
def test_where_the_broker_stamps_events_what_they_bore_is_nothing(raw: Raw, broker: BrokerProcess, view: str) -> None:
    topic = f"stamped-anyway-{view}"
    create(broker, topic, message_timestamp_type="LogAppendTime", view_enable=view)
    for time in (-1, -5, -(2**63), 2**63 - 1):
        found = raw.produce(topic, batch.encode([b"k"], [b"v"], timestamps=time))
        assert found["error_code"] == 0
        assert found["log_append_time_ms"] > 1_600_000_000_000


def test_log_append_time_is_told(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "stamped", message_timestamp_type="LogAppendTime")
    found = raw.produce("stamped", one())
    assert found["log_append_time_ms"] > 1_600_000_000_000
    (header,) = [batch.read_header(data) for _, data in batch.split(raw.fetch("stamped", 0)["records"])]
    assert (header.log_append_time, header.max_timestamp) == (True, found["log_append_time_ms"])


def test_there_is_no_such_topic_or_partition(raw: Raw) -> None:
    raw.make("here")
    assert raw.produce("not-here", one())["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.produce("here", one(), index=1)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.produce("here", one(), index=-1)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.produce("here@latest", one())["error_code"] == Code.INVALID_TOPIC_EXCEPTION
    body = produce("", one())
    body["topic_data"][0]["topic_id"] = b"?" * 16
    (found,) = raw.ask(ApiKey.PRODUCE, body, 13)["responses"][0]["partition_responses"]
    assert found["error_code"] == Code.UNKNOWN_TOPIC_ID


def test_one_partition_s_error_is_not_another_s(raw: Raw) -> None:
    raw.make("mixed")
    body = produce("mixed", one())
    body["topic_data"][0]["partition_data"].append({"index": 9, "records": one()})
    body["topic_data"].append({"name": "nowhere", "partition_data": [{"index": 0, "records": one()}]})
    answer = raw.ask(ApiKey.PRODUCE, body, 12)["responses"]
    codes = [[found["error_code"] for found in topic["partition_responses"]] for topic in answer]
    assert codes == [[0, 3], [3]]


def test_no_partitions_at_all(raw: Raw) -> None:
    assert raw.ask(ApiKey.PRODUCE, {"acks": -1, "topic_data": []}, 12)["responses"] == []


def test_idempotence(raw: Raw) -> None:
    raw.make("once")
    first, second = raw.new_producer_id(), raw.new_producer_id()

    def send(sequence: int, count: int = 1, epoch: int = 0, producer: int = first) -> tuple[int, int]:
        records = batch.encode(
            None, [b"x"] * count, timestamps=1, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
        )
        found = raw.produce("once", records)
        return found["error_code"], found["base_offset"]

    assert send(0, 2) == (0, 0)
    assert send(2) == (0, 2)
    assert send(0, 2) == (0, 0)  # a retry: success, with the original offset
    assert send(4) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(1, epoch=1) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(0, epoch=1) == (0, 3)
    assert send(3) == (Code.INVALID_PRODUCER_EPOCH, -1)
    assert send(2**31 - 1, producer=second) == (0, 4)  # from an unknown producer any sequence is taken
    assert send(0, producer=second) == (0, 5)  # sequences wrap
    assert send(0, producer=second + 1) == (Code.UNKNOWN_PRODUCER_ID, -1)  # nobody was given this id


def test_pipelined_requests_keep_their_order(raw: Raw) -> None:
    raw.make("pipelined")
    count = 3000
    requests = [
        encode_request(ApiKey.PRODUCE, 9, number, "raw", produce("pipelined", one(b"%d" % number)))
        for number in range(count)
    ]
    raw.send_bytes(b"".join(requests))
    for number in range(count):
        frame = raw.receive_frame()
        assert int.from_bytes(frame[:4], "big") == number
    values: list[bytes | None] = []
    while len(values) < count:
        values += raw.values("pipelined", len(values))
    assert values == [b"%d" % number for number in range(count)]


def test_answers_keep_the_order_of_different_requests(raw: Raw) -> None:
    raw.make("ordered")
    for number in range(50):
        raw.send(ApiKey.PRODUCE, produce("ordered", one(b"%d" % number)), 9)
        raw.send(ApiKey.METADATA, {"topics": [{"name": f"made-{number % 7}"}]})
        raw.send(ApiKey.API_VERSIONS, {"client_software_name": "raw", "client_software_version": "1"})
    for number in range(50):
        assert raw.receive()["responses"][0]["partition_responses"][0]["base_offset"] == number
        assert raw.receive()["topics"][0]["error_code"] == 0
        assert raw.receive()["error_code"] == 0


def test_large_batches_in_frames_of_their_own(raw: Raw) -> None:
    raw.make("large")
    records = batch.encode(None, [bytes([number]) * 1000 for number in range(200)] * 4, timestamps=1)
    assert len(records) > 800_000
    for number in range(5):
        assert raw.produce("large", records)["base_offset"] == number * 800
    back = raw.fetch("large", 800, partition_max_bytes=3 << 20)["records"]
    assert len(values_of(back)) == 2400


def test_what_is_published_by_one_protocol_is_read_by_the_other(raw: Raw, broker: BrokerProcess) -> None:
    raw.make("both")
    assert raw.produce("both", one(b"from kafka", b"k"))["error_code"] == 0
    with Peer(broker.address) as peer:
        entry = peer.get("both", b"k")
        assert entry is not None
        assert entry[2] == b"from kafka"


def test_a_producer_that_leaves_is_forgotten(broker: BrokerProcess) -> None:
    before = broker.sockets
    with Raw(broker.kafka) as raw:
        raw.make("left")
        for _ in range(100):
            raw.send(ApiKey.PRODUCE, produce("left", one()), 9)
    wait_until(lambda: broker.sockets <= before, "the connection is closed")


def test_half_a_frame_and_silence_is_ended_when_the_peer_leaves(broker: BrokerProcess) -> None:
    before = broker.sockets
    raw = Raw(broker.kafka)
    raw.send_bytes(b"\0\0\1\0abc")
    raw.close()
    wait_until(lambda: broker.sockets <= before, "the connection is closed")
