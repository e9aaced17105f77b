"""Does the work for SparkDriver: `python -m tests.chaos.spark_program ADDRESSES FOLDER`, one process, one Spark
session.

Each line of the standard input is a command, a JSON list. The answer is one line, too. The program ends when its input
ends.
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

CORES, TRIES = 2, 3  # TRIES: how often a failing task is tried
ERROR_CHARACTERS = 500


class SparkProgram:
    def __init__(self, spark: SparkSession, addresses: str, folder: Path) -> None:
        self._spark, self._address, self._folder = spark, {"address": addresses}, folder

    def write(self, name: str, rows: int, tasks: int) -> None:
        """Writes rows whose values begin with the name: all of them, or none."""
        made = self._spark.range(0, rows, 1, tasks).selectExpr(f"concat('{name} ', id) AS value")
        made.write.format("krappy").mode("append").options(**self._address, topic=PUBLISHED).save()

    def read(self) -> list[list[Any]]:
        """Reads the topic; returns the fields of a `ReadPart` for each job in each partition."""
        log = self._spark.read.format("krappy").options(**self._address, subscribe=PUBLISHED, minPartitions=4).load()
        values = log.selectExpr("partition", "offset", "CAST(value AS STRING) AS value")
        of_jobs = values.selectExpr("split(value, ' ')[0] AS job", "*").groupBy("job", "partition")
        return [list(row) for row in of_jobs.agg(*_counts()).collect()]

    def copy(self) -> None:
        """Lets the stream from one topic to the other go on from its last position to the present end."""
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
        except Exception as error:  # an error of Spark, py4j or the broker: SparkDriver reports it
            told = {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
