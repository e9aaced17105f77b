"""Streaming queries, run to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from krappy.spark.patience import SLOW_START

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ENDS = 300  # seconds until a query that hangs fails the test
STARTS = 30  # as often it is started on a machine that is busy


def ended(writer: DataStreamWriter) -> StreamingQuery:
    """Runs what is there now; raises what made the query fail, unless Spark had no patience with its own process."""
    for _ in range(STARTS):
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(ENDS)
        except StreamingQueryException as error:
            if SLOW_START not in str(error):
                raise
        else:
            return query
        finally:
            query.stop()
    raise AssertionError(f"{STARTS} times: {SLOW_START}")
