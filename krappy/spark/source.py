"""The Python data source `krappy`: makes the readers and writers that Spark asks for.

    spark.read.format("krappy").option("subscribe", "orders").load()

Spark pickles this object and calls it in Python processes of the driver; it sends readers and writers to executors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from krappy.errors import ConfigError
from krappy.spark.options import parse
from krappy.spark.schema import spark_schema
from krappy.spark.versions import features
from krappy.spark.workers import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READERS = {  # by mode
    "log": ("log_read", "LogReader"),
    "table": ("table_read", "TableReader"),
    "snapshot": ("snapshot_read", "SnapshotReader"),
}


class KrappyDataSource(DataSource):
    """Reads and writes Krappy's topics. All options: krappy/spark/README.md."""

    @classmethod
    def name(cls) -> str:
        return "krappy"

    def schema(self) -> StructType:
        options = parse(self.options, "any")
        schema: StructType = spark_schema(options.columns, options.key_type)
        settle("loading")
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse(self.options, "log")
        self._check(schema)
        if options.pushdown:
            if not features().push_filters:
                raise ConfigError("option pushdown: this needs PySpark 4.1 or newer")
            return made("pushdown", "PushdownReader", schema, options)  # type: ignore[no-any-return]
        return made(*READERS[options.mode], schema, options)  # type: ignore[no-any-return]

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse(self.options, "stream")
        self._check(schema)
        return made("stream_read", "StreamReader", schema, options)  # type: ignore[no-any-return]

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return made("write", "BatchWriter", schema, parse(self.options, "write"), overwrite)  # type: ignore[no-any-return]

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = parse(self.options, "writeStream")
        return made("stream_write", "StreamWriter", schema, options, overwrite)  # type: ignore[no-any-return]

    def _check(self, schema: StructType) -> None:
        if schema != (mine := self.schema()):
            raise ConfigError(
                "these options give other columns than were declared: leave .schema() out (the option columns chooses "
                f"them), or let CREATE TABLE have {mine.simpleString()}"
            )


def register(spark: SparkSession) -> None:
    """Makes the data source known to a session, if PySpark did not find it by itself."""
    try:
        spark.dataSource.register(KrappyDataSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # PySpark 4.0 raises it if it found the data source
            raise


def made(module: str, name: str, *arguments: Any) -> Any:
    """An object of a class in a module of `krappy.spark`, which is imported now: a reader does not import a writer."""
    return getattr(importlib.import_module(f"krappy.spark.{module}"), name)(*arguments)
