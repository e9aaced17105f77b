"""Records of an internal topic that can't be read: each is left out and reported, and all others count. They stay in
the topic: whoever looks for the reason finds them there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krappy.entries.entry import entry_offset

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime

MOST_TOLD = 5  # lines of one load of a partition
SHOWN = 100  # bytes of a key


class UnreadableRecords:
    """The unreadable records that one load of one partition has found."""

    def __init__(self) -> None:
        self._first: dict[bytes, str] = {}  # why, by key
        self.count = 0

    def add(self, key: bytes, error: Exception) -> None:
        self.count += 1
        if len(self._first) < MOST_TOLD:
            self._first[key] = str(error) or type(error).__name__

    def tell(self, runtime: Runtime, partition: Partition) -> None:
        """Reports the first ones, each with its offset, and how many there are."""
        for key, error in self._first.items():
            entry = partition.views.get(partition.number, key)
            runtime.report(
                "coordinator_record_left_out",
                partition=str(partition),
                offset=-1 if entry is None else entry_offset(entry),
                key=repr(key[:SHOWN]),
                records=self.count,
                error=error[:500],
            )
