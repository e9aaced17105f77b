"""The events that a consumer has received and not handed out yet. No I/O."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from krappy.clients.events import EventBatch, without
from krappy.types import Event, TopicPartition

NONE: Iterator[Event] = iter(())


class Received:
    """`events`: the rest of the batch that is being handed out, one by one. `batches`: those behind it.

    `leased`: the consumer is a member of a group. Its events are its own `until` their leases end, by the clock `now`;
    then they may be with another member. So whoever takes one of `events` looks at the clock before."""

    def __init__(self, now: Callable[[], float], *, leased: bool) -> None:
        self.events: Iterator[Event] = NONE
        self.batches: deque[EventBatch] = deque()
        self.leased = leased
        self.until = 0.0 if leased else math.inf
        self.now = now
        self._current: EventBatch | None = None  # the batch of `events`

    @property
    def over(self) -> bool:
        """Whether the leases of these events have ended."""
        return self.now() >= self.until

    @property
    def waiting(self) -> int:
        """How many events can be handed out without another batch."""
        return 0 if self.over else operator.length_hint(self.events)

    @property
    def any(self) -> bool:
        """Whether there are events that were not handed out, whatever their leases."""
        return bool(self.batches) or operator.length_hint(self.events) > 0

    # An interrupt, as of Ctrl-C, may come with any call: what is taken is removed at the end, and without a call.

    def hand_out(self) -> None:
        """Puts the events of the next batch in `events`, unless there are some."""
        if not operator.length_hint(self.events) and self.batches:
            batch = self.batches[0]
            self._current, self.events = batch, iter(batch.events())
            del self.batches[0]

    def _begun(self) -> EventBatch | None:
        """What `events` still has."""
        left, current = operator.length_hint(self.events), self._current
        return current.cut(len(current) - left, len(current)) if left and current is not None else None

    def take_batch(self) -> EventBatch:
        """Takes what `events` still has, else the next batch; there must be one."""
        begun = self._begun()
        if begun is None:
            begun = self.batches[0]
            del self.batches[0]
        else:
            self.events, self._current = NONE, None
        return begun

    def take_events(self) -> list[Event]:
        """Takes all events that are here; none when there are none, or their leases have ended."""
        batches = self.all()
        found = batches[0].events() if len(batches) == 1 else [event for batch in batches for event in batch.events()]
        if self.over:  # by now: making them may take long
            return []
        empty: deque[EventBatch] = deque()
        self.batches, self.events, self._current = empty, NONE, None
        return found

    def all(self) -> list[EventBatch]:
        begun = self._begun()
        return [*self.batches] if begun is None else [begun, *self.batches]

    def drop(self, topic: str | None = None, partition: int = 0) -> None:
        """Drops the events of a partition; topic None: all."""
        kept = [] if topic is None else self.all()
        self._keep(batch for batch in kept if (batch.topic, batch.partition) != (topic, partition))

    def drop_keys(self, keys: set[tuple[str, int, bytes]]) -> None:
        """Drops the events of these (topic, partition, key)."""
        self._keep(part for batch in self.all() for part in without(batch, keys))

    def _keep(self, batches: Iterable[EventBatch]) -> None:
        self.batches, self.events, self._current = deque(batches), NONE, None

    def firsts(self) -> dict[TopicPartition, int]:
        """By partition, the offset of its first event."""
        return {TopicPartition(batch.topic, batch.partition): batch.offsets[0] for batch in reversed(self.all())}
