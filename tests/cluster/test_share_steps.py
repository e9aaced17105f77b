"""A broker is killed at each step of a share group's acknowledgement (KIP-932), alone and in a cluster. If the
acknowledgement was answered or committed, the record is not delivered again. If it was not even written, the record is
delivered again, with a higher delivery count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from krappy.broker.topics.internal_topics import OFFSETS, SHARES
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.stepping import stepping, stopping_at
from tests.cluster.test_share_groups import LONG_S, Scene, group_leader, make_ready
from tests.cluster.zookeeper import ZooKeeperServer
from tests.kafka.raw import Closed, Raw, create
from tests.kafka.shares import ACCEPT, REJECT, Member, earliest, fill, position
from tests.long import some
from tests.process import broker_process, wait_until

LOST = ["takes acks", "took acks", "sends state", "keeps state"]
UNSURE = ["kept state"]
KEPT = ["committed state", "sent state"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared_zookeeper: ZooKeeperServer) -> Iterator[ClusterProcesses]:
    """A cluster for all tests of this module. A test that kills a broker must start it again."""
    with brokers(tmp_path_factory.mktemp("share-steps"), shared=SharedProcesses(shared_zookeeper, stepping)) as made:
        make_ready(made)
        yield made
        made.check_errors()


def check(step: str, came: list[tuple[int, int, int]], at: int) -> bool:
    """Whether the record `at` counts as settled; the broker was killed during its acknowledgement. `came`: the records
    that were delivered next. Raises AssertionError if this is wrong for the step."""
    first, _, deliveries = came[0]
    assert (first, deliveries) in ((at, 2), (at + 1, 1)), came
    assert step not in LOST or first == at, f"killed when it {step}: it was not written, and is settled"
    assert step not in KEPT or first == at + 1, f"killed when it {step}: it was committed, and comes again"
    return first > at


@pytest.mark.parametrize("kind", [ACCEPT, REJECT])
def test_a_broker_that_is_alone(tmp_path: Path, kind: int) -> None:
    with broker_process(tmp_path / "data", launch=stepping, durability="fsync") as broker:
        create(broker, "t")
        with Raw(broker.kafka) as raw:
            earliest(raw, "g")
            fill(raw, "t", 100)
        at = 0
        for step in [*LOST, *UNSURE, *KEPT]:
            with Raw(broker.kafka) as raw:
                one = Member(raw, "g", f"one {step}", "t")
                assert one.acquired(max_records=3) == [(at, at + 2, 1)]
                assert one.acknowledge((at, at + 1, [ACCEPT, kind])) == 0
                with stopping_at(broker, step):
                    raw.send(ApiKey.SHARE_ACKNOWLEDGE, one.body([(at + 2, at + 2, [kind])]))
                with pytest.raises(Closed):
                    raw.receive()
            broker.start()
            at += 2
            with Raw(broker.kafka) as raw:
                two = Member(raw, "g", f"two {step}", "t")
                settled = check(step, two.acquired(max_records=1), at)
                assert position(raw, "g", "t") == (at + settled, 100 - at - settled)
                assert two.acknowledge((at + settled, at + settled, [ACCEPT])) == 0
                at += 1 + settled
                assert position(raw, "g", "t") == (at, 100 - at)
        assert not broker.events("internal_error"), broker.last_words()


STEPS = [
    *(("leader", step) for step in ("takes acks", "took acks", "sends state", "sent state")),
    *(("keeper", step) for step in ("keeps state", "kept state", "committed state")),
    *(("leader and keeper", step) for step in ("keeps state", "kept state", "committed state")),
]


@pytest.mark.parametrize(("who", "step"), some(STEPS, 2, 1))
def test_a_broker_of_a_cluster(cluster: ClusterProcesses, who: str, step: str) -> None:
    scene = Scene(cluster, keeper_leads=who == "leader and keeper")
    killed = scene.keeper if "keeper" in who else scene.leader
    with ExitStack() as stack:
        one = scene.joined(stack)
        assert one.acquired(max_records=3) == [(0, 2, 1)]
        assert one.acknowledge((0, 1, [ACCEPT, ACCEPT])) == 0
        with stopping_at(cluster.brokers[killed], step):
            one.raw.send(ApiKey.SHARE_ACKNOWLEDGE, one.body([(2, 2, [ACCEPT])]))
            one.epoch += 1
        if who == "keeper":  # the leader sends the state again, to the broker that keeps it by then
            told = one.raw.receive()
            assert told["responses"][0]["partitions"][0]["error_code"] == 0, told
            assert group_leader(cluster, SHARES, scene.group) in cluster.running
            assert scene.position() == (3, 7)
            assert scene.acquire(one, 1) == [(3, 3, 1)]
        else:
            with pytest.raises(Closed):
                one.raw.receive()
            for internal in (OFFSETS, SHARES):
                wait_until(
                    lambda internal=internal: group_leader(cluster, internal, scene.group) in cluster.running,  # type: ignore[misc]
                    f"another broker leads {internal}",
                    LONG_S,
                )
            wait_until(lambda: scene.led_by() in cluster.running, "another leads", LONG_S)
            two = scene.joined(stack, "two")
            settled = check(step, scene.acquire(two, 1), 2)
            assert scene.position() == (2 + settled, 8 - settled)
            assert two.acknowledge((2 + settled, 2 + settled, [ACCEPT])) == 0
            assert scene.position() == (3 + settled, 7 - settled)
    scene.restart(killed)
