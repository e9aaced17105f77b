"""What a broker lends to each of its partitions: its clock, its threads and tasks, and the checks of producers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import trio

from krappy.measures import StoreMeasures
from krappy.types import TopicPartition

if TYPE_CHECKING:
    from krappy.store.views import Views


class Lent(Protocol):
    views: Views
    measures: StoreMeasures
    fsync: bool
    disk_limiter: trio.CapacityLimiter
    shrinking: trio.Lock  # held while events are removed from a log
    counting: trio.CapacityLimiter  # tasks that read whole views

    def check_producer(self, producer_id: int, *, transactional: bool) -> None: ...
    def check_transactional(self, producer_id: int, epoch: int, at: TopicPartition) -> None: ...
    def check_room(self, size: int) -> None: ...
    def now_ms(self) -> int: ...
    def spawn(self, run: Callable[[], Any]) -> None: ...
    def report(self, event: str, **facts: Any) -> None: ...
