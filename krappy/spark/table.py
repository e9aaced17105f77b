"""A topic as a table, in Spark: DataFrames that are loaded anew for each use, with conditions on the key looked up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from krappy.errors import ConfigError
from krappy.spark import at_once, conditions
from krappy.spark.demands import narrowed, options_of
from krappy.spark.keys import Keys
from krappy.spark.option_table import KEY_OPTIONS
from krappy.spark.options import parse, texts
from krappy.spark.places import offsets_text
from krappy.spark.schema import TABLE_COLUMNS, spark_schema
from krappy.spark.telling import told
from krappy.spark.versions import features

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
FIXED = {"mode", "subscribe", "subscribepattern", "assign", "pushdown", "snapshot"}  # a Table sees to them
ATTRIBUTES = {*TABLE_COLUMNS} - {"offset"}  # columns that are attributes, too: offset() is a method of a DataFrame
_planning = threading.Lock()


def table(spark: SparkSession, topic: str, *, client_address: str | None = None, **options: Any) -> SparkTable:
    """The topic as a table.

        users = krappy.spark.table(spark, "users", keyType="string")
        users.where("key = 'u1'")                 # a lookup
        users.where("key like 'u1%'").count()     # reads the keys with that prefix
        users.df()                                # all of it
        with users.snapshot() as held:            # one moment, with its offsets

    Args:
        client_address: host:port under which this program itself reaches the broker, to look keys up at once. None: it
            is `address`; but over Spark Connect, where that is the address as Spark's server and its executors see it,
            this program asks no broker then. It has to be the same broker: nobody compares.
        options: those of the data source, by their names: address="…", keyType="string", columns="key,value", …

    Raises ConfigError for several topics, and for options that are not to be chosen here.
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
    """Every use loads the table anew: what is true now. What a DataFrame can, it can too, by a new load each time."""

    def __init__(
        self, spark: SparkSession, topic: str, options: Mapping[str, Any], client_address: str | None = None
    ) -> None:
        self.topic = topic
        self.client_address = client_address
        self._spark = spark
        self.options = {"mode": "table", "subscribe": topic, **texts(options)}
        self._blank: DataFrame | None = None  # what conditions are planned with,
        self._asked: DataFrame | None = None  # and over Spark Connect; its reader never reads anything

    def df(self, **options: Any) -> DataFrame:
        """The table, or what more options leave of it. Filters on it are Spark's alone: it reads all keys."""
        return self.load({**self.options, **texts(options)})

    def where(self, condition: Column | str) -> DataFrame:
        """The rows for which a condition holds. What it demands of `key` (=, IN, <, BETWEEN, LIKE 'a%' with
        keyType=string; joined by AND and OR) is looked up; one that demands nothing of it reads the whole table.

        Like any DataFrame it is read when a query runs, each time anew. Up to 1,000 keys that it names are looked up by
        this program itself for collect(), count(), first() and the other actions, without a job; what is made of it
        otherwise, and all of it over Spark Connect without a `client_address`, is read by tasks.
        """
        return self.chosen(self.options, self.key_options(condition), condition)

    filter = where

    def lookup(self, keys: Iterable[str | bytes]) -> DataFrame:
        """The rows of these keys, text as UTF-8, or bytes; read as those of `where`."""
        exact = tuple(dict.fromkeys(key.encode() if isinstance(key, str) else bytes(key) for key in keys))
        return self.chosen(self.options, options_of(Keys(exact=exact)))

    def snapshot(self, ttl: str = "10m", **options: Any) -> TableSnapshot:
        """A moment of the table, held by the broker until nobody has read it for `ttl`."""
        return self._snapshot({"subscribe": self.topic}, ttl, options)

    def snapshot_of(self, partitions: Sequence[int], ttl: str = "10m", **options: Any) -> TableSnapshot:
        """A moment of some partitions, each for itself: unless they are all, a key that stands in several has several
        rows."""
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
        """A column by its name, for conditions: not that of one DataFrame, since each use is another."""
        from pyspark.sql.functions import col

        return col(name)

    def __repr__(self) -> str:
        return f"krappy.spark.table({self.topic!r})"

    def remote(self) -> bool:
        """Spark Connect: Spark runs elsewhere, and this program may not reach the broker."""
        return not hasattr(self._spark, "_jsparkSession")

    def near(self) -> bool:
        """Whether this program reaches the broker, so far as it was told."""
        return self.client_address is not None or not self.remote()

    def load(self, options: Mapping[str, str]) -> DataFrame:
        """A DataFrame with these options and no others."""
        return self._spark.read.format("krappy").options(**options).load()

    def chosen(
        self, options: Mapping[str, str], keys: Mapping[str, str], condition: Column | str | None = None
    ) -> DataFrame:
        """What these options load of these keys, and the condition leaves; of a few of them without a job."""
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
        """What a condition demands of `key`, as options; none when that is nothing.

        Found by having Spark plan a query with it, which is thrown away: `pushdown.py` says why. Over Spark Connect,
        where that takes a Python process, it is left out for conditions of a kind that can be read here.
        """
        if {"limit", *(name.lower() for name in KEY_OPTIONS)} & {name.lower() for name in self.options}:
            return {}
        if not self.remote():
            from krappy.spark import catalyst  # needs py4j, which a mere client of Spark Connect has not

            if self._blank is None:
                asked = parse(self.options, "log")
                self._blank = catalyst.blank(self._spark, spark_schema(asked.columns, asked.key_type))
            demands = catalyst.demands(self._blank, condition)
            if demands is not None:
                return options_of(narrowed(Keys(), demands))
        else:
            session: Any = self._spark
            named = conditions.keys(condition, parse(self.options, "log").key_type, session.client)
            if named is not None:
                return options_of(named)
        return self._told(condition) if features().push_filters else {}

    def _told(self, condition: Column | str) -> dict[str, str]:
        if self._asked is None:
            self._asked = self.df(pushdown="tell")
        planned = self._asked.where(condition)
        with _planning, _pushing(self._spark):
            try:
                planned.take(1)
            except PySparkException as error:
                return told(str(error)) or {}
        return {}


@contextmanager
def _pushing(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(PUSHDOWN, None)
    spark.conf.set(PUSHDOWN, "true")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(PUSHDOWN)
        else:
            spark.conf.set(PUSHDOWN, before)


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
        """`offsets` as the option startingOffsets takes them: to read on from there, with no gap and no duplicate."""
        return offsets_text({self._table.topic: self.offsets})

    def df(self, **options: Any) -> DataFrame:
        """Its rows. Once it has ended, a query raises SNAPSHOT_GONE."""
        return self._table.load({**self._options(), **texts(options)})

    def where(self, condition: Column | str) -> DataFrame:
        """The rows for which a condition holds, as `Table.where`."""
        return self._table.chosen(self._options(), self._table.key_options(condition), condition)

    def _options(self) -> dict[str, str]:
        taken = ("subscribe", "minpartitions", "snapshotttl")  # what it was taken with
        mine = {name: value for name, value in self._table.options.items() if name.lower() not in taken}
        return {**mine, "snapshot": self._text}

    filter = where

    def close(self) -> None:
        """Ends it now, where this program can reach the broker; else it ends by itself (Spark Connect without a
        `client_address`)."""
        if self._table.near():
            from krappy.spark.connections import client
            from krappy.spark.held import from_text

            client(self._table.client_address or self._table.options.get("address")).close_snapshot(
                from_text(self._text).id
            )

    def __enter__(self) -> TableSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<snapshot of {self._table.topic!r} at {json.dumps(self.offsets)}>"
