"""Stands in for a log that could not be opened: it has the folder and the reason, and refuses reads and appends.

So one partition is out of service, and the broker serves the others. Its files stay until the topic is deleted.
"""

from __future__ import annotations

from pathlib import Path

from krappy.core.epochs import Epochs
from krappy.settings.topic import TopicConfig
from krappy.store.disk import OS_DISK, Disk
from krappy.store.index import Indexer
from krappy.store.log import Log
from krappy.store.producers import ProducerStates
from krappy.store.recovery import Recovered
from krappy.store.report import RecoveryReport
from krappy.store.segment import Segment


class OfflineLog(Log):
    """Looks like an empty log; every read, append and sync raises StorageError with the reason."""

    def __init__(self, folder: Path, config: TopicConfig, reason: str, disk: Disk = OS_DISK) -> None:
        nothing = Segment(disk, folder, 0, next_offset=0)
        nothing.indexer = Indexer(config.index_interval_bytes)
        report = RecoveryReport(str(folder))
        super().__init__(
            folder, config, disk, Recovered([nothing], ProducerStates(), Epochs(), 0, 0, 0, 0, None, [], report)
        )
        self._broken = reason
        self._closed = True

    def destroy(self) -> None:
        """Does not remove the folder: it may be another topic's. The caller that finishes the deletion checks that."""
