"""Large requests are read step by step: to the same message as in one, or to the same error."""

from __future__ import annotations

import pytest

from krappy.errors import ProtocolError
from krappy.wire.kafka import RANGES, ApiKey, encode_request, parse_header, read_request
from krappy.wire.kafka.codec import read_in_steps
from krappy.wire.kafka.notation import at, read
from krappy.wire.kafka.reading import STEP
from krappy.wire.kafka.schema import TABLE
from tests.kafka.test_turns import ARRAYS, message


def in_steps(key: ApiKey, version: int, body: memoryview) -> tuple[object, int]:
    """(what `read_in_steps` returns, in how many steps)."""
    steps, count = read_in_steps(key, version, body), 1
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return end.value, count


@pytest.mark.parametrize(("key", "path"), ARRAYS, ids=lambda value: value.name if isinstance(value, ApiKey) else None)
def test_it_is_the_same_message(key: ApiKey, path: tuple[str, ...]) -> None:
    for version in {*RANGES[key]}:
        body = message(at(read(TABLE[key].request), version), path, STEP + 1, "t")
        data = memoryview(encode_request(key, version, 1, "x", body))[4:]
        data = data[parse_header(data).body_at :]
        found, count = in_steps(key, version, data)
        assert found == read_request(key, version, data)
        assert count <= 4
        if count > 1:  # there is this array in this version
            with pytest.raises(ProtocolError) as whole:
                read_request(key, version, data[: len(data) // 2])
            with pytest.raises(ProtocolError) as stepped:
                in_steps(key, version, data[: len(data) // 2])
            assert stepped.value.text == whole.value.text


def test_many_elements_are_many_steps() -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": at, "offset": 0} for at in range(20_000)]}]
    data = memoryview(encode_request(ApiKey.DELETE_RECORDS, 2, 1, "x", {"topics": topics, "timeout_ms": 1}))[4:]
    assert in_steps(ApiKey.DELETE_RECORDS, 2, data[parse_header(data).body_at :])[1] == 20_000 // STEP + 1
