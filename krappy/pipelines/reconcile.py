"""Reconcile: checks that a topic's table has the last event of each key of its archived log.

    found = reconcile.run(spark, "users", "/data/archive")
    assert not found.differences, found.examples

The table is read on a snapshot. The log is the archive, plus the broker's events from the archive's end to the
snapshot. Spark finds the last event of each key, without the broker, and compares. So others may write meanwhile. A key
that stands in several partitions is compared in each of them.

missing     the archive ends with a value that the table does not have
unknown     the table has a key that is not in the log, or whose last event in the log deletes it
offset      both have the key, from different events
value       both have the key from the same event, but value, headers or time differ
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as sf

from krappy.errors import ConfigError, TopicAuthorizationFailed
from krappy.pipelines import archive
from krappy.pipelines.following import Tell, silent
from krappy.spark.connections import client
from krappy.spark.options import texts
from krappy.spark.places import offsets_text
from krappy.spark.table import table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

WHERE = ["partition", "key"]
ENTRY = ["offset", "timestamp", "value", "headers"]
SHOWN = 20


class Compared(NamedTuple):
    """`keys`: how many have a value in the log or the table. `archived`, `since`: events of the archive, and after it.
    `differences`: how many keys differ, by kind; kinds with 0 are left out. `examples`: the first SHOWN rows of
    `compare` that differ."""

    keys: int
    archived: int
    since: int
    differences: dict[str, int]
    examples: list[Row]


def run(
    spark: SparkSession,
    topic: str,
    path: str,
    *,
    address: str | None = None,
    save: str | None = None,
    tell: Tell = silent,
) -> Compared:
    """Compares table and log. `path`: the archive. `save`: a new folder for all differences, as Parquet files.

    Raises ConfigError if the topic has events, and the archive has none of them; TopicAuthorizationFailed.
    """
    broker = client(address)
    described = broker.describe(topic)
    if not described.settings:
        raise TopicAuthorizationFailed(
            f"it needs DESCRIBE_CONFIGS on the topic '{topic}': its cleanup.policy tells which entries may be gone"
        )
    archived = archive.events(spark, path, topic).drop("date", "timestampType")
    with _held(spark, topic, address, len(described.partitions)) as (found, offsets):
        info = broker.describe(topic)
        stated = offsets_text({topic: offsets})
        tell(f"the table as of {stated}")
        parts = _parts(archived).collect()
        ends = {row.partition: row.end for row in parts}
        starts = {each.partition: each.start for each in info.partitions if each.partition in offsets}
        begin = {each: min(max(ends.get(each, 0), starts[each]), at) for each, at in offsets.items()}
        span = {"startingOffsets": offsets_text({topic: begin}), "endingOffsets": stated}
        options = texts({"address": address, "subscribe": topic, "includeHeaders": True, **span})
        rest = spark.read.format("krappy").options(**options).load().drop("timestampType")
        counted = {"archived": sum(row.n for row in parts), "since": rest.count()}
        tell(f"{counted['archived']:,} events are archived, {counted['since']:,} came after them")
        if counted["since"] and not counted["archived"]:
            raise ConfigError(f"{path} has no events of {topic}, so there is nothing to compare: archive it first")
        log = archived.unionByName(rest).where(before(offsets))
        if "compact" not in info.settings["cleanup.policy"]:  # retention deletes entries together with their events
            log = log.where(~before(starts))
        compared = compare(last_events(log), found).cache()
        try:
            kinds = {row["difference"]: row["n"] for row in _by_kind(compared).collect()}
            keys = sum(kinds.values())
            wrong = compared.where("difference IS NOT NULL")
            examples = wrong.orderBy(*WHERE).limit(SHOWN).collect()
            if save is not None:
                wrong.write.parquet(save)
        finally:
            compared.unpersist()
    return Compared(keys, **counted, differences={k: n for k, n in kinds.items() if k is not None}, examples=examples)


@contextmanager
def _held(
    spark: SparkSession, topic: str, address: str | None, partitions: int
) -> Iterator[tuple[DataFrame, dict[int, int]]]:
    """The table's rows, and the snapshots' offsets. A key has a row for each partition in which it stands. So the table
    is read in two parts: a read of all partitions together has a single row for a key that stands in several."""
    every = table(spark, topic, **texts({"address": address}), includeHeaders=True)
    with ExitStack() as stack:
        found: list[DataFrame] = []
        offsets: dict[int, int] = {}
        for some in filter(None, (range(partitions - 1), range(partitions - 1, partitions))):
            held = stack.enter_context(every.snapshot_of(list(some), ttl="1h"))
            found.append(held.df())
            offsets |= held.offsets
        yield reduce(lambda one, other: one.unionByName(other), found), offsets


def last_events(log: DataFrame) -> DataFrame:
    """The last event of each key, without those that are tombstones."""
    last = log.where("key IS NOT NULL").groupBy(*WHERE).agg(sf.max_by(sf.struct(*ENTRY), "offset").alias("last"))
    return last.where("last.value IS NOT NULL").select(*WHERE, "last.*")


def compare(expected: DataFrame, found: DataFrame) -> DataFrame:
    """A row for each key of either DataFrame. `difference`: its kind, or null."""
    ours = expected.select(*WHERE, sf.struct(*ENTRY).alias("log"))
    theirs = found.select(*WHERE, sf.struct(*ENTRY).alias("table"))
    kind = (
        sf.when(sf.col("table").isNull(), "missing")
        .when(sf.col("log").isNull(), "unknown")
        .when(sf.col("log.offset") != sf.col("table.offset"), "offset")
        .when(~sf.col("log").eqNullSafe(sf.col("table")), "value")
    )
    both = ours.join(theirs, WHERE, "full_outer").withColumn("difference", kind)
    sides = [sf.col(f"{side}.{name}").alias(f"{side}_{name}") for side in ("log", "table") for name in ENTRY]
    return both.select("difference", *WHERE, *sides)


def before(offsets: dict[int, int]) -> Column:
    """A condition on events: they are before these offsets, by partition."""
    limits = sf.create_map(*(sf.lit(each).cast("long") for pair in offsets.items() for each in pair))
    return sf.col("offset") < sf.coalesce(limits[sf.col("partition").cast("long")], sf.lit(0))


def _parts(archived: DataFrame) -> DataFrame:
    """A row for each partition: where the archive ends, and how many events it has."""
    return archived.groupBy("partition").agg((sf.max("offset") + 1).alias("end"), sf.count("*").alias("n"))


def _by_kind(compared: DataFrame) -> DataFrame:
    return compared.groupBy("difference").agg(sf.count("*").alias("n"))
