"""After a topic was deleted: when another topic of its name may be made. That is once nobody serves the deleted one any
more, so for each broker that had a replica of it:

- It renews its read lease after this broker has seen the deletion. Before that it has read of the deletion, too
  (core/cluster/presence.py).
- Or its registration ends. A broker that does not hear from ZooKeeper leads, and acknowledges, until its session is
  over; by its own clock that is not later than by ZooKeeper's. HOLD_S more leave it time to give up its role.
- And HOLD_S have passed: a lease that was renewed before the deletion is over then (scattered.py).

A broker that stood still is not waited for longer than its registration lasts: it finds out itself that it stood still
(stillness.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import trio

from krappy.broker.topics.scattered import HOLD_S
from krappy.broker.topics.topic import Topic
from krappy.core.cluster import paths
from krappy.errors import ConnectionLost, RequestTimeout

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

LOOK_S = 0.1


class Gone(NamedTuple):
    at: float  # when this broker saw the deletion, on trio's clock
    brokers: dict[int, int]  # the broker epoch of each broker that had a replica, and was registered


class DeletedNames:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._gone: dict[str, Gone] = {}
        # After so long nobody leads what was deleted, unless its session lasts far longer than this broker's would.
        self._keep_s = HOLD_S + 2 * runtime.config.zookeeper_session_timeout_ms / 1000

    def add(self, topic: Topic) -> None:
        """This broker has just seen that the topic is gone."""
        now, image = trio.current_time(), self._runtime.image
        replicas = {id for each in topic.image.partitions for id in each.replicas} - {self._runtime.id}
        self._gone = {name: each for name, each in self._gone.items() if now - each.at < self._keep_s}
        self._gone[topic.name] = Gone(now, {id: image.brokers[id].epoch for id in replicas & image.brokers.keys()})

    async def until_free(self, name: str) -> None:
        """Returns once the name may be taken. Raises RequestTimeout while ZooKeeper is away."""
        gone = self._gone.get(name)
        if gone is None or trio.current_time() - gone.at >= self._keep_s:
            return
        try:
            before = await self._leases(gone.brokers)
            await trio.sleep_until(gone.at + HOLD_S)
            silent = set(gone.brokers)
            while silent:
                now, image = await self._leases(silent), self._runtime.image
                silent = {id for id in silent if now[id] == before[id]}
                over = {id for id in silent if id not in image.brokers or image.brokers[id].epoch != gone.brokers[id]}
                silent -= over
                await trio.sleep(HOLD_S if over and not silent else LOOK_S if silent else 0)
        except ConnectionLost as error:
            raise RequestTimeout(
                f"'{name}' was deleted, and ZooKeeper can't tell now whether all brokers know that"
            ) from error

    async def _leases(self, brokers: Iterable[int]) -> dict[int, int]:
        """The version of each broker's lease; -1: it has none."""
        found = {id: await self._runtime.store.read(paths.lease(id)) for id in brokers}
        return {id: -1 if znode is None else znode.version for id, znode in found.items()}
