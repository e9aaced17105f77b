"""The controller: the one member, chosen through ZooKeeper, that elects leaders and takes the steps of reassignments.

It writes what krappy.core.cluster.decide finds due, and from time to time brings leaders back to where they are
preferred. Each of its writes demands the controller epoch that it took, so one that is not the controller any more
writes nothing. Every broker watches which others are there, so that the next controller knows it at once. A controller
that does not renew its lease is replaced as soon as a silent leader would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import trio

from krappy.cluster.member import RETRY_S, UNREGISTERED, ClusterMember
from krappy.cluster.mirror import Mirror
from krappy.core.cluster import paths, registration, znodes
from krappy.core.cluster.decide import decide
from krappy.core.cluster.elections import rebalance
from krappy.core.cluster.image import NOTHING, Image
from krappy.core.cluster.presence import Presence
from krappy.core.cluster.tree import Check, Delete, Operation, RefusedMulti
from krappy.errors import ConnectionLost, StorageError
from krappy.waiting import wait_any

LOOK_S = 0.5  # how often it looks at the leases, and whether a grace period is over
TOGETHER = 50  # partitions whose changes go in one write
NOT = -1  # as a version: another broker is the controller
Report = Callable[..., None]


class ControllerSettings(NamedTuple):
    """The settings auto.leader.rebalance.enable, leader.imbalance.check.interval.seconds, and
    leader.imbalance.per.broker.percentage. `topics`: this broker's defaults for topics' settings."""

    rebalances: bool = True
    check_s: float = 300
    percentage: int = 10
    topics: Mapping[str, str] = NOTHING


class Controller:
    """`version`: of the controller epoch's znode, since this broker took control; NOT: it is not the controller."""

    def __init__(
        self,
        mirror: Mirror,
        member: ClusterMember,
        broker: int,
        report: Report = lambda event, **facts: None,
        settings: ControllerSettings = ControllerSettings(),  # noqa: B008  (a constant)
    ) -> None:
        self.version = NOT
        self._settings = settings
        self._rebalance_at = math.inf
        self._mirror, self._member, self._broker = mirror, member, broker
        self._presence = Presence()
        self._leases: dict[int, int] = {}  # the version of each broker's lease, as read last
        self._report = report

    @property
    def controls(self) -> bool:
        return self.version != NOT

    async def run(self) -> None:
        """Until cancelled, or the session of `mirror` is over."""
        while not self._mirror.is_over:
            image = self._mirror.image
            try:
                await self._look()
                await self._take_control()
                if self.controls:
                    await self._decide()
            except (ConnectionLost, StorageError, RefusedMulti):
                await trio.sleep(RETRY_S)
                continue
            signals = [self._mirror.changed, self._member.changed]
            await wait_any(signals, partial(self._is_due, image), LOOK_S)
        self.version = NOT

    def _is_due(self, seen: Image) -> bool:
        return self._mirror.is_over or self._mirror.image is not seen

    async def _look(self) -> None:
        store = self._mirror
        found = await store.client.read([paths.lease(each) for each in store.image.brokers])
        self._leases = {int(path.rpartition("/")[2]): each.version for path, each in found.items() if each is not None}
        self._presence.look(store.image, self._leases, trio.current_time() * 1000)

    async def _take_control(self) -> None:
        """Becomes the controller if there is none, or if the present one is silent. If the answer to such a write was
        lost, learns here that this broker is the controller."""
        store, broker = self._mirror, self._broker
        controller = store.image.controller
        if self._member.epoch == UNREGISTERED:
            self.version = NOT
            if controller == broker:  # it may stay unregistered for long
                await self._give_up()
            return
        deposing: list[Operation] = []
        if controller not in (None, broker):
            self.version = NOT
            deposing = [*self._presence.fence(controller)]
            if not deposing:
                return
            deposing.append(Delete(paths.CONTROLLER))
        elif controller == broker and self.controls:
            return
        # In this order: if another broker becomes the controller between the two reads, the write is refused.
        epoch, found = await store.read(paths.CONTROLLER_EPOCH), await store.read(paths.CONTROLLER)
        if deposing and (found is None or znodes.controlled_by(found.data) != controller):
            return  # another was quicker
        if found is not None and not deposing:
            if found.owner == store.session and epoch is not None:
                self._begin(epoch.version)
            return
        await store.multi([*deposing, *registration.control(broker, self._member.epoch, epoch, store.session)])
        self._begin(0 if epoch is None else epoch.version + 1)

    async def _give_up(self) -> None:
        """Lets another one control the cluster. Raises RefusedMulti: one does."""
        store = self._mirror
        epoch, found = await store.read(paths.CONTROLLER_EPOCH), await store.read(paths.CONTROLLER)
        if epoch is not None and found is not None and found.owner == store.session:
            await store.multi([Check(paths.CONTROLLER_EPOCH, epoch.version), Delete(paths.CONTROLLER)])

    def _begin(self, version: int) -> None:
        self.version = version
        self._rebalance_at = trio.current_time() + self._settings.check_s
        self._report("controller", broker=self._broker, epoch=version + 1)

    async def _decide(self) -> None:
        image = self._mirror.image
        self._presence.look(image, self._leases, trio.current_time() * 1000)  # it may be a newer image
        due = decide(image, image.topics.values(), self._presence, self._settings.topics) or self._rebalance(image)
        for first in range(0, len(due), TOGETHER):
            await self._write(due[first : first + TOGETHER])

    def _rebalance(self, image: Image) -> list[list[Operation]]:
        """The operations that bring leaders back, if it is time to look for that."""
        if not self._settings.rebalances or trio.current_time() < self._rebalance_at:
            return []
        self._rebalance_at = trio.current_time() + self._settings.check_s
        due = rebalance(image, self._presence.alive, self._settings.percentage)
        if due:
            self._report("leaders_rebalanced", partitions=len(due))
        return due

    async def _write(self, due: Sequence[Sequence[Operation]]) -> None:
        """Writes the operations of some partitions. What is refused is decided again."""
        check = Check(paths.CONTROLLER_EPOCH, self.version)
        try:
            await self._mirror.multi([check, *(operation for each in due for operation in each)])
        except RefusedMulti as error:
            if error.index == 0:
                self.version = NOT
            elif len(due) > 1:
                for each in due:
                    await self._write([each])
