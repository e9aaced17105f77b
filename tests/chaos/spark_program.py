"""What SparkDriver has done: `python -m tests.chaos.spark_program ADDRESSES FOLDER`, one process and one Spark session.

Each line of the standard input is a command, a JSON list; the answer is a line, too. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import krappy.spark
from tests.chaos.jobs import COPIED, PUBLISHED
from tests.spark.conftest import SETTINGS
from tests.spark.queries import ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES, TRIES = 2, 3  # a task that fails is tried as often
ERROR_CHARACTERS = 500


class SparkProgram:
    def __init__(self, spark: SparkSession, addresses: str, folder: Path) -> None:
        self._spark, self._address, self._folder = spark, {"address": addresses}, folder

    def write(self, name: str, rows: int, tasks: int) -> None:
        """Rows whose values begin with the name; all of them, or none."""
        made = self._spark.range(0, rows, 1, tasks).selectExpr(f"concat('{name} ', id) AS value")
        made.write.format("krappy").mode("append").options(**self._address, topic=PUBLISHED).save()

    def read(self) -> list[list[Any]]:
        """As `ReadPart`, of each job in each partition."""
        log = self._spark.read.format("krappy").options(**self._address, subscribe=PUBLISHED, minPartitions=4).load()
        values = log.selectExpr("partition", "offset", "CAST(value AS STRING) AS value")
        of_jobs = values.selectExpr("split(value, ' ')[0] AS job", "*").groupBy("job", "partition")
        return [list(row) for row in of_jobs.agg(*_counts()).collect()]

    def copy(self) -> None:
        """A stream from one topic to the other goes on where it was, to what is the end now."""
        stream = self._spark.readStream.format("krappy").options(**self._address, subscribe=PUBLISHED)
        copied = stream.option("startingOffsets", "earliest").load().select("value").writeStream.format("krappy")
        ended(copied.options(topic=COPIED, checkpointLocation=str(self._folder / "checkpoint"), **self._address))


def _counts() -> list[Any]:
    from pyspark.sql import functions as sf

    return [sf.count("value"), sf.count_distinct("value"), sf.max("offset")]


def main(addresses: str, folder: str) -> None:
    spark = krappy.spark.session(f"local[{CORES},{TRIES}]", config=SETTINGS)
    program = SparkProgram(spark, addresses, Path(folder))
    for line in sys.stdin:
        command, *given = json.loads(line)
        do: Callable[..., Any] = getattr(program, command)
        try:
            told = {"found": do(*given)}
        except Exception as error:  # Spark's, py4j's or the broker's: the driver tells it
            told = {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
