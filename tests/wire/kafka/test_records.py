"""Records of `__consumer_offsets`: the bytes are those of Kafka 4.3's own classes (`MessageUtil.toVersionPrefixedBytes`
of `OffsetCommitKey` and `OffsetCommitValue`, of its jar kafka-group-coordinator)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.errors import ProtocolError
from krappy.wire.kafka.records import OFFSET_COMMIT_KEY, OFFSET_COMMIT_VALUE, TABLE, read_record, write_record

KEY = {"group": "grüppe", "topic": "orders", "partition": 258}
VALUE = {"offset": 1 << 40, "leader_epoch": 7, "metadata": "ä m", "commit_timestamp": 1_700_000_000_000}
LAPSES = {"expire_timestamp": 1_700_000_003_600}
WITH_ID = {"topic_id": bytes(range(1, 17))}
KAFKAS = [
    (OFFSET_COMMIT_KEY, 0, KEY, "000000076772c3bc70706500066f726465727300000102"),
    (OFFSET_COMMIT_KEY, 1, KEY, "000100076772c3bc70706500066f726465727300000102"),
    (OFFSET_COMMIT_VALUE, 0, VALUE, "000000000100000000000004c3a4206d0000018bcfe56800"),
    (OFFSET_COMMIT_VALUE, 1, VALUE | LAPSES, "000100000100000000000004c3a4206d0000018bcfe568000000018bcfe57610"),
    (OFFSET_COMMIT_VALUE, 2, VALUE, "000200000100000000000004c3a4206d0000018bcfe56800"),
    (OFFSET_COMMIT_VALUE, 3, VALUE, "00030000010000000000000000070004c3a4206d0000018bcfe56800"),
    (
        OFFSET_COMMIT_VALUE,
        3,
        {"offset": 0, "metadata": "", "commit_timestamp": -1},
        "00030000000000000000ffffffff0000ffffffffffffffff",
    ),
    (OFFSET_COMMIT_VALUE, 4, VALUE, "000400000100000000000000000705c3a4206d0000018bcfe5680000"),
    (
        OFFSET_COMMIT_VALUE,
        4,
        VALUE | WITH_ID,
        "000400000100000000000000000705c3a4206d0000018bcfe568000100100102030405060708090a0b0c0d0e0f10",
    ),
]
LACKING = {"leader_epoch": -1, "expire_timestamp": -1, "topic_id": bytes(16)}  # defaults of fields that a version lacks


@pytest.mark.parametrize(("schema", "version", "fields", "data"), KAFKAS)
def test_bytes_are_kafkas(schema: str, version: int, fields: dict[str, Any], data: str) -> None:
    written = bytes.fromhex(data)
    assert write_record(schema, version, fields) == written
    found_version, found = read_record(schema, written)
    assert found_version == version
    lacking = {} if schema == OFFSET_COMMIT_KEY else LACKING
    told = fields if version >= 3 else {name: fields[name] for name in fields if name != "leader_epoch"}
    assert found == lacking | told
    for size in range(len(written)):
        with pytest.raises(ProtocolError):
            read_record(schema, written[:size])
    with pytest.raises(ProtocolError, match="1 bytes too many"):
        read_record(schema, written + b"\0")


@given(st.sampled_from([*TABLE]), st.integers(-1, 5), st.binary(max_size=60))
def test_any_other_bytes_are_refused(schema: str, version: int, data: bytes) -> None:
    try:
        found = read_record(schema, version.to_bytes(2, "big", signed=True) + data)
    except ProtocolError:
        return
    assert found[0] == version


@pytest.mark.parametrize(
    ("schema", "version"), [(OFFSET_COMMIT_KEY, 2), (OFFSET_COMMIT_VALUE, 5), (OFFSET_COMMIT_VALUE, -1)]
)
def test_other_versions_are_not_known(schema: str, version: int) -> None:
    with pytest.raises(ProtocolError, match=f"version {version} is not known"):
        write_record(schema, version, {})
    with pytest.raises(ProtocolError, match=f"version {version} is not known"):
        read_record(schema, version.to_bytes(2, "big", signed=True) + bytes(30))
