"""The registry of Kafka groups: their names, the memory that they take, and the topics that their members may read.

The groups that one user had made are at most as many as are left for all others: half, if there is no other. They, and
the members that joined for him, take at most as much memory as is left. So nobody keeps out others' members, not even
through a group that they share. A member that joins again needs room only for what it brings more than before.

Requests of members are served by the coordinator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import trio

from krappy.broker.kafka_groups.group import EACH_GROUP, KafkaGroup
from krappy.broker.kafka_groups.settings import GroupSettings
from krappy.broker.latest.table_topic import table_topic
from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.classic_member import Rules, taken
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern import KnownTopic
from krappy.core.kafka.name_regex import TopicRegex, in_use, topic_regex
from krappy.core.kafka.share import ShareGroup
from krappy.core.owned_memory import OwnedMemory
from krappy.ports import GroupFacts
from krappy.ports.audit import whose

if TYPE_CHECKING:
    from krappy.broker.groups.distant import DistantPartitions
    from krappy.broker.groups.keeping import GroupStorage
    from krappy.broker.groups.share_keepers import ShareKeepers
    from krappy.broker.groups.share_partitions import SharePartitions
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
    @property
    def shares(self) -> SharePartitions: ...
    @property
    def storage(self) -> GroupStorage: ...
    @property
    def keepers(self) -> ShareKeepers: ...
    @property
    def distant(self) -> DistantPartitions: ...


class GroupRegistry:
    """`groups`: all but share groups, by name; `shares`: these. `on_forget`: called with each group that is about to be
    forgotten."""

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
        self.shares: dict[str, KafkaGroup] = {}
        self.rules = Rules(config.group_initial_rebalance_delay_ms, config.group_max_members)
        self.settings = GroupSettings(runtime, self.any, settings)
        self.closed = False  # nothing is written any more
        self.on_forget: list[Callable[[KafkaGroup], None]] = []
        self._internal = internal
        self._latest = latest
        self._topics: dict[str, KnownTopic] | None = None  # made when they are asked for
        self._special: set[str] = set()
        self._memory = OwnedMemory(config.memory_bytes // MEMORY_SHARE, fair=config.authorizes)
        self._number = OwnedMemory(config.max_groups, fair=config.authorizes)

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
        topics = {topic.name: KnownTopic(topic.id, topic.count, shared=False) for topic in self._internal.listed()}
        for name, topic in self.runtime.topics.items():
            topics[name] = KnownTopic(topic.id, topic.count, shared=not topic.internal)
        for name in sorted(self._special):
            table = table_topic(self.runtime.topics, self._latest, name, {}, self.runtime.config.latest_alias)
            if table is None:
                self._special.discard(name)
            else:
                topics[name] = KnownTopic(table.id, table.count, shared=False)
        return topics

    def learn_special(self, names: Iterable[str]) -> None:
        fresh = {name for name in names if name not in self._special and self.runtime.topics.table_of(name)}
        if fresh and len(self._special) + len(fresh) <= MAX_SPECIAL:
            self._special |= fresh
            self.forget_topics()

    # --- which group

    def get(self, name: str) -> KafkaGroup | None:
        return self.groups.get(name)

    def any(self, name: str) -> KafkaGroup | None:
        """The group of this name, of any kind."""
        return self.groups.get(name) or self.shares.get(name)

    def add(self, group: KafkaGroup) -> None:
        """Adds a group."""
        self._among(group)[group.name] = group
        self._number.charge(group.owner, 1)
        self._charge(group, group.measure())

    def _among(self, group: KafkaGroup) -> dict[str, KafkaGroup]:
        return self.shares if isinstance(group.membership, ShareGroup) else self.groups

    def find(self, name: str, other_kind: Fault = Fault.GROUP_ID_NOT_FOUND) -> KafkaGroup:
        """Raises Refused: GROUP_ID_NOT_FOUND, or `other_kind` for the name of a native or a share group."""
        group = self.groups.get(name)
        if group is None:
            self.check_free(name, other_kind)
            raise Refused(Fault.GROUP_ID_NOT_FOUND, f"there is no group '{name:.249}'")
        return group

    def check_free(self, name: str, fault: Fault = Fault.INCONSISTENT_GROUP_PROTOCOL) -> None:
        """Raises Refused when the name is a native group's, or a share group's."""
        if name in self.shares:
            raise Refused(fault, f"'{name:.249}' is a share group")
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
        return self._made(name, ClassicGroup(self.rules))

    def check_share(self, name: str) -> None:
        """Raises Refused unless it is a share group, or may become one."""
        check_name(name)
        if name not in self.shares:
            self.check_free(name, Fault.GROUP_ID_NOT_FOUND)
            if name in self.groups:
                raise Refused(Fault.GROUP_ID_NOT_FOUND, f"Group {name:.249} is not a share group.")
            self._check_more(name)

    def make_share(self, name: str) -> KafkaGroup:
        """A new share group of this name. Raises Refused."""
        self.check_share(name)
        return self._made(name, ShareGroup(self.settings.rules(name, ShareGroup.kind)))

    def _made(self, name: str, membership: ClassicGroup | ShareGroup) -> KafkaGroup:
        self._check_more(name)
        group = KafkaGroup(self.rang, name, membership, self.runtime.clock.steady_ms())
        group.owner = whose()
        self.add(group)
        return group

    def _check_more(self, name: str) -> None:
        """Raises Refused when one more group, of this name, is too many."""
        if self.runtime.stopped or not self._number.has_room(whose(), 1):
            raise Refused(Fault.COORDINATOR_NOT_AVAILABLE)
        self.check_room(EACH_GROUP + taken(name))

    def check_room(self, size: int, name: str = "", member_id: str = "") -> None:
        """Raises Refused when `size` bytes are more memory than groups and members may take, or those of the user who
        asks now. `name`, `member_id`: the group and the member that is to have them, in place of what it has."""
        group = self.any(name)
        more = size - (0 if group is None else group.memory_of(member_id))
        if not self._memory.has_room(whose(), more):
            raise Refused(Fault.GROUP_MAX_SIZE_REACHED, "the groups take all the memory that they may")

    def check_pattern(self, pattern: str) -> TopicRegex | None:
        """Raises Refused when patterns take the memory that groups leave, or when this one is new and takes more of it
        than the user who asks now may. Keep what it gives until a member has it. None: it can't be used."""
        try:
            regex = topic_regex(pattern)
        except Refused:
            return None  # its group says so, when it has looked at the rest
        room = OwnedMemory(self._memory.most - self._memory.total, fair=self._memory.fair)
        if regex.owner is None:
            for each in in_use():
                if each is not regex:
                    room.charge(each.owner or "", each.size)
            full = not room.has_room(whose(), regex.size)
        else:
            full = sum(each.size for each in in_use()) > room.most
        if full:
            raise Refused(Fault.GROUP_MAX_SIZE_REACHED, "patterns for names take all the memory that they may")
        if regex.owner is None:
            regex.owner = whose()
        return regex

    def count(self, group: KafkaGroup) -> None:
        """Counts what it takes now. A member that has come counts as the user's who asks now."""
        self._charge(group, group.measure(whose()))

    @staticmethod
    def own(group: KafkaGroup, member_id: str) -> None:
        """Called when a member joins: from now on, if it is known, it counts as the user's who asks now."""
        if member_id in group.owners:
            group.owners[member_id] = whose()

    def _charge(self, group: KafkaGroup, held: Counter[str]) -> None:
        before, group.held = group.held, held
        for owner in before.keys() | held.keys():
            self._memory.charge(owner, held[owner] - before[owner])

    def forget(self, group: KafkaGroup) -> None:
        """Removes a group from memory and from the store. Not synced."""
        self.store.delete(group.name)
        self.drop(group)

    def drop(self, group: KafkaGroup) -> None:
        """Removes a group from memory."""
        group.gone = True
        for each in self.on_forget:
            each(group)
        self._charge(group, Counter())
        self._number.charge(group.owner, -1)
        del self._among(group)[group.name]


def check_name(name: str) -> None:
    """Raises Refused for what can't be a group's name."""
    if not 0 < len(name) <= LONGEST_GROUP:
        raise Refused(Fault.INVALID_GROUP_ID, f"a group's name has 1 to {LONGEST_GROUP} characters")
