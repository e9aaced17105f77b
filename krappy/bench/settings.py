"""What can be set of a bench."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from krappy.types import Compression


@dataclass(frozen=True)
class BenchSettings:
    """Sizes are bytes. `count` is what one round does: events, gets, or the entries of the table scanned."""

    count: int
    rounds: int = 3
    record_bytes: int = 100
    keys: int = 10_000
    history: int = 1  # events stored of each key before it is looked up
    partitions: int = 1
    view: bool = True
    compression: Compression | None = None
    batch: int = 5_000  # events handed to the producer at a time; keys of a multi-get
    single: bool = False  # one Message for each event
    connections: int = 1
    window: int = 64  # requests in flight on each connection
    rate: int = 1_000  # events per second, for latency
