"""Measures what each cache of a lookup join is worth: `python -m tests.peers.spark_caches [KEYS PROBES ROUNDS]`.

A join of PROBES rows with a table of KEYS keys, first by workers that have kept nothing, and then again, without caches
and with one more each time, in turns. It prints the medians of ROUNDS in seconds.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sf

from krappy.cli.spawn import spawn_broker
from krappy.spark import join
from krappy.spark.session import session
from krappy.spark.source import KrappyDataSource
from tests.peers.spark import CONF, Bench, events, seconds, work_out

WAYS = ("none", "answers", "and the whole table", "and shared by the executor's workers")
ENTRY = ("value", "offset")


def joined(bench: Bench, topic: str, probes: int, way: int) -> Any:
    """`krappy.spark.lookup` with the first `way` caches."""
    address = bench.address

    def krappy_entries(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:  # Spark goes by these annotations
        from krappy.spark import kept, shared

        real = shared.__dict__.setdefault("real", shared.folder)
        shared.folder = real if way == 3 else lambda: None
        kept.FREE = 100_000 if way >= 2 else math.inf  # type: ignore[assignment]
        keep = kept.MOST - way if way else 0  # a value of its own, by which each way keeps entries of its own
        yield from join._ahead(join.entries(address, topic, ENTRY, False, keep, probes))(batches)

    rows = events(bench.spark, probes, bench.keys).select("key")
    krappy_entries.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    return rows.withColumn("entry", join._udf(krappy_entries, join._struct(ENTRY))(sf.col("key")))


def main(keys: int = 200_000, probes: int = 400_000, rounds: int = 5) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="krappy-spark-caches-") as folder,
        spawn_broker(Path(folder, "krappy"), {"durability": "os"}) as broker,
    ):
        spark = session("local[2]", app="caches", config=CONF)
        spark.dataSource.register(KrappyDataSource)
        bench = Bench(spark, broker.address, {}, 1, Path(folder))
        bench.keys = keys
        with bench.topic() as topic:
            bench.send(events(spark, keys, keys), topic, None, awaitTable="true")
            found: list[list[tuple[float, float]]] = [[] for _ in WAYS]
            for number in range(rounds + 1):
                for way in range(len(WAYS)) if number % 2 else reversed(range(len(WAYS))):
                    bench.forget(topic)
                    df = joined(bench, topic, probes, way)
                    figures = seconds(work_out, df), seconds(work_out, df)
                    if number:  # the first round warms up
                        found[way].append(figures)
        spark.stop()
    sys.stdout.write(f"{probes:,} rows, {keys:,} keys: first, again (s)\n")
    for name, each in zip(WAYS, found, strict=True):
        sys.stdout.write(f"{name:40} {median(one for one, _ in each):6.2f} {median(two for _, two in each):6.2f}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
