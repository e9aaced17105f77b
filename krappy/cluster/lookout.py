"""What a broker has seen of its cluster since it started, for people who look on: the last changes, and how far the
followers of each partition are.

Only a partition's leader knows its followers. So the other leaders are asked, by Kafka's DescribeQuorum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Protocol

import trio

from krappy.cluster.inter_broker import InterBroker
from krappy.cluster.peer_links import PeerLinks
from krappy.cluster.peers import Message
from krappy.core.cluster.changes import ChangeKind, NotedChange, changes_between
from krappy.core.cluster.image import Image
from krappy.core.cluster.replica_set import FollowerLag
from krappy.errors import KrappyError
from krappy.ports.store import Store
from krappy.types import TopicPartition
from krappy.waiting import Signal
from krappy.wire.kafka import ApiKey

KEPT = 1000  # changes that are remembered
PATIENCE_S = 2.0  # for the leaders' answers
LEAST_VERSION = 1  # of DescribeQuorum: the first that tells times (KIP-836)
CLIENT_ID = "krappy-lookout"
Lags = dict[int, FollowerLag]  # by broker id


class LedPartition(Protocol):
    def lags(self) -> Mapping[int, FollowerLag]: ...


class Lookout:
    """Implements `LookoutPort`. `led(at)`: a partition that this broker leads; raises KrappyError. `now_ms`: the time
    of day."""

    def __init__(
        self,
        broker: int,
        way: InterBroker,
        led: Callable[[TopicPartition], LedPartition],
        now_ms: Callable[[], int],
    ) -> None:
        self.moved = Signal()
        self.shrinks = self.expands = self.elections = 0
        self._broker = broker
        self._led, self._now_ms = led, now_ms
        self._noted: deque[NotedChange] = deque(maxlen=KEPT)
        self._number = 0
        self._image = Image()
        self._links = PeerLinks(lambda: self._image, way, CLIENT_ID, timeout_s=PATIENCE_S)

    # --- changes

    def begin(self, store: Store) -> None:
        """From now on the changes of the store's image are noted."""
        self._image = store.image
        store.changed.subscribe(partial(self._look, store))

    def _look(self, store: Store) -> None:
        before, self._image = self._image, store.image
        if before is self._image:
            return
        number, now = self._number, self._now_ms()
        for change in changes_between(before, self._image):
            self._number += 1
            self._noted.append(NotedChange(self._number, now, change))
            if change.topic is not None and change.partition is not None:
                topic = self._image.topics[change.topic]
                mine = topic.partitions[change.partition].state.leader == self._broker
                self.shrinks += mine and change.shrinks
                self.expands += mine and change.expands
                self.elections += change.kind is ChangeKind.LEADER and self._image.controller == self._broker
        if self._number != number:
            self.moved.fire()

    @property
    def last(self) -> int:
        return self._number

    def after(self, number: int) -> list[NotedChange]:
        first = self._number - len(self._noted)  # the number before the first one that is remembered
        return list(islice(self._noted, max(0, number - first), None))

    # --- how far the followers are

    async def lags(self, led: Mapping[int, Iterable[TopicPartition]]) -> dict[TopicPartition, Lags]:
        found: dict[TopicPartition, Lags] = {}

        async def ask(broker: int, wanted: Iterable[TopicPartition]) -> None:
            try:
                body = {"topics": _by_topic(wanted)}
                answer = await self._links.to(broker).ask(ApiKey.DESCRIBE_QUORUM, body, least=LEAST_VERSION)
            except KrappyError:
                return
            for topic in answer["topics"]:
                for each in topic["partitions"]:
                    if each["leader_id"] == broker:
                        at = TopicPartition(topic["topic_name"], each["partition_index"])
                        found[at] = _lags(each)

        with trio.move_on_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for broker, wanted in led.items():
                    if broker == self._broker:
                        self._add_own(found, wanted)
                    elif broker in self._image.brokers:
                        nursery.start_soon(ask, broker, wanted)
        return found

    def _add_own(self, found: dict[TopicPartition, Lags], wanted: Iterable[TopicPartition]) -> None:
        for at in wanted:
            try:
                found[at] = dict(self._led(at).lags())
            except KrappyError:
                continue


def _by_topic(wanted: Iterable[TopicPartition]) -> list[Message]:
    topics: dict[str, list[Message]] = {}
    for at in wanted:
        topics.setdefault(at.topic, []).append({"partition_index": at.partition})
    return [{"topic_name": name, "partitions": partitions} for name, partitions in topics.items()]


def _lags(partition: Message) -> Lags:
    """What a leader tells of its followers. Its own row has its log's end, and the time by its clock."""
    rows = {each["replica_id"]: each for each in (*partition["current_voters"], *partition["observers"])}
    own = rows.pop(partition["leader_id"], None)
    if own is None:
        return {}
    end, now = own["log_end_offset"], own["last_fetch_timestamp"]
    found = {}
    for replica, each in rows.items():
        offset, caught_up = each["log_end_offset"], each["last_caught_up_timestamp"]
        if offset >= 0:
            since = None if caught_up < 0 else float(max(0, now - caught_up))
            fetched = float(max(0, now - each["last_fetch_timestamp"]))
            found[replica] = FollowerLag(offset, max(0, end - offset), fetched, since)
    return found
