"""What Kafka's share groups (KIP-932) have at this broker: the states that it keeps, and the leases of the partitions
that it leads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from krappy.broker.groups.group_keeper import GroupKeeper, MakeTopic
from krappy.broker.groups.share_keepers import ShareKeepers
from krappy.broker.groups.share_partitions import SharePartitions
from krappy.broker.groups.share_states import ShareStates
from krappy.errors import CoordinatorNotAvailable, NotCoordinator
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.groups.keeping import GroupStorage
    from krappy.broker.runtime import Runtime
    from krappy.ports.cluster import LogPeersPort

FindKeeper = Callable[[str], int]


class ShareKeeper(GroupKeeper):
    def __init__(
        self,
        runtime: Runtime,
        storage: GroupStorage,
        make_topic: MakeTopic,
        keeper: FindKeeper,
        peers: LogPeersPort | None,
    ) -> None:
        """`keeper`: as for `ShareKeepers`."""
        super().__init__(runtime, storage, make_topic, peers)
        self.states = ShareStates(runtime, self, storage)
        self.keepers = ShareKeepers(runtime, self.states, peers, keeper)
        self.shares = SharePartitions(runtime, self, self.keepers)
        self.states.deleted = self.shares.delete

    def forget_shares(self, topic: str, id: bytes) -> list[Later[None] | None]:
        """Forgets what share groups have in a deleted topic. Gives what it wrote, for `synced`."""
        self.shares.remove(topic)
        writes = []
        for name, gone in self.states.in_topic(id):
            with suppress(NotCoordinator, CoordinatorNotAvailable):  # then it is found at the next load
                writes.append(self.storage.delete_states(name, gone))
        self.states.remove(id)
        return writes
