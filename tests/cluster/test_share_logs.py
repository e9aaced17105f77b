"""The log of a share group (KIP-932) loses records, and then its leader dies. Another replica has the same log, but the
state of the group was kept when the log had more records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from krappy.records import batch
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.test_share_groups import LONG_S, Scene, make_ready
from tests.kafka.raw import Raw
from tests.kafka.shares import ACCEPT, RELEASE, Member, offsets_of
from tests.kafka.test_share_logs import cut, offsets
from tests.long import some
from tests.process import wait_until

READER = -2  # the replica id of a tool that reads from followers, too


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    """A cluster for all tests of this module. A test that kills a broker must start it again."""
    with brokers(tmp_path_factory.mktemp("share-logs"), shared=shared_processes, retention_check_ms=20) as made:
        make_ready(made)
        yield made
        made.check_errors()


def until_all(scene: Scene, what: str, holds: Callable[[Raw], bool]) -> None:
    """Waits until `holds` is true at each replica."""
    for id in scene.cluster.brokers:
        with scene.cluster.asked(id) as raw:
            wait_until(lambda raw=raw: holds(raw), f"{what} at broker {id}", LONG_S)  # type: ignore[misc]


def log_start(scene: Scene, raw: Raw) -> int:
    return int(raw.fetch(scene.topic, 10, replica_id=READER)["log_start_offset"])


def there(scene: Scene, raw: Raw) -> list[int]:
    """The offsets of all records that a replica has."""
    found: list[int] = []
    while some := offsets_of(raw.fetch(scene.topic, found[-1] + 1 if found else 0, replica_id=READER)["records"]):
        found += some
    return found


def alter(scene: Scene, **settings: str) -> None:
    configs = [
        {"name": name.replace("_", "."), "value": value, "config_operation": 0} for name, value in settings.items()
    ]
    body = {"resources": [{"resource_type": 2, "resource_name": scene.topic, "configs": configs}]}
    with scene.cluster.asked(1) as raw:
        assert raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, body)["responses"][0]["error_code"] == 0


def fail_over(scene: Scene) -> None:
    """Kills the leader, and waits until another broker leads."""
    scene.cluster.brokers[scene.leader].kill()
    wait_until(lambda: scene.led_by() in scene.cluster.running, "another leads", LONG_S)


def take_all(scene: Scene, member: Member, wanted: list[int]) -> list[tuple[int, int, int]]:
    """Fetches until the member has as many records as wanted, and accepts them. Checks that they have these offsets.
    Returns them as (first offset, last offset, deliveries)."""
    rows: list[tuple[int, int, int]] = []
    while len(offsets(rows)) < len(wanted):
        some = scene.acquire(member, 100)
        assert member.acknowledge(*((first, last, [ACCEPT]) for first, last, _ in some)) == 0
        rows += some
    assert offsets(rows) == wanted
    return rows


@pytest.mark.parametrize("start", [4, 8], ids=["some of it", "all of it"])
def test_records_that_a_member_has_acquired_are_deleted_and_the_leader_dies(
    cluster: ClusterProcesses, start: int
) -> None:
    scene = Scene(cluster)
    with ExitStack() as stack:
        one = scene.joined(stack)
        assert one.acquired(max_records=6) == [(0, 5, 1)]
        assert one.acquired((0, 0, [RELEASE]), (5, 5, [ACCEPT]), max_records=1) == [(0, 0, 2)]
        scene.until_written(2)
        cut(one.raw, scene.topic, start)
        fail_over(scene)
        two = scene.joined(stack, "two")
        left = [offset for offset in range(start, 10) if offset != 5]
        rows = take_all(scene, two, left)
        assert {count for first, _, count in rows if first < 5} <= {2}
        assert {count for first, _, count in rows if first > 5} == {1}
        assert scene.position() == (10, 0)
    scene.restart(scene.leader)


def test_retention_takes_what_a_member_has_acquired_and_the_leader_dies(cluster: ClusterProcesses) -> None:
    """The group does not wait for acquired or released records that are gone. The next records come for the first
    time."""
    scene = Scene(cluster, retention_ms="-1")
    with ExitStack() as stack:
        one = scene.joined(stack)
        assert one.acquired(max_records=6) == [(0, 5, 1)]
        assert one.acknowledge((0, 1, [ACCEPT, RELEASE])) == 0
        alter(scene, retention_ms="3600000")  # the records are years old
        until_all(scene, "the log begins at its end", lambda raw: log_start(scene, raw) == 10)
        fail_over(scene)
        two = scene.joined(stack, "two")
        assert two.acquired(max_wait_ms=500) == []
        data = batch.encode([None] * 2, [b"a", b"b"], timestamps=int(1000 * time.time()))
        with cluster.asked(scene.led_by()) as raw:
            wait_until(lambda: raw.produce(scene.topic, data)["error_code"] == 0, "it is written")
        assert {count for *_, count in take_all(scene, two, [10, 11])} == {1}
        assert scene.position() == (12, 0)
    scene.restart(scene.leader)


@pytest.mark.parametrize("when", some(["before", "after"], 2))
def test_records_that_a_member_has_acquired_are_compacted_away_and_the_leader_dies(
    cluster: ClusterProcesses, when: str
) -> None:
    """`when`: the records are compacted away before the leader dies, or after that."""
    limits: dict[str, Any] = {"min_cleanable_dirty_ratio": "0.01", "segment_bytes": "200", "delete_retention_ms": "0"}
    scene = Scene(cluster, 0, cleanup_policy="compact", min_compaction_lag_ms="3600000", **limits)
    left = [9, 10, 11]  # the offsets of the last records of each key
    with ExitStack() as stack:
        with cluster.asked(scene.leader) as raw:
            for number in range(12):
                data = batch.encode([b"k%d" % (number % 3)], [b"%d" % number], timestamps=int(1000 * time.time()))
                wait_until(lambda data=data: raw.produce(scene.topic, data)["error_code"] == 0, "written")  # type: ignore[misc]
        one = scene.joined(stack)
        assert offsets(one.acquired(max_records=5)) == [0, 1, 2, 3, 4]
        assert one.acknowledge((0, 1, [ACCEPT, RELEASE])) == 0
        if when == "after":
            fail_over(scene)
            scene.restart(scene.leader)
        alter(scene, min_compaction_lag_ms="0")
        until_all(scene, "the others are compacted away", lambda raw: there(scene, raw) == left)
        if when == "before":
            fail_over(scene)
        two = scene.joined(stack, "two")
        assert {count for *_, count in take_all(scene, two, left)} == {1}
        assert scene.position() == (12, 0)
    if when == "before":
        scene.restart(scene.leader)
