"""The registry of Kafka groups: their names, the memory that they take, and the topics that their members may read.

Requests of members are served by the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import trio

from krappy.broker.kafka_groups.group import KafkaGroup
from krappy.broker.kafka_groups.settings import GroupSettings
from krappy.broker.latest.table_topic import table_topic
from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.classic_member import Rules
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern import KnownTopic, ModernRules
from krappy.ports import GroupFacts

if TYPE_CHECKING:
    from krappy.broker.kafka_groups.keeper import Keeper
    from krappy.broker.latest.latest import LatestTables
    from krappy.broker.overrides import OverrideStore
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.internal_topics import InternalTopics

LONGEST_GROUP = 1000  # characters of a group's name
MEMORY_SHARE = 4  # groups and their members may take 1/MEMORY_SHARE of the broker's memory budget
MAX_SPECIAL = 1000  # names of tables that KIP-848 members may subscribe to


class Natives(Protocol):
    """The native groups, as Kafka's clients see them."""

    def has(self, name: str) -> bool: ...
    def sizes(self) -> Mapping[str, int]: ...
    def describe(self, name: str) -> GroupFacts: ...
    async def delete(self, name: str) -> None: ...


class GroupRegistry:
    """`on_forget`: called with each group that is about to be forgotten."""

    def __init__(
        self,
        runtime: Runtime,
        store: Keeper,
        settings: OverrideStore,
        natives: Natives,
        internal: InternalTopics,
        latest: LatestTables,
    ) -> None:
        config = runtime.config
        self.runtime = runtime
        self.store = store
        self.natives = natives
        self.groups: dict[str, KafkaGroup] = {}
        self.rules = Rules(config.group_initial_rebalance_delay_ms, config.group_max_members)
        self.modern_rules = ModernRules(config.group_consumer_session_timeout_ms, config.group_max_members)
        self.heartbeat_ms = config.group_consumer_heartbeat_interval_ms
        self.settings = GroupSettings(runtime, self.modern_rules, self.get, settings)
        self.closed = False  # nothing is written any more
        self.on_forget: list[Callable[[KafkaGroup], None]] = []
        self._internal = internal
        self._latest = latest
        self._topics: dict[str, KnownTopic] | None = None  # made when they are asked for
        self._special: set[str] = set()
        self._bytes = 0
        self._max_bytes = config.memory_bytes // MEMORY_SHARE

    @staticmethod
    def now() -> int:
        """Milliseconds of a clock that nobody sets: setting the wall clock ends no session."""
        return int(trio.current_time() * 1000)

    def rang(self, group: KafkaGroup, now: int) -> None:
        """Called when a group's alarm rings."""
        raise NotImplementedError

    @property
    def topics(self) -> dict[str, KnownTopic]:
        """All topics, by name. A new dict after each change of topics: KIP-848 groups compare it by identity."""
        if self._topics is None:
            self._topics = self._known_topics()
        return self._topics

    def forget_topics(self) -> None:
        self._topics = None

    def _known_topics(self) -> dict[str, KnownTopic]:
        there: dict[str, Any] = {topic.name: topic for topic in self._internal.listed()}
        there |= self.runtime.topics
        topics = {name: KnownTopic(topic.id, topic.count) for name, topic in there.items()}
        for name in sorted(self._special):
            topic = table_topic(self.runtime.topics, self._latest, name, {}, self.runtime.config.latest_alias)
            if topic is None:
                self._special.discard(name)
            else:
                topics[name] = KnownTopic(topic.id, topic.count)
        return topics

    def learn_special(self, names: Iterable[str]) -> None:
        fresh = {name for name in names if name not in self._special and self.runtime.topics.table_of(name)}
        if fresh and len(self._special) + len(fresh) <= MAX_SPECIAL:
            self._special |= fresh
            self.forget_topics()

    # --- which group

    def get(self, name: str) -> KafkaGroup | None:
        return self.groups.get(name)

    def add(self, group: KafkaGroup) -> None:
        """Adds a group that was loaded."""
        self.groups[group.name] = group
        self._bytes += group.bytes

    def find(self, name: str, other_kind: Fault = Fault.GROUP_ID_NOT_FOUND) -> KafkaGroup:
        """Raises Refused: GROUP_ID_NOT_FOUND, or `other_kind` for a native group's name."""
        group = self.groups.get(name)
        if group is None:
            self.check_free(name, other_kind)
            raise Refused(Fault.GROUP_ID_NOT_FOUND, f"there is no group '{name:.249}'")
        return group

    def check_free(self, name: str, fault: Fault = Fault.INCONSISTENT_GROUP_PROTOCOL) -> None:
        """Raises Refused when the name is a native group's."""
        if self.natives.has(name):
            raise Refused(
                fault, f"'{name:.249}' is a native group of Krappy, which Kafka's clients can't join; take another name"
            )

    def make(self, name: str) -> KafkaGroup:
        """The group of this name, a new one if there is none. Raises Refused."""
        group = self.groups.get(name)
        if group is not None:
            return group
        check_name(name)
        self.check_free(name)
        if self.runtime.stopped or len(self.groups) >= self.runtime.config.max_groups:
            raise Refused(Fault.COORDINATOR_NOT_AVAILABLE)
        group = KafkaGroup(self.rang, name, ClassicGroup(self.rules), self.runtime.clock.steady_ms())
        self.check_room(group.measure())
        self.groups[name] = group
        self.count(group)
        return group

    def check_room(self, size: int) -> None:
        """Raises Refused when `size` more bytes are more memory than groups and members may take."""
        if self._bytes + size > self._max_bytes:
            raise Refused(Fault.GROUP_MAX_SIZE_REACHED, "the groups take all the memory that they may")

    def count(self, group: KafkaGroup) -> None:
        size = group.measure()
        self._bytes += size - group.bytes
        group.bytes = size

    def forget(self, group: KafkaGroup) -> None:
        """Removes a group from memory and from the store. Not synced."""
        self.store.delete(group.name)
        self.drop(group)

    def drop(self, group: KafkaGroup) -> None:
        """Removes a group from memory."""
        group.gone = True
        for each in self.on_forget:
            each(group)
        self._bytes -= group.bytes
        del self.groups[group.name]


def check_name(name: str) -> None:
    """Raises Refused for what can't be a group's name."""
    if not 0 < len(name) <= LONGEST_GROUP:
        raise Refused(Fault.INVALID_GROUP_ID, f"a group's name has 1 to {LONGEST_GROUP} characters")
