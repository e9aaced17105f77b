"""Whether a topic of a cluster may have strays (strays.py): what all its brokers agree on.

Each leader sees only its own partitions, but a lookup that finds nothing in a key's own partition must know whether the
key may stand in another one. So before the first stray is written, its leader marks the topic's znode. It writes the
stray once no broker that does not know the mark can answer any more: each answer needs a read lease, a broker renews
its lease only after it has read what it was told of, and the last lease that was renewed before the mark ends after
LEASE_MS. The mark is also set when partitions are added: then earlier keys may stand in another partition than their
own. It stays until the topic is deleted.

A topic's keys are looked at whether it has a view or not: its view may be turned on later, by its own setting or by a
default, and then nobody needs to check what was written before. Leaders of earlier versions did not look while there
was no view, and a broker that is alone marks nothing. So if all registered brokers look when a topic is made, its znode
gets `scattered: false`. A topic without this field is marked when its view is turned on or off.

A key's own partition depends on the number of partitions, so all brokers have to agree on that number, too. The rules:

- A broker that answers a lookup holds a read lease, and has as many partitions of the topic as the cluster has by all
  that it was told (`fits`, asked by `Viewed.is_sure`). Its topic also has this id, and is not an earlier one of that
  name.
- A leader that sees another number writes nothing to this topic for HOLD_S. Then no lease is left that was renewed
  before its broker had read of the new partitions. So an event in an added partition, or of a key whose place has
  changed, is acknowledged only once no broker that counts by the old number answers any more.
- So if a leader with a lease has so many partitions, no event was acknowledged before in a partition that it does not
  know. A client that asks all partitions names the number that it knows (`among`); a leader with another number
  refuses.
- A topic may be made anew once HOLD_S have passed since this broker saw the deletion of the earlier one, and all
  brokers that had replicas of the earlier one know it (deleted_names.py): then nobody answers for that one. Nor does
  anybody acknowledge events for it: a leader that is the only replica in sync, and stood still, writes nothing before
  it was told that its topic `is_there`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from krappy.broker.tree_changes import change
from krappy.core.cluster.presence import LEASE_MS
from krappy.core.cluster.tree import Operation
from krappy.errors import ConnectionLost, KrappyError, RequestTimeout, UnknownTopic

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

HOLD_S = LEASE_MS / 1000 * 1.1  # clocks may differ by 5 % in speed
LOOK_S = 0.05
PATIENCE_S = 10.0  # how long ZooKeeper may take to get the mark
RETRY_S = 5.0


class ScatteredMark:
    """The mark of one topic. `name`, `id`: the topic's."""

    def __init__(self, runtime: Runtime, name: str, id: bytes) -> None:
        self._runtime, self._name, self._id = runtime, name, id
        self._since = math.inf  # when this broker first saw the mark, or saw another number of partitions
        self._count = 0  # partitions at the last look; 0: there was no look yet
        self._wanted = False

    @property
    def is_set(self) -> bool:
        found = self._runtime.image.topics.get(self._name)
        return found is not None and found.id == self._id and bool(found.scattered)

    @property
    def is_there(self) -> bool | None:
        """Whether this topic still exists, by all that this broker was told; None: this broker stood still, and was
        told nothing since."""
        if self._runtime.stillness.was:
            return None
        found = self._runtime.image.topics.get(self._name)
        return found is not None and found.id == self._id

    @property
    def is_split(self) -> bool:
        """Whether another broker leads some of its partitions, by all that this broker was told."""
        image = self._runtime.image
        found = image.topics.get(self._name)
        if found is None or found.id != self._id:
            return False
        return bool({each.state.leader for each in found.partitions} & (image.brokers.keys() - {self._runtime.id}))

    def fits(self, count: int) -> bool:
        """Whether the topic has so many partitions, and was not made anew, by all that this broker was told."""
        found = self._runtime.image.topics.get(self._name)
        return found is not None and found.id == self._id and len(found.partitions) == count

    def look(self) -> None:
        """To be called with each new image: the mark counts from when it was seen together with this number of
        partitions."""
        found = self._runtime.image.topics.get(self._name)
        if found is None or found.id != self._id:
            return
        count, before = len(found.partitions), self._count
        self._count = count
        if found.scattered and (self._since == math.inf or count != before):
            self._since = trio.current_time()

    @property
    def is_known(self) -> bool:
        """Whether no leader that does not know the mark can answer any more."""
        self.look()
        return trio.current_time() - self._since >= HOLD_S

    @property
    def is_new(self) -> bool:
        """Whether it is set, and some leader may not know it."""
        return self.is_set and not self.is_known

    async def make_known(self) -> None:
        """Sets the mark, and returns when it `is_known`. Raises RequestTimeout while ZooKeeper is away,
        UnknownTopic."""
        try:
            with trio.fail_after(PATIENCE_S):
                await self._set()
        except (trio.TooSlowError, ConnectionLost) as error:
            raise RequestTimeout(
                f"'{self._name}' gets its first key in another partition than its own, and ZooKeeper can't be told now"
            ) from error
        while not self.is_known:
            await trio.sleep(LOOK_S)
            if not self.is_set:
                raise UnknownTopic(f"the topic '{self._name}' was deleted", topic=self._name)

    async def _set(self) -> None:
        async def made() -> list[Operation]:
            found = self._runtime.image.topics.get(self._name)
            if found is None or found.id != self._id:
                raise UnknownTopic(f"the topic '{self._name}' was deleted", topic=self._name)
            if found.scattered:
                return []
            self._runtime.report("topic_scattered", topic=self._name)
            return [*found.unless_deleted(), found.put_replicas(found.partitions, scattered=True)]

        if not self.is_set:
            await change(self._runtime.store, made)
        self.look()

    def want(self) -> None:
        """Sets the mark in the background: a replica here has strays from a time without it."""
        if not self._wanted and not self.is_set:
            self._wanted = True
            self._runtime.spawn(self._set_later)

    async def _set_later(self) -> None:
        while not self._runtime.stopped and not self.is_set and self._name in self._runtime.image.topics:
            try:
                await self._set()
            except KrappyError as error:
                self._runtime.report("strays_unknown", topic=self._name, error=str(error))
                await trio.sleep(RETRY_S)
        self._wanted = False
