"""Lookup joins: adds to each row of a DataFrame the entry that a topic's table has for its key.

    from krappy.spark import lookup
    lookup(orders, "users", on="user_id", columns={"value": "user"})

    krappy.spark.register(spark)
    spark.sql("SELECT *, krappy_get('users', user_id) AS user FROM orders")
    spark.sql("SELECT * FROM krappy_lookup(TABLE(SELECT user_id FROM orders), 'users')")

Nothing is shuffled: the distinct keys of a batch of rows become one request or a few, so neither the DataFrame nor the
table need fit into memory. Answers are kept while they are true, within bounds; a worker that looks up very many keys
reads the whole table instead, if that is small enough (`kept.py`). An answer is the table as it is when the batch is
looked up, so the functions count as non-deterministic: Spark may not evaluate them twice for one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql import functions as sf
from pyspark.sql import types

from krappy.errors import ConfigError, InvalidRecord
from krappy.spark import by_key, source
from krappy.spark.connections import client
from krappy.spark.kept import MOST
from krappy.spark.schema import arrow_schema, spark_schema
from krappy.spark.versions import features

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

AHEAD = 100_000  # rows that are looked up together, at most
ROOM = 16 << 20  # bytes of entries that are looked up together, about
How = Literal["left", "inner", "semi", "anti"]
COLUMNS = ("value", "partition", "offset", "timestamp", "headers", "deleted")
FOUND = ("value", "partition", "offset", "timestamp", "headers")  # the columns of krappy_lookup beside the key
_KEY, _ENTRY = "__krappy_key", "__krappy_entry"


def lookup(
    df: DataFrame,
    topic: str,
    on: str | Column,
    *,
    columns: Sequence[str] | Mapping[str, str] = ("value",),
    how: How = "left",
    tombstones: bool = False,
    address: str | None = None,
    keep: int = MOST,
) -> DataFrame:
    """`df` with what the table of `topic` holds for each row's key. Batch and streaming DataFrames alike.

    Args:
        on: the column with the key: binary, or string (looked up as UTF-8). A null is never found.
        columns: of value, partition, offset, timestamp, headers and deleted; a mapping renames: {"value": "user"}.
        how: "left": every row, with nulls where the key is not in the table; "inner": rows with a key that is;
            "semi" and "anti": only `df`'s own columns, of rows with a key that is in the table, or is not.
        tombstones: a deleted key counts as found: with a null value, and the offset and timestamp of its deletion.
        address: host:port of the broker. None: $KRAPPY_ADDRESS, as the executors see it, else 127.0.0.1:7092.
        keep: bytes of the table that a Python worker may keep in memory, for keys that come again; merging them takes
            as much again for a moment. The workers of an executor may share ten times as much in a file. 0: nothing
            is kept.

    Raises ConfigError for an unknown column, one that `df` has already, or a key of another type. The tasks raise
    the broker's errors, such as UnknownTopic and ViewDisabled.
    """
    if keep < 0:
        raise ConfigError(f"keep={keep}: give a number of bytes, or 0 to keep nothing")
    if how not in ("left", "inner", "semi", "anti"):
        raise ConfigError(f"how={how!r}: give left, inner, semi or anti")
    named = _named(df, columns if how in ("left", "inner") else {})
    key = sf.col(on) if isinstance(on, str) else on
    _check_key(df.select(key).schema.fields[0].dataType, on)
    asked = tuple(dict.fromkeys([*named, "offset"]))  # the offset tells whether there is an entry
    look_up = entries(address, topic, asked, tombstones, keep, _expected(df))
    if features().arrow_udf:
        got = _udf(_ahead(look_up), _struct(asked))(key)
        found = df.withColumn(_ENTRY, got)
    else:
        found = _mapped(df.withColumn(_KEY, key), look_up, asked)
    there = sf.col(_ENTRY).isNotNull()
    if how != "left":
        found = found.where(~there if how == "anti" else there)
    mine = [sf.col(_quoted(name)) for name in df.columns]
    return found.select(*mine, *(sf.col(_ENTRY)[name].alias(said) for name, said in named.items()))


def krappy_get(topic: str, key: str | Column, *, address: str | None = None) -> Column:
    """The value that the topic's table holds for the key (binary); null where it is deleted or absent.

    As `krappy_get('users', user_id)` in SQL, after `krappy.spark.register`. Raises ImportError before PySpark 4.1.
    """
    found: Column = _sql_get(address)(sf.lit(topic), sf.col(key) if isinstance(key, str) else key)
    return found


def register(spark: SparkSession, address: str | None = None, keep: int = MOST) -> None:
    """Makes `krappy_get` and `krappy_lookup` known to SQL, and the data source, if PySpark did not find it by itself.

    `keep`: as in `lookup`. Raises ImportError before PySpark 4.1, which lacks what the functions need.
    """
    source.register(spark)
    spark.udf.register("krappy_get", _sql_get(address, keep))
    spark.udtf.register("krappy_lookup", krappy_lookup(address, keep))


def krappy_lookup(address: str | None = None, keep: int = MOST) -> Any:
    """The table function: `krappy_lookup(address)(df.select("user_id").asTable(), lit("users"))`.

    It returns a row for each row of its table argument, whose first column is the key: key, value, partition, offset,
    timestamp, headers; all but the key are null if the topic's table does not have it. `keep`: as in `lookup`.

    Raises ImportError before PySpark 4.1.
    """
    _need_arrow_udf("krappy_lookup")
    fields = spark_schema(("key", *FOUND))

    class KrappyLookup:
        def __init__(self) -> None:
            self._ahead = LookAhead(lambda keys, topics: _looked_up(address, keys, topics, keep))

        def eval(self, rows: pa.RecordBatch, topic: pa.Array) -> Iterator[pa.RecordBatch]:
            yield from self._ahead.put(_first_column(rows), topic)

        def terminate(self) -> Iterator[pa.RecordBatch]:
            yield from self._ahead.rest()

    return sf.arrow_udtf(KrappyLookup, returnType=fields)


def entries(
    address: str | None, topic: str, columns: Sequence[str], tombstones: bool, keep: int, expected: int
) -> Callable[[pa.Array], pa.StructArray]:
    """A function from keys to entries (`by_key.entries`) that Spark can send to its workers."""

    def krappy_entry(keys: pa.Array) -> pa.StructArray:
        return by_key.entries(client(address), topic, keys, columns, tombstones, keep, expected)

    return krappy_entry


class LookAhead:
    """Looks up several batches of keys together: sorted keys that are near each other are in the same blocks of the
    broker's files, so each lookup costs less.

    `look_up` takes the columns of a batch, and returns an array or a record batch with as many rows.
    """

    def __init__(self, look_up: Callable[..., Any]) -> None:
        self._look_up = look_up
        self._waiting: list[tuple[pa.Array, ...]] = []
        self._rows = self._enough = 0

    def over(self, batches: Iterable[tuple[pa.Array, ...]]) -> Iterator[Any]:
        """What `look_up` returns for each batch, in their order."""
        for columns in batches:
            yield from self.put(*columns)
        yield from self.rest()

    def put(self, *columns: pa.Array) -> Iterator[Any]:
        """Takes a batch. Yields the results of all batches that wait if they are enough, else nothing."""
        self._waiting.append(columns)
        self._rows += len(columns[0])
        if self._rows >= self._enough:
            yield from self.rest()

    def rest(self) -> Iterator[Any]:
        """Looks up the batches that wait, and yields their results."""
        if not self._waiting:
            return
        waiting, rows = self._waiting, self._rows
        self._waiting, self._rows = [], 0
        found = self._look_up(*map(pa.concat_arrays, zip(*waiting, strict=True)))
        self._enough = min(AHEAD, ROOM * rows // (found.nbytes + 1))
        first = 0
        for columns in waiting:
            yield found.slice(first, len(columns[0]))
            first += len(columns[0])


def _ahead(look_up: Callable[[pa.Array], pa.StructArray]) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    """The same for batches of keys, in the form of an Arrow UDF."""

    def krappy_entries(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:  # Spark goes by these hints
        return LookAhead(look_up).over((keys,) for keys in batches)

    return krappy_entries


def _expected(df: DataFrame) -> int:
    """How many rows of `df` one executor gets, about; 0: unknown."""
    if df.isStreaming or not hasattr(df, "_jdf"):  # the second: over Spark Connect
        return 0
    from krappy.spark import catalyst

    executors = catalyst.executors(df)
    return catalyst.rows(df) // executors if executors else 0


def _sql_get(address: str | None, keep: int = MOST) -> Any:
    _need_arrow_udf("krappy_get")

    def krappy_get(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:  # Spark goes by these hints
        return LookAhead(lambda topics, keys: _values(address, topics, keys, keep)).over(batches)

    return _udf(krappy_get, types.BinaryType())


def _values(address: str | None, topics: pa.Array, keys: pa.Array, keep: int) -> pa.Array:
    """The value of each key in the table of its topic. Mostly all rows have the same topic."""
    _check_arrow_key("krappy_get", keys)
    found = pa.nulls(len(keys), pa.binary())
    for topic in topics.unique().drop_null().to_pylist():
        mine = pc.if_else(pc.equal(topics, topic), keys, pa.scalar(None, keys.type))
        got = by_key.entries(client(address), topic, mine, ["value"], keep=keep)
        found = pc.coalesce(found, pc.struct_field(got, "value"))
    return found


def _first_column(rows: pa.RecordBatch) -> pa.Array:
    if not rows.num_columns:
        raise InvalidRecord("krappy_lookup(TABLE(...), topic): the table needs a column: the key")
    return rows.column(0)


def _looked_up(address: str | None, keys: pa.Array, topics: pa.Array, keep: int) -> pa.RecordBatch:
    names = topics.unique().to_pylist()
    if len(names) > 1 or names == [None]:
        raise InvalidRecord("krappy_lookup(TABLE(...), topic): give one topic, such as 'users'")
    _check_arrow_key("krappy_lookup", keys)
    schema = arrow_schema(spark_schema(("key", *FOUND)))
    if not names:
        return pa.RecordBatch.from_pylist([], schema)
    got = by_key.entries(client(address), names[0], keys, FOUND, keep=keep)
    columns = [pc.struct_field(got, name).cast(schema.field(name).type) for name in FOUND]
    return pa.RecordBatch.from_arrays([keys.cast(pa.binary()), *columns], schema=schema)


def _mapped(df: DataFrame, found: Callable[[pa.Array], pa.StructArray], columns: Sequence[str]) -> DataFrame:
    """`df` with the column _ENTRY in place of its last one, the key. Before PySpark 4.1, by mapInArrow: all columns go
    through Python, not the key alone."""
    *fields, _ = df.schema.fields
    schema = types.StructType([*fields, types.StructField(_ENTRY, _struct(columns))])

    def added(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            *rest, keys = batch.columns
            names = [*batch.schema.names[:-1], _ENTRY]
            yield pa.RecordBatch.from_arrays([*rest, found(keys)], names=names)

    return df.mapInArrow(added, schema)


def _udf(function: Callable[..., Any], kind: types.DataType) -> Any:
    return sf.arrow_udf(function, kind).asNondeterministic()  # type: ignore[attr-defined]


def _struct(columns: Sequence[str]) -> types.StructType:
    found: types.StructType = spark_schema(columns)
    return found


def _named(df: DataFrame, columns: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """By column of the table, its name in the result. Raises ConfigError."""
    named = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    for name, said in named.items():
        if name not in COLUMNS:
            raise ConfigError(f"columns: a table has no '{name}'; there are {', '.join(COLUMNS)}")
        if said.lower() in {each.lower() for each in df.columns}:
            raise ConfigError(
                f"columns: the DataFrame has a column '{said}' already; give another name, such as "
                f"columns={{'{name}': 'its_{name}'}}"
            )
    if len({said.lower() for said in named.values()}) < len(named):
        raise ConfigError("columns: two of them have the same name")
    return named


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _check_key(kind: types.DataType, on: Any) -> None:
    if not isinstance(kind, types.BinaryType | types.StringType):
        raise ConfigError(
            f"on={on}: a key is binary or string, this is {kind.simpleString()}; .cast('string') makes text"
        )


def _check_arrow_key(what: str, keys: pa.Array) -> None:
    if not (pa.types.is_binary(keys.type) or pa.types.is_string(keys.type) or pa.types.is_null(keys.type)):
        raise InvalidRecord(f"{what}: a key is binary or string, this is {keys.type}; cast(… as string) makes text")


def _need_arrow_udf(what: str) -> None:
    if not features().arrow_udf:
        raise ImportError(
            f"{what} needs arrow_udf and arrow_udtf, which PySpark has from 4.1 on, and this is {pyspark.__version__}; "
            "krappy.spark.lookup works here too"
        )
