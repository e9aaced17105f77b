"""PySpark reads a topic that three brokers lead, and goes on when one of them is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import NewTopic

from krappy import blocking
from tests.cluster.brokers import ClusterProcesses, brokers
from tests.cluster.zookeeper import Missing
from tests.process import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 600


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    try:
        with brokers(tmp_path) as made:
            [topic] = made.admin.create_topics([NewTopic("t", 6, 3)]).values()
            topic.result(30)
            made.until_in_sync("t")
            wait_until(
                lambda: {each.leader for each in made.partitions("t").values()} == set(made.brokers), "each leads some"
            )
            yield made
    except Missing as reason:
        pytest.skip(str(reason))


def publish(cluster: ClusterProcesses, value: str) -> None:
    with blocking.connect(cluster.native, timeout=60) as client, client.producer("t", timeout=60) as producer:
        for number in range(COUNT):
            producer.send(value, key=f"k{number}")


def test_reads_go_on_without_a_leader(spark: SparkSession, cluster: ClusterProcesses, tmp_path: Path) -> None:
    def read(**options: Any) -> list[tuple[str, str]]:
        found = spark.read.format("krappy").options(address=cluster.native, **options).load()
        return sorted((row.key.decode(), row.value.decode()) for row in found.collect())

    def stream() -> int:
        """Takes all that is new. How many rows there are in all."""
        found = spark.readStream.format("krappy").options(address=cluster.native, subscribe="t")
        to = str(tmp_path / "out")
        query = (
            found.option("startingOffsets", "earliest")
            .load()
            .selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(to, format="parquet")
        )
        query.awaitTermination()
        return spark.read.parquet(to).count()

    keys = sorted(f"k{number}" for number in range(COUNT))
    publish(cluster, "1")
    one = [(key, "1") for key in keys]
    assert read(subscribe="t") == one
    assert read(subscribe="t", mode="table") == read(subscribe="t", mode="table", minPartitions=9) == one
    assert stream() == COUNT
    held = spark.read.format("krappy").options(address=cluster.native, subscribe="t", mode="snapshot").load().first()
    assert held is not None
    publish(cluster, "2")
    assert read(snapshot=held.snapshot) == one
    cluster.brokers[2].kill()
    two = [(key, "2") for key in keys]
    assert read(subscribe="t") == sorted(one + two)
    assert read(subscribe="t", mode="table") == read(subscribe="t", mode="table", minPartitions=9) == two
    assert stream() == 2 * COUNT
