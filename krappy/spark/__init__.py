"""Krappy for PySpark: the data source `krappy`, tables with lookups, sessions.

    spark.read.format("krappy").option("subscribe", "orders").load()      # registered by itself
    krappy.spark.table(spark, "users").where("key = 'u1'")                # looks u1 up
    krappy.spark.lookup(orders, "users", on="user_id")                    # looks up the key of each row
    krappy.spark.register(spark)                                          # krappy_get and krappy_lookup for SQL

How to read, write, stream and look up: krappy/spark/README.md. Needs `pip install 'krappy[spark]'`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from krappy.spark.workers import settle

settle("starting")  # else the imports below make the garbage collector look through all of PySpark

from krappy.spark.session import activate, session  # noqa: E402
from krappy.spark.table import SparkTable, TableSnapshot, table  # noqa: E402

if TYPE_CHECKING:
    from krappy.spark.bulk import bulk_load as bulk_load
    from krappy.spark.join import krappy_get as krappy_get
    from krappy.spark.join import krappy_lookup as krappy_lookup
    from krappy.spark.join import lookup as lookup
    from krappy.spark.join import register as register
    from krappy.spark.patience import patiently as patiently
    from krappy.spark.stream_offsets import lag as lag
    from krappy.spark.stream_write import batches_to as batches_to

_HOMES = {  # imported on first use: every task of Spark imports this package
    "batches_to": "stream_write",
    "bulk_load": "bulk",
    "krappy_get": "join",
    "krappy_lookup": "join",
    "lookup": "join",
    "register": "join",
    "lag": "stream_offsets",
    "patiently": "patience",
}

__all__ = [
    "SparkTable",
    "TableSnapshot",
    "activate",
    "batches_to",
    "bulk_load",
    "krappy_get",
    "krappy_lookup",
    "lag",
    "lookup",
    "patiently",
    "register",
    "session",
    "table",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'krappy.spark' has no attribute {name!r}")
    return getattr(importlib.import_module(f"krappy.spark.{home}"), name)
