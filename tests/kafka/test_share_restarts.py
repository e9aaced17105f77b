"""What is left of share groups after SIGKILL: members, settled records, delivery counts, and settings."""

from __future__ import annotations

from pathlib import Path

from krappy.wire.kafka import ApiKey
from tests.kafka.raw import Raw, create
from tests.kafka.shares import ACCEPT, REJECT, RELEASE, Member, beat, earliest, fill, position
from tests.process import Launcher, broker_process, wait_until


def test_a_killed_broker_goes_on_where_it_was(tmp_path: Path, launcher: Launcher) -> None:
    with broker_process(tmp_path / "data", launch=launcher, durability="fsync") as broker:
        create(broker, "t")
        with Raw(broker.kafka) as raw:
            earliest(raw, "g", share_delivery_count_limit="3")
            fill(raw, "t", 10)
            one = Member(raw, "g", "one", "t")
            assert one.acquired(max_records=6) == [(0, 5, 1)]
            assert one.acknowledge((0, 5, [ACCEPT, RELEASE, REJECT, ACCEPT, RELEASE, RELEASE])) == 0
            assert one.acquired(max_records=1) == [(1, 1, 2)]
            assert one.acquired((1, 1, [RELEASE]), max_records=1) == [(1, 1, 3)]
            assert one.acknowledge((1, 1, [RELEASE])) == 0  # it was delivered too often
            assert one.acquired(max_records=3) == [(4, 5, 2), (6, 6, 1)]
            assert one.acknowledge((6, 6, [RELEASE])) == 0  # its answer comes after what was acquired is durable, too
        broker.kill()
        broker.start()
        with Raw(broker.kafka) as raw:
            assert position(raw, "g", "t") == (4, 6)
            told = beat(raw, "g", "one", 1, ["t"])
            assert (told["error_code"], told["member_epoch"]) == (0, 1)
            (group,) = raw.ask(ApiKey.SHARE_GROUP_DESCRIBE, {"group_ids": ["g"]})["groups"]
            assert [member["member_id"] for member in group["members"]] == ["one"]
            one = Member(raw, "g", "one", "t")
            assert one.acquired(max_records=1) == [(4, 4, 3)]  # the last time, each record comes alone
            assert one.acquired((4, 4, [RELEASE]), max_records=1) == [(5, 5, 3)]
            assert one.acquired((5, 5, [ACCEPT]), max_records=1) == [(6, 6, 2)]
            assert position(raw, "g", "t") == (6, 4)
        assert broker.stop() == 0


def test_what_was_delivered_for_the_last_time_is_settled_though_nothing_follows(
    tmp_path: Path, launcher: Launcher
) -> None:
    """Its member died with the broker, and no other change follows that would settle the record as well."""
    with broker_process(tmp_path / "data", launch=launcher, durability="fsync") as broker:
        create(broker, "t")
        with Raw(broker.kafka) as raw:
            earliest(raw, "g", share_delivery_count_limit="2")
            fill(raw, "t", 2)
            one = Member(raw, "g", "one", "t")
            assert one.acquired(max_records=1) == [(0, 0, 1)]
            assert one.acquired((0, 0, [RELEASE]), max_records=1) == [(0, 0, 2)]
            assert one.acquired(max_records=1) == [(1, 1, 1)]
            assert one.acknowledge((1, 1, [ACCEPT])) == 0  # what was acquired is durable once this is
        broker.kill()
        broker.start()
        with Raw(broker.kafka) as raw:
            assert Member(raw, "g", "two", "t").acquired(max_wait_ms=0) == []
            wait_until(lambda: position(raw, "g", "t") == (2, 0), "both are settled")
        assert broker.stop() == 0


def test_a_deleted_group_stays_deleted_and_a_reset_one_moved(tmp_path: Path, launcher: Launcher) -> None:
    with broker_process(tmp_path / "data", launch=launcher, durability="fsync") as broker:
        create(broker, "t")
        with Raw(broker.kafka) as raw:
            fill(raw, "t", 10)
            for group in ("gone", "moved"):
                earliest(raw, group)
                assert Member(raw, group, "one", "t").acquired(max_records=3) == [(0, 2, 1)]
                assert beat(raw, group, "one", -1)["error_code"] == 0
            assert raw.ask(ApiKey.DELETE_GROUPS, {"groups_names": ["gone"]})["results"][0]["error_code"] == 0
            move = [{"topic_name": "t", "partitions": [{"partition_index": 0, "start_offset": 7}]}]
            assert raw.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": "moved", "topics": move})["error_code"] == 0
        broker.kill()
        broker.start()
        with Raw(broker.kafka) as raw:
            assert [each["group_id"] for each in raw.ask(ApiKey.LIST_GROUPS)["groups"]] == ["moved"]
            assert Member(raw, "moved", "two", "t").acquired() == [(7, 9, 1)]
        assert broker.stop() == 0
