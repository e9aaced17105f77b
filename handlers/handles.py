"""The registrations that a session holds under its handles. (Watches are the broker's own objects.)"""

from __future__ import annotations

from krappy.core.refused_batches import RefusedBatches, RefusedByPartitions
from krappy.errors import AuthorizationFailed
from krappy.ports import (
    AttemptPort,
    BackupBegunPort,
    BackupHold,
    MemberPort,
    PartitionPort,
    RegistrationFacts,
    ScanPort,
    TopicPort,
)
from krappy.types import TopicPartition
from krappy.waiting import Signal

FOR_EACH_PARTITION = 250  # bytes that a reader, a scan or a watch keeps for each of its partitions, about


class Revoked:
    """A registration that is not allowed any more."""

    def __init__(self, error: AuthorizationFailed) -> None:
        self.error = error

    def close(self) -> None:
        """Does nothing: it is closed."""

    def describe(self) -> RegistrationFacts:
        return {"kind": "revoked", "topics": []}


class ProducerHandle:
    """A producer registration."""

    def __init__(self, topic: TopicPort, name: str | None) -> None:
        self.topic = topic
        self.name = name
        self.bytes = 0  # of the events it has sent
        self.refused: RefusedByPartitions = RefusedBatches(lambda: topic.count)  # partitions may be added
        self._robin = 0

    def next_partition(self) -> int:
        """The partition of the next event without a key: round-robin."""
        self._robin += 1
        return self._robin % self.topic.count

    def close(self) -> None:
        """Nothing to give back: what was published stays published."""

    def describe(self) -> RegistrationFacts:
        return {"kind": "producer", "name": self.name, "topics": [self.topic.name], "bytes": self.bytes}


class Membership:
    """A member of a group."""

    def __init__(self, member: MemberPort) -> None:
        self.member = member

    def close(self) -> None:
        self.member.close()

    def describe(self) -> RegistrationFacts:
        return self.member.describe()


class ScanCursor:
    """A scan."""

    def __init__(self, scan: ScanPort) -> None:
        self.scan = scan

    def close(self) -> None:
        self.scan.close()

    def describe(self) -> RegistrationFacts:
        return self.scan.describe()


class BackupStart:
    """A cluster's backup that was begun."""

    def __init__(self, begun: BackupBegunPort) -> None:
        self.begun = begun

    def close(self) -> None:
        self.begun.close()

    def describe(self) -> RegistrationFacts:
        return {"kind": "backup", "topics": []}


class BackupFiles:
    """Files that are held to be copied."""

    def __init__(self, held: BackupHold) -> None:
        self.held = held

    def close(self) -> None:
        self.held.close()

    def describe(self) -> RegistrationFacts:
        return self.held.describe()


class Stager:
    """An attempt of a task to stage events. It outlives the connection: its sender may continue over another one."""

    def __init__(self, attempt: AttemptPort) -> None:
        self.attempt = attempt

    def close(self) -> None:
        """Does nothing: the attempt ends with its job."""

    def describe(self) -> RegistrationFacts:
        return {"kind": "stager", "topics": [] if self.attempt.topic is None else [self.attempt.topic.name]}


class Reader:
    """A consumer registration without a group: it owns its position in each partition."""

    def __init__(self, partitions: dict[TopicPartition, PartitionPort], positions: dict[TopicPartition, int]) -> None:
        self.partitions = partitions
        self.positions = positions
        self.bytes = 0  # of the batches it was given
        self.rotation = 0  # index of the partition that is served first: they take turns
        self.closed = False
        self.moved = Signal()  # wakes a poll that waits, when the reader seeks or is closed

    def seek(self, at: TopicPartition, offset: int) -> None:
        self.positions[at] = offset
        self.moved.fire()

    def close(self) -> None:
        self.closed = True
        self.moved.fire()

    def describe(self) -> RegistrationFacts:
        return {"kind": "reader", "topics": sorted({at.topic for at in self.partitions}), "bytes": self.bytes}
