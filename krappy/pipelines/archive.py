"""Archive: writes the events of topics to Parquet files, in folders by topic and date (UTC), each event once.

    archive.run(spark, ["orders"], "s3a://lake/events", address="broker:7092")
    archive.events(spark, "s3a://lake/events", "orders").where("date >= '2026-01-01'")

A stream writes the files of a batch, and then their names to the folder's own log (`_spark_metadata`). Its checkpoint
is in the folder, too. Wherever a run was stopped, the next one goes on from there. Half-written files are not in the
log: `events`, and Spark's own `spark.read.parquet` of the folder, skip them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf
from pyspark.sql import types

from krappy.errors import ConfigError
from krappy.pipelines.following import Done, Tell, follow, last_batch, make_folder, names, place, silent
from krappy.spark.options import texts
from krappy.spark.schema import LOG_COLUMNS, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTED_BY = ("topic", "date")  # folders: topic=orders/date=2026-01-31
CHECKPOINT = "_checkpoint"  # in the archive's folder; Spark reads no data from names with a leading underscore
FILES = "_spark_metadata"
UTC_DATE = "date_from_unix_date(int(unix_millis(timestamp) div 86400000))"  # whatever the session's time zone is


def run(
    spark: SparkSession,
    topics: Sequence[str],
    path: str,
    *,
    address: str | None = None,
    every: str | None = None,
    checkpoint: str | None = None,
    per_batch: int | None = None,
    data_loss_fails: bool = True,
    tell: Tell = silent,
) -> Done:
    """Adds the events since the last run to the archive; the first run begins with the earliest event.

    Args:
        topics: those of earlier runs, and new ones, which are archived from their earliest event on. Without
            `data_loss_fails` some may be left out; once they are named again, they go on where they stopped.
        path: a folder of any file system that Spark knows, for one archive and nothing else.
        every: such as "1 minute": runs until it is stopped. None: ends with the last event that exists now.
        checkpoint: a folder; None: `_checkpoint` in `path`.
        per_batch: events of one batch at most.
        data_loss_fails: whether it is an error if events are gone before they are archived.

    Raises ConfigError if the archive was moved or copied, or made with another checkpoint, or a folder can't be made;
    and the stream's own errors.
    """
    events = spark.readStream.format("krappy").options(
        **texts(
            {
                "address": address,
                "subscribe": list(topics),
                "startingOffsets": "earliest",
                "includeHeaders": True,
                "maxOffsetsPerTrigger": per_batch,
                "failOnDataLoss": data_loss_fails,
            }
        )
    )
    path = _made_at(spark, path)
    checkpoint = checkpoint or f"{path.rstrip('/')}/{CHECKPOINT}"
    _check_batches(spark, path, checkpoint)
    for folder in (path, checkpoint):
        make_folder(spark, folder)
    dated = events.load().withColumn("date", sf.expr(UTC_DATE))
    writer = dated.writeStream.format("parquet").partitionBy(*PARTED_BY)
    writer = writer.option("path", path).option("checkpointLocation", checkpoint)
    return follow(writer, every, tell)


def _made_at(spark: SparkSession, path: str) -> str:
    """The name by which the archive in a folder was made: another one if `path` leads there by a link. Spark's log has
    the full names of its files, and Spark reads no archive with the names of two folders.

    Raises ConfigError for an archive that was moved or copied: then the log does not name the files in the folder."""
    named = _named_file(spark, f"{path.rstrip('/')}/{FILES}")
    if named is None:
        return path
    jvm: Any = spark._jvm
    made = jvm.java.net.URI(named.rpartition("/topic=")[0])  # it has %20 for a space
    files, folder = place(spark, path)
    here = files.makeQualified(folder).toUri()
    if made.getPath() == here.getPath():
        return path
    if not _is_same(jvm, made, here):
        raise ConfigError(
            f"{path} is an archive that was moved or copied: its log names the file {named}. Use it where it was made, "
            "or archive the topics into a new folder"
        )
    return str(jvm.org.apache.hadoop.fs.Path(made).toString())


def _is_same(jvm: Any, one: Any, other: Any) -> bool:
    """Whether two URIs are one folder of this machine, by a link or mounted at two places."""
    if {one.getScheme(), other.getScheme()} != {"file"}:
        return False
    nio = jvm.java.nio.file
    try:
        return bool(nio.Files.isSameFile(nio.Paths.get(one), nio.Paths.get(other)))
    except Py4JJavaError:  # one is not there
        return False


def _named_file(spark: SparkSession, log: str) -> str | None:
    """A file that the archive's log names, as it is named there. None: there is none, or it is unknown, over Spark
    Connect, or since the log is damaged, of which Spark tells."""
    for name in names(spark, log):
        if name.removesuffix(".compact").isdigit():
            files, path = place(spark, f"{log}/{name}")
            java: Any = spark._jvm.java.io  # type: ignore[union-attr]
            reader = java.BufferedReader(java.InputStreamReader(files.open(path), "UTF-8"))
            try:
                reader.readLine()  # the version of the log
                line = reader.readLine()
            finally:
                reader.close()
            with suppress(ValueError, KeyError, TypeError):
                return str(json.loads(line)["path"])
    return None


def _check_batches(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Raises ConfigError unless archive and checkpoint have the same number of batches.

    Spark numbers batches by the checkpoint, and skips those that the archive's log has already. So with the checkpoint
    of another archive, or a new one, events would be lost unnoticed."""
    archived, begun = last_batch(spark, f"{path.rstrip('/')}/{FILES}"), last_batch(spark, f"{checkpoint}/offsets")
    if not archived <= begun <= archived + 1:  # the last batch may have begun, but not ended
        raise ConfigError(
            f"{path} is an archive of {archived + 1} batches, and {checkpoint} is not its checkpoint, but one of "
            f"{begun + 1} batches: give the one that it was made with, or a new folder for both"
        )


def events(spark: SparkSession, path: str, topic: str | None = None) -> DataFrame:
    """The events of an archive, with the columns of a log read and `date`. Raises ConfigError if it was moved or
    copied."""
    found = spark.read.schema(schema()).parquet(_made_at(spark, path))
    return found if topic is None else found.where(sf.col("topic") == topic)


def is_there(spark: SparkSession, path: str) -> bool:
    """Whether a folder is an archive: whether it has the log that names the archive's files."""
    try:
        return bool(spark.read.text(f"{path.rstrip('/')}/{FILES}").columns)
    except AnalysisException:
        return False


def schema() -> types.StructType:
    """The columns of an archive. Spark would guess them otherwise, and take a topic called 2024 for a number."""
    fields = [field for field in spark_schema(LOG_COLUMNS).fields if field.name not in PARTED_BY]
    parted = [types.StructField("topic", types.StringType()), types.StructField("date", types.DateType())]
    return types.StructType([*fields, *parted])
