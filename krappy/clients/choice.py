"""What a consumer reads, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from krappy.clients.values import StartAt, start
from krappy.errors import InvalidRequest, KrappyError

Order = Literal["none", "key"]
End = Literal["now"] | int
MAX_LEASED = 500  # records that a member's poll leases at most, by default
MAX_READ = 2**31 - 1  # records that a reader's poll brings at most, by default: `max_bytes` is its real limit


class ConsumerOptions(TypedDict, total=False):
    """As `Client.consumer` explains them."""

    group: str | None
    partitions: Sequence[int] | None
    start: StartAt
    end: End | None
    order: Order
    lease_ms: int
    max_deliveries: int
    dead_letter: str | None
    max_records: int | None
    max_bytes: int


@dataclass(frozen=True)
class Choice:
    """What to read and how. `end`: where to stop: an offset, "now" (the ends of the partitions when the consumer
    opens), or None (never). `max_records` and `max_bytes` limit one poll."""

    topics: list[str]
    group: str | None = None
    partitions: Sequence[int] | None = None
    start: StartAt = "earliest"
    end: End | None = None
    order: Order = "none"
    lease_ms: int = 30_000
    max_deliveries: int = 10
    dead_letter: str | None = None
    max_records: int | None = None
    max_bytes: int = 1 << 20

    def topic_of(self, error: KrappyError) -> str:
        """The topic that an error names; the first one if it names none."""
        return str(error.details.get("topic", self.topics[0]))

    def check(self) -> None:
        """Raises InvalidRequest for bad values and combinations; the broker checks the rest."""
        start(self.start)
        if self.end is not None and self.end != "now" and (type(self.end) is not int or self.end < 0):
            raise InvalidRequest(f"end={self.end!r}: give 'now', an offset, or None to go on for ever")
        if self.group is not None and (self.partitions is not None or self.end is not None):
            raise InvalidRequest("members of a group share all partitions and never end: give no `partitions` or `end`")
        if self.records < 1 or self.max_bytes < 1 or self.lease_ms < 1:
            raise InvalidRequest("max_records, max_bytes and lease_ms must be at least 1")

    @property
    def records(self) -> int:
        """The most records of one poll. By default members lease a few at a time; readers are limited by bytes."""
        if self.max_records is not None:
            return self.max_records
        return MAX_LEASED if self.group is not None else MAX_READ

    def one(self, topic: str | None) -> str:
        """The topic, or for None the only one there is. Raises InvalidRequest when there are several."""
        if topic is not None:
            return topic
        if len(self.topics) != 1:
            raise InvalidRequest("name the topic: this consumer has several")
        return self.topics[0]
