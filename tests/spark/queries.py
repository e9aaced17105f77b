"""Streaming queries, run to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from krappy.spark.patience import SLOW_START

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ENDS = 300  # seconds after which a query that hangs fails the test
STARTS = 30  # a query is started so often at most on a busy machine


def ended(writer: DataStreamWriter) -> StreamingQuery:
    """Runs a query over what is there now. Raises what made it fail, but starts it again if Spark gave up on a slow
    Python process of its own."""
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
