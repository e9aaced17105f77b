"""The port to what a broker has seen of its cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from krappy.core.cluster.changes import NotedChange
from krappy.core.cluster.replica_set import FollowerLag
from krappy.types import TopicPartition
from krappy.waiting import Signal


class LookoutPort(Protocol):
    """`moved`: fired after changes were noted. `shrinks`, `expands`: of the ISRs of partitions that this broker led.
    `elections`: of leaders, while this broker was the controller. All count since it started."""

    moved: Signal
    shrinks: int
    expands: int
    elections: int

    @property
    def last(self) -> int:
        """The number of the last change that was noted; 0 if there is none."""

    def after(self, number: int) -> Sequence[NotedChange]:
        """The changes with higher numbers that are still remembered, in their order."""

    async def lags(
        self, led: Mapping[int, Iterable[TopicPartition]]
    ) -> Mapping[TopicPartition, Mapping[int, FollowerLag]]:
        """How far the followers of these partitions are, by broker id. `led`: the partitions, by the broker that leads
        them. Each leader is asked. One that does not answer soon, or does not lead a partition any more, is left
        out."""
