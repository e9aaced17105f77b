"""DeleteRecords over the bare protocol, and what every reader sees afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import RANGES, ApiKey, Code
from tests.handlers.raw import Raw as Native
from tests.kafka.raw import Raw
from tests.process import BrokerProcess, Launcher, broker_process

LOW, HIGH = RANGES[ApiKey.DELETE_RECORDS]


def filled(raw: Raw, name: str, partitions: int = 1, **config: str) -> str:
    """A topic with ten keyed events in each partition."""
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
    assert raw.ask(ApiKey.CREATE_TOPICS, {"topics": [topic]})["topics"][0]["error_code"] == 0
    keys = [b"k%d" % number for number in range(10)]
    for index in range(partitions):
        assert raw.produce(name, batch.encode(keys, keys, timestamps=1_000), index)["error_code"] == 0
    return name


def delete(raw: Raw, name: str, offsets: dict[int, int], version: int | None = None) -> dict[int, tuple[int, int]]:
    """By partition: (low watermark, error code)."""
    rows = [{"partition_index": index, "offset": offset} for index, offset in offsets.items()]
    asked = {"topics": [{"name": name, "partitions": rows}], "timeout_ms": 30_000}
    [found] = raw.ask(ApiKey.DELETE_RECORDS, asked, version)["topics"]
    assert found["name"] == name
    return {each["partition_index"]: (each["low_watermark"], each["error_code"]) for each in found["partitions"]}


def offset(raw: Raw, name: str, timestamp: int, index: int = 0) -> int:
    topics = [{"name": name, "partitions": [{"partition_index": index, "timestamp": timestamp}]}]
    answer = raw.ask(ApiKey.LIST_OFFSETS, {"replica_id": -1, "topics": topics}, 7)
    return int(answer["topics"][0]["partitions"][0]["offset"])


@pytest.mark.parametrize("version", range(LOW, HIGH + 1))
def test_the_start_moves_in_every_version(raw: Raw, version: int) -> None:
    name = filled(raw, f"moves-{version}", 2)
    assert delete(raw, name, {0: 4, 1: -1}, version) == {0: (4, 0), 1: (10, 0)}
    assert delete(raw, name, {0: 2, 1: 10}, version) == {0: (4, 0), 1: (10, 0)}
    assert (offset(raw, name, -2), offset(raw, name, -1)) == (4, 10)
    assert raw.values(name, 4) == [b"k%d" % number for number in range(4, 10)]
    assert raw.fetch(name, 3)["error_code"] == Code.OFFSET_OUT_OF_RANGE
    found = raw.fetch(name, 10, 1)
    assert (found["error_code"], found["log_start_offset"], found["high_watermark"]) == (0, 10, 10)


def test_what_can_not_be_deleted(raw: Raw) -> None:
    name = filled(raw, "kept", 1)
    out, unknown = (-1, Code.OFFSET_OUT_OF_RANGE), (-1, Code.UNKNOWN_TOPIC_OR_PARTITION)
    for asked, expected in [(11, out), (2**63 - 1, out), (-2, out), (-(2**63), out)]:
        assert delete(raw, name, {0: asked}) == {0: expected}
    assert delete(raw, name, {0: 3, 1: 0, -1: 0, 2**31 - 1: 0}) == {
        0: (3, 0),
        1: unknown,
        -1: unknown,
        2**31 - 1: unknown,
    }
    assert delete(raw, "absent", {0: 0}) == {0: unknown}
    assert delete(raw, "kept@latest", {0: 0}) == {0: unknown}
    assert delete(raw, "", {0: 0}) == {0: unknown}
    assert delete(raw, name, {}) == {}
    compacted = filled(raw, "compacted", cleanup_policy="compact")
    assert delete(raw, compacted, {0: 5}) == {0: (-1, Code.POLICY_VIOLATION)}
    both = filled(raw, "both", cleanup_policy="compact,delete")
    assert delete(raw, both, {0: 5}) == {0: (5, 0)}


def test_the_table_and_native_readers_see_the_same(raw: Raw, broker: BrokerProcess) -> None:
    name = filled(raw, "seen")
    assert delete(raw, name, {0: 6}) == {0: (6, 0)}
    with Native(broker.address) as native:
        assert native.call(m.Get(name, b"k5")).entry == [None]
        assert native.call(m.Get(name, b"k6")).entry[0][0] == 6
        assert native.call(m.Offsets(name, "earliest")).offsets == [[0, 6]]
        assert native.call(m.DeleteRecords(name, [(0, 8)])).starts == [[0, 8]]
    assert offset(raw, name, -2) == 8


def test_a_kill_brings_nothing_back(tmp_path: Path, launcher: Launcher) -> None:
    with broker_process(tmp_path / "data", launch=launcher) as broker:
        with Raw(broker.kafka) as raw:
            filled(raw, "t", 2)
            assert delete(raw, "t", {0: 7, 1: -1}) == {0: (7, 0), 1: (10, 0)}
        broker.kill()
        broker.start()
        with Raw(broker.kafka) as raw:
            starts: list[Any] = [offset(raw, "t", -2, index) for index in (0, 1)]
            assert starts == [7, 10]
            assert raw.values("t", 7) == [b"k7", b"k8", b"k9"]
            later = raw.produce("t", batch.encode([b"k"], [b"v"], timestamps=1_000), 1)
            assert (later["error_code"], later["base_offset"], later["log_start_offset"]) == (0, 10, 10)
