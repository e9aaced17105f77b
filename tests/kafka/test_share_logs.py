"""What becomes of a share group (KIP-932) when the log changes under it: records that members have acquired are deleted
or compacted away, the log begins beyond the group's position, and the topic gets more partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, create
from tests.kafka.shares import ACCEPT, REJECT, RELEASE, Member, beat, earliest, fill, position
from tests.peer import Peer
from tests.process import BrokerProcess, Launcher, broker_process, wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("share-logs") / "data"
    with broker_process(data, launch=launcher, durability="os", retention_check_ms=5) as running:
        yield running
        assert not running.events("internal_error"), running.last_words()
        assert running.stop() == 0


def cut(raw: Raw, topic: str, offset: int) -> None:
    """Deletes the records before this offset."""
    part = {"partition_index": 0, "offset": offset}
    answer = raw.ask(ApiKey.DELETE_RECORDS, {"topics": [{"name": topic, "partitions": [part]}], "timeout_ms": 10_000})
    (told,) = answer["topics"][0]["partitions"]
    assert (told["error_code"], told["low_watermark"]) == (0, offset), told


def offsets(rows: list[tuple[int, int, int]]) -> list[int]:
    return [offset for first, last, _ in rows for offset in range(first, last + 1)]


def there(broker: BrokerProcess, topic: str) -> list[int]:
    """The offsets of all records that the log has."""
    with Peer(broker.address) as peer:
        return [each.offset for each in peer.read_log(topic, 0)[0]]


def test_records_that_a_member_has_acquired_are_deleted(raw: Raw, broker: BrokerProcess) -> None:
    """Acknowledging them does nothing and is no error, as in Kafka: the other records of the request are
    acknowledged."""
    create(broker, "deleted")
    earliest(raw, "deleted")
    fill(raw, "deleted", 10)
    one = Member(raw, "deleted", "one", "deleted")
    assert one.acquired(max_records=6) == [(0, 5, 1)]
    cut(raw, "deleted", 4)
    assert one.acknowledge((0, 2, [ACCEPT]), (3, 5, [ACCEPT, REJECT, RELEASE])) == 0
    assert position(raw, "deleted", "deleted") == (5, 5)
    assert one.acquired((0, 3, [RELEASE])) == [(5, 5, 2), (6, 9, 1)]
    cut(raw, "deleted", 10)
    assert one.acknowledge((5, 9, [RELEASE])) == 0
    assert one.acquired() == []
    assert position(raw, "deleted", "deleted") == (10, 0)
    fill(raw, "deleted", 2)
    assert one.acquired() == [(10, 11, 1)]


def test_a_member_renews_what_is_left_of_what_it_has_acquired(raw: Raw, broker: BrokerProcess) -> None:
    create(broker, "renewed")
    earliest(raw, "renewed")
    fill(raw, "renewed", 10)
    one = Member(raw, "renewed", "one", "renewed")
    assert one.acquired() == [(0, 9, 1)]
    cut(raw, "renewed", 7)
    renewal = {"is_renew_ack": True}
    assert one.acknowledge((0, 9, [4]), **renewal) == 0
    assert one.acknowledge((0, 9, [ACCEPT])) == 0
    assert position(raw, "renewed", "renewed") == (10, 0)


@pytest.mark.parametrize("how", ["dies", "ends", "lets its lock end"])
def test_the_log_begins_behind_what_a_member_has(raw: Raw, broker: BrokerProcess, how: str) -> None:
    """The member leaves. Records that are not there any more are settled, and nobody waits for them."""
    name = how.replace(" ", "-")
    create(broker, name)
    earliest(raw, name, share_record_lock_duration_ms="1000")
    fill(raw, name, 10)
    with Raw(broker.kafka) as its:
        one = Member(its, name, "one", name)
        assert one.acquired(max_records=6) == [(0, 5, 1)]
        cut(raw, name, 8)
        if how == "ends":
            its.ask(ApiKey.SHARE_ACKNOWLEDGE, one.body([], epoch=-1))
        elif how == "lets its lock end":
            two = Member(raw, name, "two", name, wait_ms=5_000)
            assert two.acquired(max_records=1) == [(8, 8, 1)]
            assert two.acknowledge((8, 8, [RELEASE])) == 0
            wait_until(lambda: position(raw, name, name) == (8, 2), "its lock has ended")
    two = Member(raw, name, "three", name, wait_ms=5_000)
    assert [(first, last) for first, last, _ in two.acquired()] in ([(8, 9)], [(8, 8), (9, 9)])
    assert two.acknowledge((8, 9, [ACCEPT])) == 0
    assert position(raw, name, name) == (10, 0)


def test_the_log_begins_beyond_the_position_of_a_group_that_nobody_reads_as(
    tmp_path_factory: pytest.TempPathFactory, launcher: Launcher
) -> None:
    with broker_process(tmp_path_factory.mktemp("beyond") / "data", launch=launcher, durability="fsync") as own:
        create(own, "t")
        with Raw(own.kafka) as raw:
            earliest(raw, "g")
            fill(raw, "t", 10)
            one = Member(raw, "g", "one", "t")
            assert one.acquired(max_records=4) == [(0, 3, 1)]
            assert one.acknowledge((0, 3, [ACCEPT, RELEASE, ACCEPT, RELEASE])) == 0
            raw.ask(ApiKey.SHARE_ACKNOWLEDGE, one.body([], epoch=-1))
            beat(raw, "g", "one", -1)
            cut(raw, "t", 8)
        own.kill()
        own.start()
        with Raw(own.kafka) as raw:
            two = Member(raw, "g", "two", "t")
            assert two.acquired() == [(8, 9, 1)]
            assert two.acknowledge((8, 9, [ACCEPT])) == 0
            assert position(raw, "g", "t") == (10, 0)
        assert own.stop() == 0


@pytest.mark.parametrize("end", ["accept", "release", "die"])
def test_records_that_a_member_has_acquired_are_compacted_away(raw: Raw, broker: BrokerProcess, end: str) -> None:
    """The member may still acknowledge them; they are not delivered again, and hold up nothing."""
    name = f"compacted-{end}"
    limits: dict[str, Any] = {"min_cleanable_dirty_ratio": "0.01", "segment_bytes": "200", "delete_retention_ms": "0"}
    create(broker, name, cleanup_policy="compact", min_compaction_lag_ms="3600000", **limits)
    earliest(raw, name)
    with Raw(broker.kafka) as its:
        for number in range(12):
            data = batch.encode([b"k%d" % (number % 3)], [b"%d" % number], timestamps=int(1000 * time.time()))
            assert raw.produce(name, data)["error_code"] == 0
        one = Member(its, name, "one", name)
        assert offsets(one.acquired(max_records=5)) == [0, 1, 2, 3, 4]
        with Peer(broker.address) as peer:
            peer.ask(m.AlterTopic(name, {"min.compaction.lag.ms": None}), m.TopicAltered)
        left = [9, 10, 11]  # the last of each key; an early look may also see records that are still to go
        wait_until(lambda: there(broker, name) == left, "the others are compacted away")
        if end != "die":
            assert one.acknowledge((0, 4, [ACCEPT if end == "accept" else RELEASE])) == 0
    two = Member(raw, name, "two", name, wait_ms=5_000)
    got: list[int] = []
    while got != left:
        rows = two.acquired(max_wait_ms=500)
        got += offsets(rows)
        assert got == left[: len(got)]
        assert all(count == 1 for *_, count in rows)
        assert two.acknowledge(*((first, last, [ACCEPT]) for first, last, _ in rows)) == 0 if rows else True
    assert position(raw, name, name) == (12, 0)


def grow(raw: Raw, topic: str, partitions: int) -> None:
    body = {"topics": [{"name": topic, "count": partitions, "assignments": None}], "timeout_ms": 10_000}
    assert raw.ask(ApiKey.CREATE_PARTITIONS, {**body, "validate_only": False})["results"][0]["error_code"] == 0


def test_partitions_that_a_topic_gains_are_read_from_their_first_record(raw: Raw, broker: BrokerProcess) -> None:
    """This holds whatever share.auto.offset.reset says: else what is written before a member fetches is skipped
    (KAFKA-20742)."""
    create(broker, "grown", 2)
    fill(raw, "grown", 3)
    one = Member(raw, "grown", "one", "grown")  # it begins at the latest record
    assert one.acquired() == []
    fill(raw, "grown", 3, 1)
    grow(raw, "grown", 3)
    fill(raw, "grown", 4, 2)

    def assigned() -> set[int]:
        told = beat(raw, "grown", "one", 1, ["grown"])
        parts = (told["assignment"] or {}).get("topic_partitions", [])
        return {index for each in parts for index in each["partitions"]}

    wait_until(lambda: assigned() == {0, 1, 2}, "the member has the new partition, too")
    assert one.acquired() == []
    fill(raw, "grown", 1)
    assert one.acquired() == [(3, 3, 1)]
    one.index = 1  # a partition that it had from the first: its records came before a member fetched from it
    assert one.acquired() == []
    one.index = 2
    assert one.acquired() == [(0, 3, 1)]
    assert one.acknowledge((0, 3, [ACCEPT])) == 0
    assert position(raw, "grown", "grown", 2) == (4, 0)


def test_a_group_that_was_moved_in_one_partition_begins_in_the_others_as_its_setting_says(
    raw: Raw, broker: BrokerProcess
) -> None:
    create(broker, "some", 2)
    for index in range(2):
        fill(raw, "some", 3, index)
    moves = [{"topic_name": "some", "partitions": [{"partition_index": 0, "start_offset": 1}]}]
    assert raw.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": "some", "topics": moves})["error_code"] == 0
    one = Member(raw, "some", "one", "some")
    assert one.acquired() == [(1, 2, 1)]
    one.index = 1
    assert one.acquired() == []
    assert one.acknowledge((0, 0, [ACCEPT])) == Code.INVALID_RECORD_STATE
