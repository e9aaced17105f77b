"""The rows that a reader gives, without a Spark session: planned here, and read from pickles as tasks do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict

from krappy.spark.schema import arrow_schema
from krappy.spark.source import KrappyDataSource

Row = dict[str, Any]


def source(address: str, **options: object) -> KrappyDataSource:
    """A data source as Spark makes it: its options are texts, in a dict that ignores case."""
    texts = {name: str(value) for name, value in options.items()}
    return KrappyDataSource(CaseInsensitiveDict({"address": address, **texts}))


def tasks(address: str, **options: object) -> list[list[Row]]:
    """The rows of each task."""
    made = source(address, **options)
    schema = made.schema()
    reader = made.reader(schema)
    found = []
    for partition in reader.partitions():
        sent = cloudpickle.dumps((reader, partition))  # type: ignore[no-untyped-call]
        there, part = cloudpickle.loads(sent)
        rows: list[Row] = []
        for batch in there.read(part):
            if isinstance(batch, pa.RecordBatch):
                assert batch.schema.equals(arrow_schema(schema))
                batch.validate(full=True)
                rows += batch.to_pylist()
            else:
                rows.append(dict(zip(schema.fieldNames(), batch, strict=True)))
        found.append(rows)
    return found


def rows(address: str, **options: object) -> list[Row]:
    """The rows of all tasks."""
    return [row for some in tasks(address, **options) for row in some]
