"""What one of Kafka's consumers with isolation.level=read_committed makes of a log, by the rules of its own code.

That is `CompletedFetch.nextFetchedRecord` of the Java client, which librdkafka follows. It takes the aborted
transactions that each answer tells. It skips a producer from where one of them begins, and reads it again behind the
next abort marker of this producer. It never looks at what it was not told.
"""

from __future__ import annotations

from krappy.core.stability import Stability, commits
from krappy.records import batch
from krappy.store.log import Log
from tests.store.logs import Row


def read_committed(log: Log, told: Stability, start: int | None = None, *, max_bytes: int = 700) -> list[Row]:
    """Everything from `start` on that such a consumer returns, by fetches of `max_bytes`."""
    at = first = log.start_offset if start is None else start
    found: list[Row] = []
    while True:
        span = log.read_span(at, max_bytes)
        if not span.data:
            return found
        aborted = sorted((each.first, each.producer_id) for each in told.between(at, span.next_offset))
        skipped: set[int] = set()
        for header, data in batch.split(span.data):
            while aborted and aborted[0][0] <= header.last_offset:
                skipped.add(aborted.pop(0)[1])
            if header.is_control:
                if commits(data) is False:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                columns = batch.decode(data)
                rows = zip(columns.offsets, columns.timestamps, columns.keys, columns.values, strict=True)
                found += [Row(*row) for row in rows if row[0] >= first]
        at = span.next_offset
