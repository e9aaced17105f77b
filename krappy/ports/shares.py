"""The port to what is kept of share groups (KIP-932), which another broker may keep."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from krappy.core.kafka.share_state import ShareState
from krappy.errors import KrappyError
from krappy.waiting import Later


class PartitionId(NamedTuple):
    topic_id: bytes
    partition: int


class Opener(NamedTuple):
    """Who has opened a share session: the names and the address of a principal. `owner`: whose part of the broker's
    share sessions it takes (`Principal.owner`)."""

    names: tuple[str, ...]
    host: str
    owner: str


class KeptState(NamedTuple):
    """Where a group is in a partition. `complete`: how many records behind `start` are settled."""

    state_epoch: int
    leader_epoch: int
    start: int
    complete: int


StatesRead = dict[PartitionId, ShareState | KrappyError]
StatesWritten = dict[PartitionId, KrappyError]  # of those that were refused


class ShareStatesPort(Protocol):
    """What this broker keeps. Raises Refused (GROUP_ID_NOT_FOUND unless it is a share group), NotCoordinator,
    CoordinatorNotAvailable, StorageError, Overloaded. What was asked for is durable on return, or when the Later is
    set."""

    async def begin(self, name: str) -> None:
        """From now on the name is a share group's. Raises Refused if it is a native group's."""

    async def move(self, name: str, moves: Mapping[PartitionId, int]) -> None:
        """The group reads these partitions anew from these offsets on. Leaders that have an older state lose it with
        their next write or read. Raises UnknownTopic, too: then nothing was moved."""

    async def delete(self, name: str, topics: Collection[bytes] | None) -> bool:
        """Deletes what is kept of it in these topics, by their ids; None: the whole group. False: there was nothing."""

    async def kept(self, name: str) -> Mapping[PartitionId, KeptState]:
        """Where it is in each partition that it has begun to read."""

    def read(self, name: str, asked: Mapping[PartitionId, int]) -> Later[StatesRead]:
        """The states, for the leader of each partition in this leader epoch. From now on leaders of earlier epochs
        can't write there. For a partition: UnknownTopic; Refused, FENCED_LEADER_EPOCH; CoordinatorNotAvailable: the
        answer is full, ask again."""

    def write(self, name: str, states: Mapping[PartitionId, ShareState]) -> Later[StatesWritten]:
        """Replaces the states. A later version that is there stays. For a partition: UnknownTopic; Refused:
        FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH."""


class SharePeersPort(Protocol):
    """As `ShareStatesPort`, for what another broker keeps. CoordinatorNotAvailable: that broker does not answer, and
    the request may have been done or not."""

    async def begin(self, broker: int, name: str) -> None: ...
    async def move(self, broker: int, name: str, moves: Mapping[PartitionId, int]) -> None: ...
    async def delete(self, broker: int, name: str, topics: Collection[bytes] | None) -> bool: ...
    async def kept(self, broker: int, name: str) -> Mapping[PartitionId, KeptState]: ...
    async def read(self, broker: int, name: str, asked: Mapping[PartitionId, int]) -> StatesRead: ...
    async def write(self, broker: int, name: str, states: Mapping[PartitionId, ShareState]) -> StatesWritten: ...
