"""A topic as a table, in Spark: DataFrames that are loaded anew for each use; conditions on the key become lookups."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from krappy.errors import ConfigError
from krappy.spark import at_once, conditions
from krappy.spark.broker_at import BrokerAt, broker_at, plain_names
from krappy.spark.demands import options_of
from krappy.spark.keys import Keys
from krappy.spark.option_table import KEY_OPTIONS
from krappy.spark.options import parse, texts
from krappy.spark.places import offsets_text
from krappy.spark.schema import TABLE_COLUMNS, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FIXED = {"mode", "subscribe", "subscribepattern", "assign", "pushdown", "snapshot"}  # SparkTable sets them itself
ATTRIBUTES = {*TABLE_COLUMNS} - {"offset"}  # columns that are also attributes; offset() is a method of DataFrame


def table(spark: SparkSession, topic: str, *, client_address: str | None = None, **options: Any) -> SparkTable:
    """The topic as a table.

        users = krappy.spark.table(spark, "users", keyType="string")
        users.where("key = 'u1'")                 # a lookup
        users.where("key like 'u1%'").count()     # reads the keys with that prefix
        users.df()                                # all of it
        with users.snapshot() as held:            # one moment, with its offsets

    Args:
        client_address: host:port under which this program itself reaches the broker, to look keys up without a job.
            None: `address`; but over Spark Connect this program asks no broker then, since `address` is the one that
            Spark's server and its executors see. It has to be the same broker: nothing checks that.
        options: those of the data source, by their names: address="…", keyType="string", columns="key,value", …

    Raises ConfigError for several topics, and for options that this function sets itself.
    """
    if "," in topic:
        raise ConfigError(
            f"krappy.spark.table({topic!r}): a table is that of one topic; to read several at once: "
            f"spark.read.format('krappy').option('mode', 'table').option('subscribe', {topic!r})"
        )
    for name in options:
        if name.lower() in FIXED:
            raise ConfigError(f"krappy.spark.table(…, {name}=…): it reads one whole topic as a table, leave {name} out")
    return SparkTable(spark, topic, options, client_address)


class SparkTable:
    """A topic as a table, as it is now: every use loads it anew. It has the methods of a DataFrame, each on a new load.

    `remote` and what follows it are for TableSnapshot.
    """

    def __init__(
        self, spark: SparkSession, topic: str, options: Mapping[str, Any], client_address: str | None = None
    ) -> None:
        self.topic = topic
        self.client_address = client_address
        self._spark = spark
        self.options = {"mode": "table", "subscribe": topic, **texts(options)}
        self._blank: DataFrame | None = None  # conditions are checked on it

    def df(self, **options: Any) -> DataFrame:
        """The table, or with more options a part of it. Filters on it are not pushed down: Spark reads all keys."""
        return self.load({**self.options, **texts(options)})

    def where(self, condition: Column | str) -> DataFrame:
        """The rows for which a condition holds. Only the keys that it demands (=, IN, <, BETWEEN, LIKE 'a%' with
        keyType=string; joined by AND and OR) are read; if it says nothing of `key`, the whole table is.

        As any DataFrame it is read anew each time a query runs. If the condition names at most 1,000 keys, this program
        looks them up itself for collect(), count(), first() and the other actions, without a job. DataFrames made from
        it are read by tasks; over Spark Connect without a `client_address` everything is.
        """
        return self.chosen(self.options, self.key_options(condition), condition)

    filter = where

    def lookup(self, keys: Iterable[str | bytes]) -> DataFrame:
        """The rows of these keys (text as UTF-8, or bytes), read as those of `where`."""
        exact = tuple(dict.fromkeys(key.encode() if isinstance(key, str) else bytes(key) for key in keys))
        return self.chosen(self.options, options_of(Keys(exact=exact)))

    def snapshot(self, ttl: str = "10m", **options: Any) -> TableSnapshot:
        """One moment of the table. The broker holds it until nobody has read it for `ttl`."""
        return self._snapshot({"subscribe": self.topic}, ttl, options)

    def snapshot_of(self, partitions: Sequence[int], ttl: str = "10m", **options: Any) -> TableSnapshot:
        """One moment of some partitions, each by itself: a key that stands in several of them has several rows, unless
        these are all partitions."""
        return self._snapshot({"assign": json.dumps({self.topic: list(partitions)})}, ttl, options)

    def _snapshot(self, which: Mapping[str, str], ttl: str, options: Mapping[str, Any]) -> TableSnapshot:
        usable = {name.lower() for name in ("address", "minPartitions", "keyEncoding", *KEY_OPTIONS)}
        mine = {name: value for name, value in self.options.items() if name.lower() in usable}
        rows = self.load({**mine, **texts(options), **which, "mode": "snapshot", "snapshotTtl": ttl}).collect()
        return TableSnapshot(self, rows[0]["snapshot"], {row["partition"]: row["offset"] for row in rows})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name] if name in ATTRIBUTES else getattr(self.df(), name)

    def __getitem__(self, name: str) -> Column:
        """A column by its name, for conditions. It belongs to no DataFrame, since each use makes another one."""
        from pyspark.sql.functions import col

        return col(name)

    def __repr__(self) -> str:
        return f"krappy.spark.table({self.topic!r})"

    def remote(self) -> bool:
        """Whether this is Spark Connect: Spark runs elsewhere, and this program may not reach the broker."""
        return not hasattr(self._spark, "_jsparkSession")

    def near(self) -> bool:
        """Whether this program is known to reach the broker."""
        return self.client_address is not None or not self.remote()

    def broker(self) -> BrokerAt:
        """The broker as this program reaches it. Raises ConfigError."""
        here = {} if self.client_address is None else {"address": self.client_address}
        return broker_at(plain_names({**{name.lower(): str(each) for name, each in self.options.items()}, **here}))

    def load(self, options: Mapping[str, str]) -> DataFrame:
        """A DataFrame with these options and no others."""
        return self._spark.read.format("krappy").options(**options).load()

    def chosen(
        self, options: Mapping[str, str], keys: Mapping[str, str], condition: Column | str | None = None
    ) -> DataFrame:
        """The rows of these options and key options for which the condition holds. Exact keys are looked up without a
        job, if this program reaches the broker."""
        every = {**options, **keys}

        def left(found: DataFrame) -> DataFrame:
            return found if condition is None else found.where(condition)

        def now() -> DataFrame | None:
            here = {} if self.client_address is None else {"address": self.client_address}
            found = at_once.load(self._spark, {**every, **here})
            return None if found is None else left(found)

        if "keys" in keys and self.near():
            return at_once.answered(self._spark, lambda: left(self.load(every)), now)
        return left(self.load(every))

    def key_options(self, condition: Column | str) -> dict[str, str]:
        """The keys that a condition demands, as options; none if it demands no certain keys.

        Raises AnalysisException for an invalid condition, but over Spark Connect its first use does.
        """
        if {"limit", *(name.lower() for name in KEY_OPTIONS)} & {name.lower() for name in self.options}:
            return {}
        session: Any = self._spark
        asked = parse(self.options, "log")
        if not self.remote():
            from krappy.spark import catalyst  # needs py4j, which a mere client of Spark Connect has not

            if self._blank is None:
                self._blank = catalyst.blank(session, spark_schema(asked.columns, asked.key_type))
            self._blank.where(condition)
        return options_of(conditions.keys(condition, asked.key_type, session.client if self.remote() else None))


class TableSnapshot:
    """One moment of a table. Any number of DataFrames on it see the same rows.

    `offsets`: by partition, the offset of the first event that is not in it.
    """

    def __init__(self, table: SparkTable, text: str, offsets: dict[int, int]) -> None:
        self.offsets = offsets
        self._table = table
        self._text = text

    @property
    def starting_offsets(self) -> str:
        """`offsets` as text for the option startingOffsets: reads on from there, with no gap and no duplicate."""
        return offsets_text({self._table.topic: self.offsets})

    def df(self, **options: Any) -> DataFrame:
        """Its rows. If the snapshot has ended, a query fails with SnapshotGone."""
        return self._table.load({**self._options(), **texts(options)})

    def where(self, condition: Column | str) -> DataFrame:
        """The rows for which a condition holds, as `SparkTable.where`."""
        return self._table.chosen(self._options(), self._table.key_options(condition), condition)

    def _options(self) -> dict[str, str]:
        taken = ("subscribe", "minpartitions", "snapshotttl")  # they were used to take the snapshot
        mine = {name: value for name, value in self._table.options.items() if name.lower() not in taken}
        return {**mine, "snapshot": self._text}

    filter = where

    def close(self) -> None:
        """Ends the snapshot now if this program reaches the broker. If not (Spark Connect without a `client_address`),
        it ends by itself."""
        if self._table.near():
            from krappy.spark.connections import client
            from krappy.spark.held import from_text

            client(self._table.broker()).close_snapshot(from_text(self._text).id)

    def __enter__(self) -> TableSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<snapshot of {self._table.topic!r} at {json.dumps(self.offsets)}>"
