"""How people change where partitions are, and who leads them: by reassignments and elections.

Each is a write that demands the state that was read. The controller takes the steps of a reassignment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from krappy.broker.tree_changes import change
from krappy.core.cluster import paths
from krappy.core.cluster.elections import NotElected, elect_uncleanly, prefer
from krappy.core.cluster.image import TopicImage
from krappy.core.cluster.presence import SILENCE_MS
from krappy.core.cluster.reassign import is_moving, original, reassigned
from krappy.core.cluster.state import NOBODY
from krappy.core.cluster.tree import Check, Operation
from krappy.errors import UnknownTopic
from krappy.waiting import wait_any

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

LOOK_S = 0.1  # how often it looks whether leases are renewed
SETTLE_S = 10.0  # how long an unclean election waits for the controller to dismiss a leader and an ISR that are gone


class Moves:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def reassign(self, name: str, wanted: Mapping[int, Sequence[int] | None], *, grows: bool = False) -> set[int]:
        """Begins reassignments: `wanted` are the new brokers of each partition; None cancels what is under way. Returns
        the partitions that were to be cancelled and are not being reassigned. `grows`: nobody asked for it, but the
        topic gets its missing replicas (replication/growth.py). Raises UnknownTopic, StorageError, ConnectionLost."""
        idle: set[int] = set()

        async def made() -> list[Operation]:
            topic = self._topic(name)
            partitions = list(topic.partitions)
            idle.clear()
            for index, to in wanted.items():
                if to is None and not is_moving(partitions[index]):
                    idle.add(index)
                else:
                    partitions[index] = reassigned(partitions[index], original(partitions[index]) if to is None else to)
            if partitions == list(topic.partitions):
                return []
            return [*topic.unless_deleted(), topic.put_replicas(partitions, grows=grows)]

        with self._runtime.audit.change("reassignment", [name]) as told:
            told.after[name] = {str(index): None if to is None else list(to) for index, to in wanted.items()}
            await change(self._runtime.store, made)
            told.made = wanted.keys() != idle
        return idle

    async def elect(self, name: str, index: int, *, unclean: bool) -> NotElected | None:
        """Gives a partition its preferred leader; or, if `unclean`, and it has none, a leader that may lack
        acknowledged events. None: it was done. Raises UnknownTopic, StorageError, ConnectionLost."""
        why: NotElected | None = None
        if unclean:
            await wait_any([self._runtime.store.changed], lambda: self._is_settled(name, index), SETTLE_S)

        async def made() -> list[Operation]:
            nonlocal why
            alive = await self._alive(name, index) if unclean else self._runtime.image.brokers
            image, topic = self._runtime.image, self._topic(name)
            found = (elect_uncleanly if unclean else prefer)(image, topic, index, alive)
            why = found if isinstance(found, NotElected) else None
            if not isinstance(found, NotElected):
                return found
            version = topic.partitions[index].version
            return [] if version < 0 else [Check(paths.state(name, index), version)]  # the image may be old

        with self._runtime.audit.change("leader", [f"{name}-{index}"]) as told:
            told.after[f"{name}-{index}"] = {"unclean": unclean}
            await change(self._runtime.store, made)
            told.made = why is None
        if why is None:
            self._runtime.report("election_by_hand", partition=f"{name}-{index}", unclean=unclean)
        return why

    async def _alive(self, name: str, index: int) -> Collection[int]:
        """The partition's replicas that are registered, and renew their leases: a registration outlives its broker for
        some seconds."""
        runtime, partition = self._runtime, self._topic(name).partitions[index]
        if partition.state.leader != NOBODY:
            return runtime.image.brokers
        alive = {runtime.id} & runtime.image.brokers.keys()
        unknown = {*partition.replicas} & runtime.image.brokers.keys() - alive
        before = {each: await self._lease(each) for each in unknown}
        end = trio.current_time() + SILENCE_MS / 1000
        while unknown and trio.current_time() < end:
            await trio.sleep(LOOK_S)
            renewed = {each for each in unknown if await self._lease(each) != before[each]}
            alive, unknown = alive | renewed, unknown - renewed
        return alive

    async def _lease(self, broker: int) -> int:
        found = await self._runtime.store.read(paths.lease(broker))
        return -1 if found is None else found.version

    def _is_settled(self, name: str, index: int) -> bool:
        """Whether the controller has dismissed a leader and an ISR that are gone: it waits until their leases end."""
        state = self._topic(name).partitions[index].state
        return not state.isr if state.leader == NOBODY else state.leader in self._runtime.image.brokers

    def _topic(self, name: str) -> TopicImage:
        found = self._runtime.image.topics.get(name)
        if found is None:
            raise UnknownTopic(f"there is no topic '{name!s:.249}'", topic=str(name)[:249])
        return found
