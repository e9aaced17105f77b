"""Makes the tables of topics with `latest.ahead.enable` before anybody asks for them.

The broker reads such a table itself, as a consumer of `TOPIC@latest` would, and so fills the table's file (latest.py).
It does so again once the log has grown by as many events as the table has keys, and by at least RAW_LAG: so for each
event that was written it makes at most one event of a table. A new reader is sent the file, and then what was written
since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from krappy.broker.latest.latest import LatestTables
from krappy.core.latest import TableReading
from krappy.errors import KrappyError

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime

LOOK_S = 1.0  # how often it looks for work
PART = 1 << 20  # bytes that are made in one go


class Ahead:
    """Makes these tables, one partition at a time."""

    def __init__(self, runtime: Runtime, tables: LatestTables) -> None:
        self._runtime = runtime
        self._tables = tables
        self._made: dict[int, int] = {}  # by the partition's number: the offset as of which its table was last made

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await trio.sleep(LOOK_S)

    async def look(self) -> None:
        """One round. What fails in one partition is reported, and tried again when its log has grown."""
        wanted = [
            partition
            for topic in list(self._runtime.topics.values())
            if topic.config.latest_ahead and topic.config.view
            for partition in list(topic.local.values())
        ]
        self._made = {partition.number: self._made.get(partition.number, 0) for partition in wanted}
        for partition in wanted:
            moment = partition.last_stable_offset
            if partition.gone is None and self._tables.sets.is_due(partition, self._made[partition.number]):
                self._made[partition.number] = moment
                try:
                    await make(self._tables, partition, moment)
                except KrappyError as error:
                    self._runtime.report("table_not_made", partition=str(partition), error=str(error))


async def make(tables: LatestTables, partition: Partition, moment: int) -> None:
    """Makes the table as of the offset `moment`, or later, by reading it. Raises as `LatestTables.read` does."""
    reading = TableReading()
    start = offset = partition.start_offset
    reading.told_earliest(start)
    if reading.at(offset, start, moment):
        reading.fix(moment)  # an older set must not serve this reading
    while reading.at(offset, start, moment):
        offset = (await tables.read(partition, reading, offset, PART)).following
