"""The codec as a table: each (message, bytes) is written, read whole, cut at every byte, and read with more bytes
behind it (which a request may have and a response may not).

The bytes are written out by hand from Kafka's protocol guide and KIP-482. So they also find mistakes that the writer
and the reader of the codec share. `records` are any bytes here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from krappy.errors import ProtocolError
from krappy.wire.kafka import ApiKey, decode_request, decode_response, encode_request, encode_response, parse_header
from tests.wire.kafka.samples import plain

TOPIC_ID = bytes(range(16))


class Case(NamedTuple):
    """`message`: what is written, and must be among what is read. `text`: everything behind the size, as hex; `#`
    begins a remark."""

    key: ApiKey
    version: int
    message: dict[str, Any]
    text: str

    @property
    def frame(self) -> bytes:
        """The frame with its size."""
        body = bytes.fromhex("".join(line.partition("#")[0] for line in self.text.splitlines()))
        return len(body).to_bytes(4, "big") + body


REQUESTS = [
    Case(
        ApiKey.API_VERSIONS,
        0,
        {},
        """
        0012 0000 00000007  # key 18, version 0, correlation id
        0002 6d65                    # client id "me"
        """,
    ),
    Case(
        ApiKey.API_VERSIONS,
        3,
        {"client_software_name": "x", "client_software_version": "1.0"},
        """
        0012 0003 00000007
        0002 6d65                    # the old form of a string
        00                           # no tagged fields in the header
        02 78                        # "x": its length and one
        04 312e30
        00
        """,
    ),
    Case(
        ApiKey.PRODUCE,
        7,
        {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 1500,
            "topic_data": [{"name": "t", "partition_data": [{"index": 2, "records": b"\xaa\xbb"}, {"index": 3}]}],
        },
        """
        0000 0007 00000007 0002 6d65
        ffff ffff 000005dc           # no transactional id, acks, timeout
        00000001 0001 74             # one topic, "t"
        00000002                     # two partitions
        00000002 00000002 aabb
        00000003 ffffffff            # no records
        """,
    ),
    Case(
        ApiKey.PRODUCE,
        13,
        {
            "transactional_id": "x",
            "acks": 1,
            "timeout_ms": 1500,
            "topic_data": [{"topic_id": TOPIC_ID, "partition_data": [{"index": 2, "records": b"\xaa\xbb"}]}],
        },
        """
        0000 000d 00000007 0002 6d65 00
        02 78 0001 000005dc
        02 000102030405060708090a0b0c0d0e0f
        02 00000002 03 aabb 00       # one partition: index, records, no tagged fields
        00 00
        """,
    ),
    Case(
        ApiKey.FETCH,
        12,
        {"cluster_id": "c", "replica_id": -1, "max_wait_ms": 1, "min_bytes": 1, "max_bytes": 2, "session_epoch": -1},
        """
        0001 000c 00000007 0002 6d65 00
        ffffffff 00000001 00000001 00000002 00
        00000000 ffffffff            # session id and epoch
        01 01 01                     # no topics, no forgotten topics, no rack
        01 00 02 0263                # one tagged field: tag 0, two bytes, "c"
        """,
    ),
    Case(
        ApiKey.METADATA,
        0,
        {"topics": []},
        """
        0003 0000 00000007 0002 6d65
        00000000                     # all topics
        """,
    ),
    Case(
        ApiKey.METADATA,
        4,
        {"topics": None, "allow_auto_topic_creation": False},
        """
        0003 0004 00000007 0002 6d65
        ffffffff 00
        """,
    ),
    Case(
        ApiKey.METADATA,
        12,
        {"topics": [{"topic_id": TOPIC_ID, "name": None}], "allow_auto_topic_creation": True},
        """
        0003 000c 00000007 0002 6d65 00
        02 000102030405060708090a0b0c0d0e0f 00 00
        01 00 00
        """,
    ),
    Case(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [{"name": "t"}], "response_partition_limit": 2000, "cursor": None},
        """
        004b 0000 00000007 0002 6d65 00
        02 02 74 00
        000007d0
        ff                           # no struct
        00
        """,
    ),
    Case(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [], "response_partition_limit": 1, "cursor": {"topic_name": "t", "partition_index": 5}},
        """
        004b 0000 00000007 0002 6d65 00
        01 00000001
        01 02 74 00000005 00         # a struct
        00
        """,
    ),
]

RESPONSES = [
    Case(
        ApiKey.API_VERSIONS,
        0,
        {"error_code": 35, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}]},
        """
        00000007 0023 00000001 0012 0000 0004
        """,
    ),
    Case(
        ApiKey.API_VERSIONS,
        3,
        {
            "error_code": 0,
            "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}],
            "throttle_time_ms": 0,
            "supported_features": [],
            "finalized_features_epoch": 300,
        },
        """
        00000007            # no tagged fields in this response's header, in no version
        0000 02 0012 0000 0004 00
        00000000
        01 01 08 000000000000012c    # tag 1
        """,
    ),
    Case(
        ApiKey.FETCH,
        4,
        {
            "throttle_time_ms": 0,
            "responses": [
                {
                    "topic": "t",
                    "partitions": [
                        {
                            "partition_index": 1,
                            "error_code": 0,
                            "high_watermark": 9,
                            "last_stable_offset": 8,
                            "aborted_transactions": [{"producer_id": 3, "first_offset": 4}],
                            "records": b"\xaa\xbb\xcc",
                        }
                    ],
                }
            ],
        },
        """
        00000007 00000000
        00000001 0001 74 00000001
        00000001 0000 0000000000000009 0000000000000008
        00000001 0000000000000003 0000000000000004
        00000003 aabbcc
        """,
    ),
    Case(
        ApiKey.FETCH,
        16,
        {
            "throttle_time_ms": 0,
            "error_code": 0,
            "session_id": 0,
            "responses": [
                {
                    "topic_id": TOPIC_ID,
                    "partitions": [
                        {
                            "partition_index": 1,
                            "error_code": 6,
                            "high_watermark": -1,
                            "last_stable_offset": -1,
                            "log_start_offset": -1,
                            "current_leader": {"leader_id": 2, "leader_epoch": 5},
                            "aborted_transactions": None,
                            "preferred_read_replica": -1,
                            "records": b"",
                        }
                    ],
                }
            ],
            "node_endpoints": [{"node_id": 2, "host": "h", "port": 9092, "rack": None}],
        },
        """
        00000007 00         # tagged fields of the header: none
        00000000 0000 00000000
        02 000102030405060708090a0b0c0d0e0f
        02 00000001 0006 ffffffffffffffff ffffffffffffffff ffffffffffffffff
        00 ffffffff 01               # no aborted transactions, no replica, no bytes
        01 01 09 00000002 00000005 00
        00
        01 00 0d 02 00000002 02 68 00002384 00 00
        """,
    ),
    Case(
        ApiKey.SASL_HANDSHAKE,
        0,
        {"error_code": 0, "mechanisms": ["PLAIN", "X"]},
        """
        00000007 0000 00000002 0005 504c41494e 0001 58
        """,
    ),
    Case(
        ApiKey.SASL_HANDSHAKE,
        1,
        {"error_code": 33, "mechanisms": ["PLAIN"]},
        """
        00000007 0021 00000001 0005 504c41494e
        """,
    ),
    Case(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        0,
        {
            "throttle_time_ms": 0,
            "error_code": 0,
            "error_message": None,
            "member_id": "m",
            "member_epoch": 1,
            "heartbeat_interval_ms": 5000,
            "assignment": {"topic_partitions": [{"topic_id": TOPIC_ID, "partitions": [0, 7]}]},
        },
        """
        00000007 00
        00000000 0000 00 02 6d 00000001 00001388
        01 02 000102030405060708090a0b0c0d0e0f 03 00000000 00000007 00 00
        00
        """,
    ),
]


def name(case: Case) -> str:
    return f"{case.key.name}-{case.version}"


def contains(found: Any, given: Any) -> bool:
    """Whether what was read has what was written; keys that were left out have their defaults."""
    if isinstance(given, dict):
        return isinstance(found, dict) and all(contains(found[key], given[key]) for key in given)
    if isinstance(given, list):
        return len(found) == len(given) and all(map(contains, found, given))
    return bool(found == given)


@pytest.mark.parametrize("case", REQUESTS, ids=name)
def test_requests(case: Case) -> None:
    assert encode_request(case.key, case.version, 7, "me", case.message).hex() == case.frame.hex()
    frame = memoryview(case.frame)[4:]
    header = parse_header(frame)
    assert header[:4] == (case.key, case.version, 7, "me")
    assert contains(plain(decode_request(case.key, case.version, frame[header.body_at :])), case.message)
    for cut in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_request(case.key, case.version, frame[parse_header(frame[:cut]).body_at : cut])
    longer = memoryview(bytes(frame) + b"\0")[header.body_at :]
    assert contains(plain(decode_request(case.key, case.version, longer)), case.message), (
        "as Kafka, it looks no further"
    )


@pytest.mark.parametrize("case", RESPONSES, ids=name)
def test_responses(case: Case) -> None:
    assert b"".join(encode_response(case.key, case.version, 7, case.message)).hex() == case.frame.hex()
    frame = memoryview(case.frame)[4:]
    correlation_id, found = decode_response(case.key, case.version, frame)
    assert correlation_id == 7
    assert contains(plain(found), case.message)
    for cut in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_response(case.key, case.version, frame[:cut])
    with pytest.raises(ProtocolError, match="1 bytes too many"):
        decode_response(case.key, case.version, memoryview(bytes(frame) + b"\0"))


@pytest.mark.parametrize("version", [11, 12, 13])
def test_librdkafka_asks_for_all_topics_in_three_bytes_more(version: int) -> None:
    asked = decode_request(ApiKey.METADATA, version, memoryview(bytes.fromhex("00000000 01 00 00")))
    assert asked["topics"] is None
    assert asked["allow_auto_topic_creation"] is True
    other = decode_request(ApiKey.METADATA, version, memoryview(bytes.fromhex("00000001 01 00 00")))
    assert other["allow_auto_topic_creation"] is False, "read as it is written"
