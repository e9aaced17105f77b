"""Kafka's own share consumer and tool with three brokers, which are killed one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import NewTopic

from krappy.broker.topics.internal_topics import OFFSETS, SHARES
from tests.cluster.brokers import ClusterProcesses, brokers
from tests.cluster.zookeeper import Missing
from tests.compat.clients.agent import Agent
from tests.compat.clients.base import Message, Sending
from tests.compat.kafka_tools import KafkaTools
from tests.compat.test_share_groups import WRITER, Record, ShareMember, agent, new_agent

LONG_S = 120.0
EACH = 150  # records that are written before each kill
__all__ = ("agent", "new_agent")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    try:
        with brokers(tmp_path_factory.mktemp("share-cluster"), group_share_heartbeat_interval_ms=300) as made:
            yield made
    except Missing as reason:
        pytest.skip(str(reason))


def test_brokers_are_killed_under_share_consumers(
    cluster: ClusterProcesses, agent: Agent, new_agent: Callable[[], Agent]
) -> None:
    """Each record is accepted. A record whose acceptance was committed is not delivered again."""
    tool = KafkaTools(cluster.kafka)
    [made] = cluster.admin.create_topics([NewTopic("t", 3, 3)]).values()
    made.result(30)
    tool(
        *("configs", "--alter", "--entity-type", "groups", "--entity-name", "work"),
        *("--add-config", "share.auto.offset.reset=earliest,share.record.lock.duration.ms=15000"),
    )
    running = SimpleNamespace(address=cluster.kafka)
    members = [ShareMember(each, running, "work", "t", most=20) for each in (agent, new_agent())]
    accepted: set[tuple[int, int]] = set()
    again: list[Record] = []
    written = 0

    def work(until: int) -> None:
        end = time.monotonic() + LONG_S
        while len(accepted) < until:
            assert time.monotonic() < end, f"{len(accepted)} of {until}"
            for member in members:
                got = member.poll(500)
                again.extend(each for each in got if each[:2] in accepted)
                for record in got:
                    member.acknowledge(record)
                if not member.commit():
                    accepted.update(each[:2] for each in got)

    for killed in (1, 2, 3):
        sent = [Message(b"k", b"%d" % n, (), 1_700_000_000_000 + n, n % 3) for n in range(EACH)]
        WRITER.produce(cluster.kafka, "t", sent, Sending())
        written += EACH
        work(written - EACH // 2)
        cluster.brokers[killed].kill()
        work(written)
        cluster.start_again(killed)
        for topic in ("t", OFFSETS, SHARES):
            cluster.until_in_sync(topic)
    assert not again
    assert len(accepted) == written
    lines = [
        line.split() for line in tool("share-groups", "--describe", "--group", "work").splitlines() if line.strip()
    ]
    told = [dict(zip(lines[0], each, strict=False)) for each in lines[1:]]
    assert [each["LAG"] for each in told] == ["0", "0", "0"], told
    for member in members:
        member.leave()
    tool("share-groups", "--delete", "--group", "work")
    assert "work" not in tool("share-groups", "--list").split()
