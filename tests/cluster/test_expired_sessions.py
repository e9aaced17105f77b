"""A broker's session with ZooKeeper expires between any two steps of a registration, of an election or of a change of
an ISR. The cluster heals, and no acknowledged event is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy import blocking
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.expiring import WAYS, WRITES, expires_at, expiring, is_expired
from tests.cluster.test_native import Sender, check_log, until_more
from tests.cluster.zookeeper import ZooKeeperServer
from tests.long import some
from tests.process import wait_until

LONG_S = 60.0
STEPS = [f"{way} {write}" for write in WRITES for way in WAYS]
TOPIC = "t"


@pytest.fixture
def cluster(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> Iterator[ClusterProcesses]:
    with brokers(tmp_path, shared=SharedProcesses(shared_zookeeper, expiring)) as made:
        yield made


def controller(cluster: ClusterProcesses) -> int:
    found = -1

    def look() -> bool:
        nonlocal found
        with cluster.asked(1) as raw:
            found = raw.ask(ApiKey.METADATA, {"topics": []})["controller_id"]
        return found in cluster.brokers

    wait_until(look, "there is a controller")
    return found


def expire(cluster: ClusterProcesses, step: str) -> None:
    """Lets a session expire at this step. Another session may have to expire first, so that the broker comes to it."""
    controls = controller(cluster)
    leads = cluster.partitions(TOPIC)[0].leader
    follows = min(set(cluster.brokers) - {controls, leads})
    every = cluster.brokers.values()
    match step.split()[1]:
        case "renews":
            due = {controls: [step], leads: [step]}
        case "bumps" | "enters":
            due = {each: ["before renews", step] for each in (controls, leads)}
        case "controls":
            due = {id: ["before renews", step] if id == controls else [step] for id in cluster.brokers}
        case "elects":
            due = {controls: [step], follows: ["before renews"]}
        case "leads":
            due = {leads: [step]}
    # Only one of the brokers that may become the controller becomes it.
    for id in sorted(due, key=lambda id: due[id] == ["before renews"]):
        expires_at(cluster.brokers[id], *due[id])
    if step.endswith("leads"):  # the follower leaves the ISR when it stops, and the leader adds it when it is back
        assert cluster.brokers[follows].stop() == 0
        cluster.brokers[follows].start()
    if step.endswith("controls"):
        wait_until(lambda: any(is_expired(each) for each in every), step, LONG_S)
    else:
        wait_until(lambda: all(is_expired(cluster.brokers[id]) for id in due), step, LONG_S)
    for each in every:
        expires_at(each)


def test_sessions_expire_between_any_two_steps(cluster: ClusterProcesses) -> None:
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        client.create_topic(TOPIC, 6)
        cluster.until_in_sync(TOPIC)
        with Sender(client, TOPIC, 0.02) as sender:
            until_more(sender, 50)
            for step in some(STEPS, 4, first=1):
                expire(cluster, step)
                cluster.until_known()
                cluster.until_in_sync(TOPIC)
                until_more(sender, 50)
        check_log(client, TOPIC, sender)
    cluster.check_errors()
