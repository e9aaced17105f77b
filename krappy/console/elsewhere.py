"""Partitions that other brokers lead, so that any broker's console serves all partitions.

The code that reads pages of events is the same as for this broker's partitions: `ElsewherePartition` has as much of a
partition as this code needs. Its offsets are those of the moment when the leader was asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol, TypeVar

import trio

from krappy.console.api import Call
from krappy.errors import InvalidRequest, KrappyError, NotLeader, OffsetOutOfRange, UnknownTopic
from krappy.ports import GatewayPort, PartitionPort, PartitionTold, TopicPort
from krappy.records import batch as batches
from krappy.records.batch import Columns
from krappy.types import Span

T = TypeVar("T")
MAX_MERGED = 128  # partitions that are read for one page
ELECTION_SECONDS = 10.0  # for which a reader waits while nobody leads a partition, such as one of a new topic
AGAIN_SECONDS = 0.2  # between two looks for its leader


class EventSource(Protocol):
    """As much of a partition as pages of its events need, here or elsewhere. Its offsets are named as a partition's."""

    @property
    def index(self) -> int: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def gone(self) -> KrappyError | None: ...
    async def read(self, offset: int, max_bytes: int, limit: int | None = None) -> Span: ...
    async def look_at(self, batch: memoryview, work: Callable[[Columns], T]) -> T: ...
    async def offset_for(self, start: str, start_at: int | None) -> int: ...
    def available(self, offset: int, max_bytes: int, limit: int) -> int: ...


class ElsewherePartition:
    """A partition that another broker leads, as it was when the leader was asked. `waited`: seconds that its reads have
    waited for that broker."""

    def __init__(self, gateway: GatewayPort, topic: TopicPort, told: PartitionTold) -> None:
        self._gateway, self._of, self._topic = gateway, topic, topic.name
        self.index = told.partition
        self.waited = 0.0
        self.take(told)

    @property
    def gone(self) -> KrappyError | None:
        """Why it will have no more events; another topic may have the name by now."""
        return UnknownTopic(f"the topic '{self._topic}' was deleted", topic=self._topic) if self._of.deleted else None

    def take(self, told: PartitionTold) -> None:
        """Takes what the leader has told. Raises NotLeader if it did not."""
        if told.last_stable_offset < 0:
            raise NotLeader(f"{self._topic}-{told.partition}: its leader can't be reached now")
        self.start_offset, self.last_stable_offset = told.start, told.last_stable_offset
        self.high_watermark, self.size = told.high_watermark, told.size

    async def read(self, offset: int, max_bytes: int, limit: int | None = None) -> Span:
        end = self.last_stable_offset if limit is None else min(limit, self.last_stable_offset)
        if offset >= end:
            return Span(b"", offset, 0)
        began = perf_counter()
        try:
            data, following = await self._gateway.read(self._topic, self.index, offset, end, max_bytes)
        finally:
            self.waited += perf_counter() - began
        return Span(data, following, 0)

    async def look_at(self, batch: memoryview, work: Callable[[Columns], T]) -> T:
        return await trio.to_thread.run_sync(lambda: work(batches.decode(batch)))

    async def offset_for(self, start: str, start_at: int | None) -> int:
        if start == "earliest":
            return self.start_offset
        if start == "latest":
            return self.last_stable_offset
        assert start_at is not None
        if start == "timestamp":
            return (await self._gateway.offsets_at(self._topic, start_at))[self.index]
        if not self.start_offset <= start_at <= self.high_watermark:
            raise OffsetOutOfRange(
                f"{self._topic}-{self.index}: offset {start_at} is outside {self.start_offset} to "
                f"{self.high_watermark}",
                start=self.start_offset,
                end=self.high_watermark,
                topic=self._topic,
                partition=self.index,
            )
        return start_at

    def available(self, offset: int, max_bytes: int, limit: int) -> int:
        events = max(1, self.last_stable_offset - self.start_offset)
        return max(0, limit - offset) * self.size // events


def led_here(topic: TopicPort, indexes: Collection[int]) -> list[PartitionPort] | None:
    """These partitions, if this broker leads all of them; else None. Raises UnknownPartition."""
    try:
        return [topic.led(index) for index in indexes]
    except NotLeader:
        return None


class AllLed(Mapping[int, PartitionPort]):
    """All partitions of a topic, as long as this broker leads them. Raises NotLeader for one that it does not lead."""

    def __init__(self, topic: TopicPort) -> None:
        self._topic = topic

    def __getitem__(self, index: int) -> PartitionPort:
        return self._topic.led(index)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self._topic.count


async def sources(call: Call, topic: TopicPort, indexes: Collection[int]) -> list[EventSource]:
    """The partitions `indexes`, or all; those that this broker leads are its own. Raises UnknownPartition; NotLeader
    if nobody leads one; InvalidRequest if there are more than MAX_MERGED."""
    wanted = list(dict.fromkeys(indexes)) or list(range(topic.count))
    if len(wanted) > MAX_MERGED:
        raise InvalidRequest(
            f"'{topic.name}' has {len(wanted)} partitions, and at most {MAX_MERGED} are read together: say which",
            field="partition",
        )
    here: dict[int, EventSource] = {}
    for index in wanted:
        try:
            here[index] = topic.led(index)
        except NotLeader:
            if call.gateway is None:
                raise
    if len(here) < len(wanted):
        assert call.gateway is not None
        here |= await soon(partial(_away, call.gateway, topic, [index for index in wanted if index not in here]))
    return [here[index] for index in wanted]


async def _away(gateway: GatewayPort, topic: TopicPort, indexes: list[int]) -> dict[int, ElsewherePartition]:
    told = await _told(gateway, topic.name, indexes)
    return {index: ElsewherePartition(gateway, topic, told[index]) for index in indexes}


async def _told(gateway: GatewayPort, topic: str, indexes: Collection[int]) -> dict[int, PartitionTold]:
    """What the leaders tell of partitions, by index. Raises UnknownTopic; NotLeader while the broker
    that tells of leaders does not know a partition that this broker knows."""
    found = {each.partition: each for each in (await gateway.describe([topic])).get(topic, ())}
    if not found:
        raise UnknownTopic(f"there is no topic '{topic}'", topic=topic)
    for index in indexes:
        if index not in found:
            raise NotLeader(f"{topic}-{index}: its leader is not known yet")
    return found


async def soon(look: Callable[[], Awaitable[T]]) -> T:
    """What `look` gives. While it raises NotLeader it is called again for a while: a new leader is being elected."""
    end = trio.current_time() + ELECTION_SECONDS
    while True:
        try:
            return await look()
        except NotLeader:
            if trio.current_time() >= end:
                raise
        await trio.sleep(AGAIN_SECONDS)


async def refresh(gateway: GatewayPort | None, topic: str, partitions: Sequence[EventSource]) -> bool:
    """Asks the leaders of the partitions elsewhere again. Returns whether there are such partitions."""
    away = [each for each in partitions if isinstance(each, ElsewherePartition)]
    if away and gateway is not None:
        told = await _told(gateway, topic, [each.index for each in away])
        for each in away:
            each.take(told[each.index])
    return bool(away)
