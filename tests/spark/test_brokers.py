"""PySpark reads and writes a topic that three brokers lead, and goes on when one of them is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import NewTopic

from krappy import blocking
from krappy.broker.topics.internal_topics import JOBS
from tests.cluster.brokers import ClusterProcesses, brokers
from tests.cluster.test_staged_jobs import coordinator
from tests.cluster.zookeeper import Missing
from tests.long import long
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


@long
def test_reads_go_on_without_a_leader(spark: SparkSession, cluster: ClusterProcesses, tmp_path: Path) -> None:
    def read(**options: Any) -> list[tuple[str, str]]:
        found = spark.read.format("krappy").options(address=cluster.native, **options).load()
        return sorted((row.key.decode(), row.value.decode()) for row in found.collect())

    def stream() -> int:
        """Takes all that is new; returns how many rows there are in all."""
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


def test_a_write_is_published_once_though_brokers_die(spark: SparkSession, cluster: ClusterProcesses) -> None:
    """The job's coordinator dies while tasks stage rows; and in another write a leader dies before the job is
    published."""
    from pyspark.sql import functions

    def write(name: str) -> None:
        frame = spark.range(0, COUNT, 1, 6).select(
            functions.col("id").cast("string").cast("binary").alias("key"),
            functions.lit(name).cast("binary").alias("value"),
        )

        def slowly(batches: Any) -> Any:
            import time

            for batch in batches:
                time.sleep(2)  # so that tasks are under way when the broker dies
                yield batch

        slow = frame.mapInArrow(slowly, frame.schema)
        slow.write.format("krappy").mode("append").options(address=cluster.native, topic="t", jobId=name).save()

    def written(value: str) -> list[bytes]:
        read = spark.read.format("krappy").options(address=cluster.native, subscribe="t").load()
        return sorted(row.key for row in read.collect() if row.value == value.encode())

    wanted = sorted(b"%d" % number for number in range(COUNT))
    with blocking.connect(cluster.native, timeout=60) as client:

        def killing(job: str, sealed: int, choose: Callable[[int], int]) -> Killer:
            """`choose`: the broker to kill, of the coordinator's id. It is killed once `sealed` attempts are sealed."""

            def kill() -> int:
                wait_until(lambda: any(each.sealed >= sealed for each in client.staged_jobs()), "tasks have sealed")
                id = choose(coordinator(cluster, job))
                cluster.brokers[id].kill()
                return id

            return Killer(kill)

        killer = killing("one#0", 1, lambda coordinator: coordinator)
        write("one")
        killed = killer.join()
        assert written("one") == wanted
        cluster.brokers[killed].start()
        cluster.until_in_sync("t")
        cluster.until_in_sync(JOBS)
        killer = killing("two#0", 4, lambda coordinator: next(id for id in cluster.brokers if id != coordinator))
        write("two")
        killer.join()
        assert written("two") == wanted
        write("two")
        assert written("two") == wanted, "it was published already"


class Killer:
    """Kills a broker in a thread of its own: Spark's session belongs to the main thread."""

    def __init__(self, kill: Callable[[], int]) -> None:
        self._outcome: list[int | BaseException] = []
        self._kill = kill
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._kill())
        except BaseException as error:
            self._outcome.append(error)

    def join(self) -> int:
        self._thread.join(120)
        [outcome] = self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome
