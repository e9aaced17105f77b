"""The columns of a read: those of Spark's Kafka source, as Spark and as Arrow schemas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from krappy.spark.versions import features

LOG_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
TABLE_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers", "deleted")
SNAPSHOT_COLUMNS = ("snapshot", "topic", "partition", "offset")
COLUMNS = tuple(dict.fromkeys((*LOG_COLUMNS, *TABLE_COLUMNS)))
CREATE_TIME, LOG_APPEND_TIME = 0, 1  # timestampType, as Kafka's TimestampType numbers it


def spark_schema(columns: Sequence[str], key_type: str = "binary") -> Any:
    """The StructType of these columns. `key_type`: "binary" or "string"."""
    from pyspark.sql import types

    kinds: dict[str, Any] = {
        "key": types.StringType() if key_type == "string" else types.BinaryType(),
        "value": types.BinaryType(),
        "topic": types.StringType(),
        "partition": types.IntegerType(),
        "offset": types.LongType(),
        "timestamp": types.TimestampType(),
        "timestampType": types.IntegerType(),
        "headers": types.ArrayType(
            types.StructType(
                [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
            )
        ),
        "deleted": types.BooleanType(),
        "snapshot": types.StringType(),
    }
    return types.StructType([types.StructField(name, kinds[name]) for name in columns])


def arrow_schema(schema: Any) -> Any:
    """The pyarrow.Schema that Spark demands of batches with this StructType: the batches' schema must equal it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if features().arrow_timezone:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # always in UTC
