"""What a session can hold a handle to, beside the watches and backups that the broker makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from krappy.ports import AttemptPort, MemberPort, PartitionPort, ScanPort, TopicPort
from krappy.types import TopicPartition


class ProducerHandle:
    """A producer registration."""

    def __init__(self, topic: TopicPort, name: str | None) -> None:
        self.topic = topic
        self.name = name
        self.bytes = 0  # of events that it has sent
        self._robin = 0

    def next_partition(self) -> int:
        """Round-robin, for events without a key."""
        self._robin += 1
        return self._robin % self.topic.count

    def close(self) -> None:
        """Nothing to give back: what was published stays published."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "producer", "name": self.name, "topics": [self.topic.name], "bytes": self.bytes}


class Membership:
    """A member of a group. Each may hold events all over the group's partitions: very many end in turns."""

    def __init__(self, member: MemberPort) -> None:
        self.member = member

    def close(self) -> None:
        self.member.close()

    def describe(self) -> dict[str, Any]:
        return self.member.describe()


class ScanCursor:
    """A scan."""

    def __init__(self, scan: ScanPort) -> None:
        self.scan = scan

    def close(self) -> None:
        self.scan.close()

    def describe(self) -> dict[str, Any]:
        return self.scan.describe()


class Stager:
    """An attempt of a task that stages. It outlives the connection: its sender may come back over another one."""

    def __init__(self, attempt: AttemptPort) -> None:
        self.attempt = attempt

    def close(self) -> None:
        """It ends with its job."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "stager", "topics": [self.attempt.topic.name]}


class Reader:
    """A consumer registration without a group: it owns its position in each partition."""

    def __init__(self, partitions: dict[TopicPartition, PartitionPort], positions: dict[TopicPartition, int]) -> None:
        self.partitions = partitions
        self.positions = positions
        self.bytes = 0  # of batches that it was given
        self.rotation = 0  # which partition is served first: they take turns
        self.closed = False
        self._waiting: dict[Callable[[], None], None] = {}

    def close(self) -> None:
        self.closed = True
        for wake in tuple(self._waiting):
            wake()

    # A poll that waits for events waits for the reader's end, too: it is a signal, as a partition has one.

    @property
    def moved(self) -> Reader:
        return self

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._waiting[callback] = None

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        self._waiting.pop(callback, None)

    def describe(self) -> dict[str, Any]:
        return {"kind": "reader", "topics": sorted({at.topic for at in self.partitions}), "bytes": self.bytes}
