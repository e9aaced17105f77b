"""Asks the broker that keeps a share group's states, which may be this one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from krappy.core.cluster.roles import Role
from krappy.core.kafka.share_state import ShareState
from krappy.errors import KrappyError
from krappy.ports.cluster import LogPeersPort
from krappy.ports.shares import KeptState, PartitionId, StatesRead, StatesWritten
from krappy.types import TopicPartition

if TYPE_CHECKING:
    from krappy.broker.groups.share_states import ShareStates
    from krappy.broker.runtime import Runtime

UNKNOWN = -1  # as the end of a log
LATEST = -1  # as a time: asks for the end of a log


class ShareKeepers:
    """Its methods are those of `ShareStatesPort`."""

    def __init__(
        self, runtime: Runtime, own: ShareStates, peers: LogPeersPort | None, keeper: Callable[[str], int]
    ) -> None:
        """`peers`: None: this broker is alone. `keeper(name)`: the id of the broker that keeps a group; raises
        CoordinatorNotAvailable."""
        self.own = own
        self._runtime, self._broker = runtime, runtime.id
        self._peers, self._keeper = peers, keeper

    def _at(self, name: str) -> tuple[int, LogPeersPort | None]:
        """(the id of the broker to ask, the peers to ask it through). None instead of peers: it is this broker."""
        if self._peers is None:
            return self._broker, None
        keeper = self._keeper(name)
        return keeper, None if keeper == self._broker else self._peers

    async def begin(self, name: str) -> None:
        keeper, peers = self._at(name)
        await (self.own.begin(name) if peers is None else peers.begin(keeper, name))

    async def move(self, name: str, moves: Mapping[PartitionId, int]) -> None:
        keeper, peers = self._at(name)
        await (self.own.move(name, moves) if peers is None else peers.move(keeper, name, moves))

    async def delete(self, name: str, topics: Collection[bytes] | None) -> bool:
        keeper, peers = self._at(name)
        return await (self.own.delete(name, topics) if peers is None else peers.delete(keeper, name, topics))

    async def kept(self, name: str) -> Mapping[PartitionId, KeptState]:
        keeper, peers = self._at(name)
        return await (self.own.kept(name) if peers is None else peers.kept(keeper, name))

    async def read(self, name: str, asked: Mapping[PartitionId, int]) -> StatesRead:
        keeper, peers = self._at(name)
        return await (self.own.read(name, asked).wait() if peers is None else peers.read(keeper, name, asked))

    async def write(self, name: str, states: Mapping[PartitionId, ShareState]) -> StatesWritten:
        keeper, peers = self._at(name)
        return await (self.own.write(name, states).wait() if peers is None else peers.write(keeper, name, states))

    async def end(self, at: TopicPartition, committed: bool) -> int:
        """A group may read the events before this offset; UNKNOWN if no broker tells it. `committed`: the group reads
        only committed transactions. Another broker always gives the end for such groups."""
        topic = self._runtime.topics.get(at.topic)
        held = None if topic is None else topic.local.get(at.partition)
        if held is not None and (self._peers is None or held.role is Role.LEADER):
            return held.last_stable_offset if committed else held.high_watermark
        if topic is not None and self._peers is not None:
            with suppress(KrappyError):
                leader = topic.image.partitions[at.partition].state.leader
                end = (await self._peers.offsets_at(leader, [at], LATEST)).get(at)
                return end if isinstance(end, int) else UNKNOWN
        return UNKNOWN
