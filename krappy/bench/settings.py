"""The settings of a bench."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from krappy.clients.choice import Order
from krappy.types import Compression


@dataclass(frozen=True)
class BenchSettings:
    """Sizes in bytes. `count`: the events, lookups or entries of one round."""

    count: int
    rounds: int = 3
    record_bytes: int = 100
    keys: int = 10_000
    history: int = 1  # events stored per key before the lookups
    partitions: int = 1
    view: bool = True
    compression: Compression | None = None
    batch: int = 5_000  # events passed to the producer at a time; keys per multi-get; events per poll of a group
    single: bool = False  # one Message for each event
    connections: int = 1
    window: int = 64  # requests in flight on each connection
    rate: int = 1_000  # events per second, for latency
    grouped: bool = True  # for loop: by members of a group, or by one reader without a group
    order: Order = "none"  # of the group
    work_us: int = 0  # microseconds that a member sleeps for each event
