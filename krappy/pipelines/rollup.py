"""Rollup: keeps an aggregate of a topic up to date in a compacted topic, where it is looked up by key.

    rollup.run(
        spark, "flights", "aircraft",
        fields="carrier STRING, delay DOUBLE, time TIMESTAMP",
        aggregates={"flights": "count(*)", "mean_delay": "avg(value.delay)", "last_seen": "max(value.time)"},
    )

An event's value is JSON with these fields. Each batch upserts the groups that it has changed, once, even if it is
replayed: the table of the topic is the aggregate. With a window there is an entry for each group and window, under the
key GROUP@BEGIN (the beginning in UTC: 2026-01-31T12:00:00Z). The watermark says how late an event may come: a window
that ended longer ago is closed, and later events of it are left out and counted as late. (Before PySpark 4.2 a run does
not end with an empty batch, which would close windows: late events of the next batch still count.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from krappy.blocking import Client
from krappy.errors import ConfigError, UnknownTopic
from krappy.pipelines.following import Done, Tell, follow, last_batch, make_folder, names, silent
from krappy.spark.connections import client
from krappy.spark.options import texts
from krappy.spark.stream_write import batches_to

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

IDS = "krappy-to"  # a folder in the checkpoint, in which a folder has the id of the topic as its name
KEY, WINDOW, AT = "__key", "__window", "__at"  # columns beside an event's own
BOUNDS = ("from", "to")  # of a window, beside the aggregates
_BEGIN, _SECONDS = f"{WINDOW}.start", f"unix_seconds({WINDOW}.start)"
_MICROS = f"pmod(unix_micros({_BEGIN}), 1000000)"
BEGIN_UTC = f"""format_string(
    '%sT%02d:%02d:%02d%sZ',
    string(date_from_unix_date(int(({_SECONDS} - pmod({_SECONDS}, 86400)) div 86400))),
    pmod({_SECONDS}, 86400) div 3600, pmod({_SECONDS}, 3600) div 60, pmod({_SECONDS}, 60),
    if({_MICROS} = 0, '', format_string('.%06d', {_MICROS}))
)"""  # independent of the session's time zone: in another session the key must be the same


def run(
    spark: SparkSession,
    source: str,
    to: str,
    *,
    aggregates: Mapping[str, str],
    checkpoint: str,
    fields: str | None = None,
    by: str = "key",
    time: str = "timestamp",
    window: str | None = None,
    watermark: str | None = None,
    where: str | None = None,
    address: str | None = None,
    every: str | None = None,
    per_batch: int | None = None,
    data_loss_fails: bool = True,
    tell: Tell = silent,
) -> Done:
    """Brings the aggregate up to date. If the topic `to` does not exist, makes it: compacted, with as many partitions.

    Args:
        aggregates: by name, in SQL, over key (text), value (with its fields), timestamp, partition, offset, headers.
        checkpoint: a folder for the position and the aggregate's state. It belongs to one topic `to`: another topic, or
            one that was made anew, would get only the groups that change from then on, and is refused. (Over Spark
            Connect it is refused only if it was made anew during the run.)
        fields: those of the JSON in an event's value, as in CREATE TABLE. None: the value is text.
        by: the group of an event, in SQL. Events for which it is null are left out.
        time: the timestamp of an event, in SQL. With a window, events for which it is null are left out.
        window: such as "1 hour". None: one entry for each group, over all time; the state keeps every group for ever.
        watermark: such as "10 minutes"; with a window only. None: "0 seconds": events must be in the order of time.
        where: a condition in SQL: other events are left out.
        every, per_batch, tell: as in `archive.run`.
        data_loss_fails: whether it is an error if events are gone before they are read.

    Raises ConfigError, and Spark's errors about the SQL.
    """
    if not aggregates:
        raise ConfigError("a rollup without an aggregate: give one, such as count(*)")
    if window is not None and (taken := [name for name in aggregates if name.lower() in BOUNDS]):
        raise ConfigError(
            f"the aggregate '{taken[0]}' has the name of one of the window's bounds: give it another name"
        )
    if watermark is not None and window is None:
        raise ConfigError("a watermark closes windows: give a window, too, or neither")
    if source == to:
        raise ConfigError(f"a rollup of {source} into itself would aggregate its own results: give another topic")
    broker = client(address)
    begun = last_batch(spark, f"{checkpoint}/offsets") >= 0
    if begun:
        id = _same(broker, to, checkpoint, names(spark, f"{checkpoint}/{IDS}"))
    else:
        make_folder(spark, checkpoint)
        broker.create_topic(to, len(broker.describe(source).partitions), {"cleanup.policy": "compact"}, if_absent=True)
        id = broker.describe(to).id
    make_folder(spark, f"{checkpoint}/{IDS}/{id}")
    options = {"subscribe": source, "address": address, "startingOffsets": "earliest", "includeHeaders": True}
    limits = {"maxOffsetsPerTrigger": per_batch, "failOnDataLoss": data_loss_fails}
    stream = spark.readStream.format("krappy").options(**texts({**options, **limits}))
    events = parsed(stream.load(), fields, by, time, where)
    upserts = aggregated(events, aggregates, window, watermark).writeStream.outputMode("update")
    into = batches_to(to, **texts({"address": address}))

    def write(batch: DataFrame, number: int) -> None:
        _same(client(address), to, checkpoint, [id])
        into(batch, number)

    return follow(upserts.foreachBatch(write).option("checkpointLocation", checkpoint), every, tell)


def _same(broker: Client, to: str, checkpoint: str, known: Sequence[str]) -> str:
    """The topic's id. Raises ConfigError unless it is one of those to which earlier batches of the checkpoint were
    written, as far as these are `known`."""
    new = "would get only the groups that change from now on. Give a new checkpoint"
    try:
        id: str = broker.describe(to).id
    except UnknownTopic:
        raise ConfigError(f"{checkpoint} has batches already, and there is no topic {to}: a new one {new}") from None
    if known and id not in known:
        raise ConfigError(f"{checkpoint} has batches of another topic, or {to} was deleted and made anew: it {new}")
    return id


def parsed(events: DataFrame, fields: str | None, by: str, time: str, where: str | None = None) -> DataFrame:
    """Events with the key as text, the value as a struct (or text), and the columns __key (group) and __at (time)."""
    text = sf.col("value").cast("string")
    value = text if fields is None else sf.from_json(text, fields)
    read = events.withColumn("key", sf.col("key").cast("string")).withColumn("value", value)
    read = read.where(where) if where else read
    return read.withColumn(KEY, sf.expr(by).cast("string")).withColumn(AT, sf.expr(time)).where(sf.col(KEY).isNotNull())


def aggregated(
    events: DataFrame, aggregates: Mapping[str, str], window: str | None = None, watermark: str | None = None
) -> DataFrame:
    """The rows to upsert: `key`, and `value` as JSON with the aggregates and, if there is a window, its bounds."""
    groups: list[Column] = [sf.col(KEY)]
    shown: list[Column] = [sf.col(f"`{name}`") for name in aggregates]
    key: Column = sf.col(KEY)
    if window is not None:
        events = events.withWatermark(AT, watermark or "0 seconds")
        groups.append(sf.window(AT, window).alias(WINDOW))
        key = sf.concat_ws("@", key, sf.expr(BEGIN_UTC))
        shown += [sf.col(f"{WINDOW}.{side}").alias(name) for side, name in zip(("start", "end"), BOUNDS, strict=True)]
    found = events.groupBy(*groups).agg(*(sf.expr(text).alias(name) for name, text in aggregates.items()))
    value = sf.to_json(sf.struct(*shown), {"ignoreNullFields": "false"})
    return found.select(key.alias("key"), value.alias("value"))
