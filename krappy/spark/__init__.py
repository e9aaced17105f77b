"""Krappy for PySpark: the data source `krappy`, tables with lookups, sessions.

    spark.read.format("krappy").option("subscribe", "orders").load()      # registered by itself
    krappy.spark.table(spark, "users").where("key = 'u1'")                # looks u1 up

How to read, write, stream and look up: krappy/spark/README.md. Needs `pip install 'krappy[spark]'`.
"""

from __future__ import annotations

from krappy.spark.session import session
from krappy.spark.table import Table, TableSnapshot, table

__all__ = ["Table", "TableSnapshot", "session", "table"]
