"""Whether a topic of a cluster may have strays (strays.py): what all its brokers agree on.

Each leader sees only its own partitions, but a lookup that finds nothing in a key's own partition must know whether the
key may stand in another one. So before the first stray is written, its leader marks the topic's znode. It goes on once
nobody can answer any more who does not know that: each answer needs a read lease, a lease is not renewed before its
broker has read what it was told of, and the last one that was renewed before ends after LEASE_MS. The mark also comes
with partitions that are added: keys of before stand elsewhere then. It stays until the topic is deleted.

A topic's keys are looked at whether it has a view or not: its view may be turned on later, by its own setting or by a
default, and then nobody need ask what was written before. Leaders of earlier versions did not look while there was no
view, nor does a broker that is alone mark anything. So the znode of a topic that was made while all registered brokers
look has `scattered: false`; one without this field is marked when its view is turned on or off.

The number of partitions says where a key's own place is, so all brokers have to agree on that, too. The rule:

- Whoever answers a lookup holds a read lease, and has as many partitions of the topic as the cluster has by all that it
  was told (`fits`, asked by `Viewed.is_sure`); also it is the topic of this id, not one of that name from before.
- A leader that sees another number writes nothing to this topic for HOLD_S. Then no lease is left that was renewed
  before its broker had read of the new partitions. So an event in an added partition, or of a key whose place has
  changed, is acknowledged only once nobody answers any more who counts by the old number.
- So if one leader with a lease has so many partitions, no event was acknowledged before in one that it does not know.
  A client that asks all partitions names the number it knows (`among`); a leader with another one refuses.
- A topic may be made anew once HOLD_S have passed since this broker saw the deletion of the one before, and all who
  had replicas of that know it (deleted_names.py): nobody answers for that one then. Nor does anybody acknowledge events
  for it: who is the only replica in sync, and stood still, writes nothing before it was told that its topic `is_there`.
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
PATIENCE_S = 10.0  # with ZooKeeper
RETRY_S = 5.0


class ScatteredMark:
    """The mark of one topic. `name`, `id`: the topic's."""

    def __init__(self, runtime: Runtime, name: str, id: bytes) -> None:
        self._runtime, self._name, self._id = runtime, name, id
        self._since = math.inf  # when this broker saw it first, or another number of partitions
        self._count = 0  # partitions, as they were seen last; 0: it was not looked yet
        self._wanted = False

    @property
    def is_set(self) -> bool:
        found = self._runtime.image.topics.get(self._name)
        return found is not None and found.id == self._id and bool(found.scattered)

    @property
    def is_there(self) -> bool | None:
        """Whether there is still this topic, by all that this broker was told; None: it stood still, and was told
        nothing since."""
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
        """To be called with each new image: the mark counts from when it, and this number of partitions, was seen."""
        found = self._runtime.image.topics.get(self._name)
        if found is None or found.id != self._id:
            return
        count, before = len(found.partitions), self._count
        self._count = count
        if found.scattered and (self._since == math.inf or count != before):
            self._since = trio.current_time()

    @property
    def is_known(self) -> bool:
        """Whether no leader can answer any more who does not know it."""
        self.look()
        return trio.current_time() - self._since >= HOLD_S

    @property
    def is_new(self) -> bool:
        """Whether it is set, and some leader may not know it."""
        return self.is_set and not self.is_known

    async def make_known(self) -> None:
        """Sets it, and returns when it `is_known`. Raises RequestTimeout while ZooKeeper is away, UnknownTopic."""
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
        """Sets it in the background: a replica here has strays from a time without this mark."""
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
