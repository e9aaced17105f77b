"""Kafka's own tools read the committed offsets in the topic `__consumer_offsets` of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from krappy.core.cluster.coordinators import partition_of
from tests.cluster.brokers import ClusterProcesses, brokers
from tests.cluster.consumers import commit
from tests.cluster.offset_records import TOPIC
from tests.cluster.test_cluster import make_topic
from tests.cluster.test_groups import consumer
from tests.cluster.test_offset_records import commit_for, delete_group
from tests.cluster.zookeeper import Missing
from tests.compat import tools
from tests.compat.kafka_tools import KafkaTools

FORMATTER = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"


@pytest.fixture(scope="module")
def tool() -> KafkaTools:
    try:
        return KafkaTools("")
    except tools.Missing as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def cluster(tool: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    try:
        with brokers(tmp_path_factory.mktemp("offsets-topic")) as made:
            make_topic(made, "t")
            for group in ("g", "gone"):
                member = consumer(made, group)
                commit(member, [TopicPartition("t", 0, 7, "ä"), TopicPartition("t", 1, 8)])
                member.close()
            commit_for(made, "older", 9, 3_600_000)
            delete_group(made, "gone")
            yield made
    except Missing as reason:
        pytest.skip(str(reason))


def test_the_console_consumer_prints_offsets(tool: KafkaTools, cluster: ClusterProcesses) -> None:
    tool.address = cluster.kafka
    told = tool(
        *("console-consumer", "--topic", TOPIC, "--from-beginning", "--formatter", FORMATTER),
        # If the consumer committed what it has read, it would read these commits as new events, again and again.
        *("--timeout-ms", "15000", "--command-property", "enable.auto.commit=false"),
    )
    latest: dict[tuple[str, int], Any] = {}
    for text in told.replace("}{", "}\n{").splitlines():
        if text.startswith("{"):
            found = json.loads(text)
            key = found["key"]["data"]
            assert (found["key"]["type"], key["topic"]) == (1, "t")
            latest[key["group"], key["partition"]] = found["value"]
    assert {at for at, value in latest.items() if value is None} == {("gone", 0), ("gone", 1)}
    values = {at: (value["version"], value["data"]) for at, value in latest.items() if value is not None}
    assert set(values) == {("g", 0), ("g", 1), ("older", 0)}
    assert [(values[at][0], values[at][1]["offset"]) for at in sorted(values)] == [(3, 7), (3, 8), (1, 9)]
    assert [values["g", index][1]["metadata"] for index in (0, 1)] == ["ä\0", ""]  # confluent-kafka adds the zero
    assert values["g", 0][1]["leaderEpoch"] == -1
    older = values["older", 0][1]
    assert older["expireTimestamp"] == older["commitTimestamp"] + 3_600_000


def test_the_dump_of_a_log_prints_offsets(tool: KafkaTools, cluster: ClusterProcesses) -> None:
    index = partition_of("g", len(cluster.partitions(TOPIC)))
    data = cluster.brokers[cluster.coordinator("g")].data
    files = sorted(data.glob(f"topics/{TOPIC}-{index}/*.log"))
    assert files
    told = tool("dump-log", "--offsets-decoder", "--files", ",".join(map(str, files)))
    assert '"topic":"t"' in told, told
    assert '"offset":7' in told, told
