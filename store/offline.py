"""A log that could not be opened: it has its folder and its reason, and gives and takes nothing.

So one partition is out, and the rest of a broker serves. Its files stay as they are, until the topic is deleted.
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
    """Empty in what it tells; every read, append and sync raises StorageError with the reason."""

    def __init__(self, folder: Path, config: TopicConfig, reason: str, disk: Disk = OS_DISK) -> None:
        nothing = Segment(disk, folder, 0, next_offset=0)
        nothing.indexer = Indexer(config.index_interval_bytes)
        report = RecoveryReport(str(folder))
        super().__init__(
            folder, config, disk, Recovered([nothing], ProducerStates(), Epochs(), 0, 0, 0, None, [], report)
        )
        self._broken = reason
        self._closed = True

    def destroy(self) -> None:
        """Leaves the folder: it may be another topic's. Whoever finishes the deletion looks whose it is."""
