"""A broker is killed and started again in the middle of a read: the read gives the exact answer of one moment, or a
clear error.

A proxy holds the answers back after some bytes of them have passed, so that the read is under way, and not at its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from krappy import blocking
from tests.clients.proxy import Proxy, proxy
from tests.long import long
from tests.process import PATIENCE, BrokerProcess, broker_process
from tests.spark.queries import ended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 64 << 10  # bytes of a value
TOPIC = "t"
Entries = list[tuple[int, str, str]]  # offset, key, beginning of the value


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "data") as found:
        yield found


@pytest.fixture
def between(broker: BrokerProcess) -> Iterator[Proxy]:
    with proxy(broker.address) as found:
        yield found


def write(broker: BrokerProcess, value: str, keys: range) -> None:
    with blocking.connect(broker.address) as client, client.producer(TOPIC) as producer:
        for n in keys:
            producer.send(f"{value} ".ljust(SIZE, "."), key=f"k{n:03}")


def load(spark: SparkSession, between: Proxy, **options: Any) -> DataFrame:
    return spark.read.format("krappy").options(address=between.address, subscribe=TOPIC, **options).load()


def entries(df: DataFrame) -> Entries:
    """Offset, key, and the beginning of the value. A value of another size comes whole."""
    value = sf.col("value").cast("string")
    said = sf.when(sf.length("value") == SIZE, sf.split(value, " ")[0]).otherwise(value)
    rows = df.select("offset", sf.col("key").cast("string").alias("key"), said.alias("said")).collect()
    return sorted((row.offset, row.key, row.said) for row in rows)


@contextmanager
def interrupted(broker: BrokerProcess, between: Proxy, after: int, meanwhile: Callable[[], None]) -> Iterator[None]:
    """The `with` reads. After `after` bytes the broker is killed and started again, and `meanwhile` runs."""
    failed: list[BaseException] = []

    def interrupt() -> None:
        try:
            assert between.holds.wait(PATIENCE), "the read came to its end, or did not begin"
            broker.kill()
            broker.start()
            meanwhile()
            between.to = broker.address
        except BaseException as error:
            failed.append(error)
        finally:
            between.release()

    between.hold(after)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failed, failed


def answer(read: Callable[[], Any]) -> Any:
    """What was read, or the error's text."""
    try:
        return read()
    except Exception as error:
        return str(error)


CLEAR = ("krappy.errors.ConnectionLost: ", "krappy.errors.RequestTimeout: ")


def test_a_log(spark: SparkSession, broker: BrokerProcess, between: Proxy) -> None:
    """It ends where it was planned to end, whatever has come since."""
    write(broker, "old", range(300))
    loaded = load(spark, between)
    with interrupted(broker, between, 4 << 20, lambda: write(broker, "new", range(300))):
        found = answer(lambda: entries(loaded))
    if isinstance(found, str):  # on a machine where a broker's start takes longer than a task waits
        assert any(each in found for each in CLEAR), found
    else:
        assert found == [(n, f"k{n:03}", "old") for n in range(300)]
    assert len(entries(load(spark, between))) == 600


def test_a_table_that_one_task_reads(spark: SparkSession, broker: BrokerProcess, between: Proxy) -> None:
    """The snapshot is lost, so the task begins again: it gives all of the table as it was, or all as it is now."""
    write(broker, "old", range(100))
    with interrupted(broker, between, 2 << 20, lambda: write(broker, "new", range(100))):
        found = answer(lambda: entries(load(spark, between, mode="table")))
    old = [(n, f"k{n:03}", "old") for n in range(100)]
    new = [(100 + n, f"k{n:03}", "new") for n in range(100)]
    if isinstance(found, str):
        assert any(each in found for each in (*CLEAR, "krappy.errors.SnapshotGone: ")), found
    else:
        assert found in (old, new)
    assert entries(load(spark, between, mode="table")) == new


def test_a_table_that_many_tasks_read(spark: SparkSession, broker: BrokerProcess, between: Proxy) -> None:
    """The broker held the snapshot for all tasks. No task can read another one, and the error says what to do."""
    write(broker, "old", range(300))
    loaded = load(spark, between, mode="table", minPartitions=4)
    with interrupted(broker, between, 4 << 20, lambda: write(broker, "new", range(300))):
        found = answer(lambda: entries(loaded))
    assert isinstance(found, str)
    assert "krappy.errors.SnapshotGone: the snapshot that this DataFrame reads has ended: load() it again" in found
    assert {said for _, _, said in entries(load(spark, between, mode="table", minPartitions=4))} == {"new"}


@long
def test_a_stream_that_begins_with_the_table(
    spark: SparkSession, broker: BrokerProcess, between: Proxy, tmp_path: Path
) -> None:
    """In the end the reader knows the table, and no event came twice."""
    write(broker, "old", range(300))
    options = {"address": between.address, "subscribe": TOPIC, "startingOffsets": "snapshot"}
    stream = spark.readStream.format("krappy").options(**options).load()
    seen: Entries = []
    writer = stream.writeStream.foreachBatch(lambda batch, _: seen.extend(entries(batch)))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with interrupted(broker, between, 4 << 20, lambda: write(broker, "new", range(150))):
        failed = answer(lambda: ended(writer) and seen)
    assert failed == seen or any(each in failed for each in CLEAR), failed
    ended(writer)
    assert len({offset for offset, _, _ in seen}) == len(seen)
    known = {key: said for _, key, said in sorted(seen)}
    assert known == {f"k{n:03}": "new" if n < 150 else "old" for n in range(300)}
