"""A batch is refused for a reason that has passed when the producer's next batch comes. The next batch must not be
stored before the first one, which is sent again. (tests/kafka/test_refused_batches.py tests the same without a
cluster.)"""

from __future__ import annotations

import pytest

from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.test_moves import make
from tests.kafka.idempotent import Idempotent
from tests.kafka.raw import Raw
from tests.process import wait_until

KNOWN = (0, 2)  # so many batches the producer has stored before


@pytest.fixture
def cluster(lasting: ClusterProcesses) -> ClusterProcesses:
    return lasting


def let_lead(cluster: ClusterProcesses, raw: Raw, topic: str) -> None:
    """Lets broker 1, to which `raw` is connected, lead in the place of broker 2."""
    reassigned = {"name": topic, "partitions": [{"partition_index": 0, "replicas": [1, 2]}]}
    raw.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": [reassigned]})
    elected = {"topic": topic, "partitions": [0]}
    raw.ask(ApiKey.ELECT_LEADERS, {"election_type": 0, "topic_partitions": [elected], "timeout_ms": 30_000})
    wait_until(lambda: cluster.partitions(topic)[0].leader == 1, "it leads")


@pytest.mark.parametrize("known", KNOWN)
def test_while_too_few_replicas_were_in_sync(cluster: ClusterProcesses, known: int) -> None:
    topic = f"few-{known}"
    make(cluster, topic, 1, 2, **{"min.insync.replicas": "2"})
    cluster.until_in_sync(topic)
    with cluster.asked(1) as raw:
        producer = Idempotent(raw, topic)
        assert [producer.sent(each) for each in range(known)] == [Code.NONE] * known
        cluster.brokers[2].kill()
        wait_until(lambda: cluster.partitions_at(1, topic)[0].isrs == [1], "it has left the ISR")
        for each in (0, 1):
            assert producer.sent(known + each) == Code.NOT_ENOUGH_REPLICAS
        cluster.start_again(2)
        cluster.until_in_sync(topic)
        assert producer.sent(known + 2) == Code.NOT_ENOUGH_REPLICAS
        assert [producer.sent(known + each) for each in range(4)] == [Code.NONE] * 4
        assert raw.values(topic) == [b"%d" % each for each in range(known + 4)]


@pytest.mark.parametrize("known", KNOWN)
def test_when_the_first_was_refused_after_it_was_appended(cluster: ClusterProcesses, known: int) -> None:
    topic = f"appended-{known}"
    make(cluster, topic, 1, 2, **{"min.insync.replicas": "2"})
    cluster.until_in_sync(topic)
    with cluster.asked(1) as raw:
        producer = Idempotent(raw, topic)
        assert [producer.sent(each) for each in range(known)] == [Code.NONE] * known
        with cluster.paused(2):
            assert producer.sent(known) == Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            assert producer.sent(known + 1) == Code.NOT_ENOUGH_REPLICAS
        cluster.until_in_sync(topic)
        assert producer.sent(known + 2) == Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert [producer.sent(known + each) for each in range(4)] == [Code.NONE] * 4
        assert raw.values(topic) == [b"%d" % each for each in range(known + 4)]


@pytest.mark.parametrize("known", KNOWN)
def test_before_the_broker_led_the_partition(cluster: ClusterProcesses, known: int) -> None:
    topic = f"led-{known}"
    make(cluster, topic, 2, 1)
    cluster.until_in_sync(topic)
    with cluster.asked(1) as raw, cluster.asked(2) as before:
        producer = Idempotent(before, topic)
        assert [producer.sent(each) for each in range(known)] == [Code.NONE] * known
        producer.raw = raw
        assert producer.sent(known) == Code.NOT_LEADER_OR_FOLLOWER
        let_lead(cluster, raw, topic)
        assert producer.sent(known + 1) == Code.NOT_LEADER_OR_FOLLOWER
        wait_until(lambda: producer.sent(known) == Code.NONE, "it is taken")
        assert [producer.sent(known + each) for each in range(1, 4)] == [Code.NONE] * 3
        assert raw.values(topic) == [b"%d" % each for each in range(known + 4)]


def test_what_was_stored_elsewhere_holds_up_nobody(cluster: ClusterProcesses) -> None:
    topic = "elsewhere"
    make(cluster, topic, 2, 1)
    cluster.until_in_sync(topic)
    with cluster.asked(1) as raw, cluster.asked(2) as before:
        producer = Idempotent(raw, topic)
        assert producer.sent(0) == Code.NOT_LEADER_OR_FOLLOWER
        producer.raw = before
        assert [producer.sent(each) for each in range(2)] == [Code.NONE] * 2
        producer.raw = raw
        let_lead(cluster, raw, topic)
        wait_until(lambda: producer.sent(2) == Code.NONE, "it goes on")
