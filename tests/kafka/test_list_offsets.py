"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.records import batch
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw

TIMES = [100, 300, 200, 400, 400, 350]


def offsets(
    raw: Raw, timestamp: int, version: int = 9, topic: str = "timed", index: int = 0, **more: Any
) -> dict[str, Any]:
    partition = {"partition_index": index, "timestamp": timestamp}
    partition |= {name: more.pop(name) for name in ("current_leader_epoch",) if name in more}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}], **more}
    (found,) = raw.ask(ApiKey.LIST_OFFSETS, body, version)["topics"][0]["partitions"]
    return dict(found)


def timed(raw: Raw) -> None:
    """Three batches of two records each, whose times are not in order."""
    raw.make("timed")
    if not raw.fetch("timed", 0)["high_watermark"]:
        for first in range(0, 6, 2):
            raw.produce("timed", batch.encode(None, [b"x", b"y"], timestamps=TIMES[first : first + 2]))


@pytest.mark.parametrize("version", range(1, 10))
def test_the_ends_in_each_version(raw: Raw, version: int) -> None:
    timed(raw)
    for timestamp, expected in ((-1, 6), (-2, 0)):
        found = offsets(raw, timestamp, version)
        assert (found["error_code"], found["offset"], found["timestamp"]) == (0, expected, -1)
        if version >= 4:
            assert found["leader_epoch"] == 0


@pytest.mark.parametrize(
    ("timestamp", "offset", "of"),
    [(0, 0, 100), (100, 0, 100), (101, 1, 300), (250, 1, 300), (301, 3, 400), (400, 3, 400)],
)
def test_a_time_is_exact_to_the_record(raw: Raw, timestamp: int, offset: int, of: int) -> None:
    timed(raw)
    for isolation in (0, 1):
        found = offsets(raw, timestamp, isolation_level=isolation)
        assert (found["error_code"], found["offset"], found["timestamp"], found["leader_epoch"]) == (0, offset, of, 0)


def test_a_time_that_has_not_come(raw: Raw) -> None:
    timed(raw)
    found = offsets(raw, 401)
    assert (found["error_code"], found["offset"], found["timestamp"]) == (0, -1, -1)


def test_the_highest_time(raw: Raw) -> None:
    timed(raw)
    found = offsets(raw, -3)
    assert (found["offset"], found["timestamp"]) == (3, 400)
    raw.make("timeless")
    found = offsets(raw, -3, topic="timeless")
    assert (found["error_code"], found["offset"], found["timestamp"]) == (0, -1, -1)


def test_local_and_tiered_ends(raw: Raw) -> None:
    timed(raw)
    assert offsets(raw, -4)["offset"] == 0
    assert offsets(raw, -5)["offset"] == -1


@pytest.mark.parametrize(("timestamp", "version"), [(-3, 6), (-4, 7), (-5, 8), (-6, 9), (-100, 9)])
def test_what_a_version_does_not_know(raw: Raw, timestamp: int, version: int) -> None:
    timed(raw)
    assert offsets(raw, timestamp, version)["error_code"] == Code.UNSUPPORTED_VERSION


def test_what_is_not_there(raw: Raw) -> None:
    timed(raw)
    assert offsets(raw, -1, topic="nothing")["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert offsets(raw, 5, index=7)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert offsets(raw, -1, current_leader_epoch=3)["error_code"] == Code.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", [2, 3, 4])
def test_where_a_leader_epoch_ends(raw: Raw, version: int) -> None:
    timed(raw)

    def ask(leader_epoch: int, current: int = 0, index: int = 0) -> tuple[int, int, int]:
        asked = {"partition": index, "current_leader_epoch": current, "leader_epoch": leader_epoch}
        body = {"topics": [{"topic": "timed", "partitions": [asked]}]}
        (found,) = raw.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, body, version)["topics"][0]["partitions"]
        return found["error_code"], found["leader_epoch"], found["end_offset"]

    assert ask(0) == (0, 0, 6)
    assert ask(1) == (0, -1, -1)
    assert ask(0, current=1) == (Code.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert ask(0, index=3) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
