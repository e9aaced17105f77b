"""Random lives of a KIP-848 group, with clients that own what they are told, until they say that they do not.

Checked at every step: no partition is with two clients that are alive and in the group. Checked at the end, after a few
heartbeats of everybody: each partition is with exactly one client that subscribes to it, and the group is stable.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from krappy.core.kafka.assignors import Partition
from krappy.core.kafka.faults import Refused
from krappy.core.kafka.modern import KnownTopic, ModernGroup, ModernRules
from krappy.core.kafka.modern_member import AWAY, LEAVING, Beat

SESSION = 10_000
TOPICS = st.sets(st.sampled_from("tuv"), min_size=1).map(lambda names: tuple(sorted(names)))
WHO = st.integers(0, 4)


@dataclass
class Client:
    id: str
    topics: tuple[str, ...]
    instance: str | None
    epoch: int = 0
    owned: frozenset[Partition] = field(default_factory=frozenset)
    told: frozenset[Partition] | None = None  # what it is to have once it has given up the rest
    last: int = 0  # when its last heartbeat was


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.group = ModernGroup(ModernRules(SESSION, 10))
        self.sizes = {"t": 4, "u": 3}
        self.topics = self._topics()
        self.clients: dict[int, Client] = {}
        self.count = 0

    def _topics(self) -> dict[str, KnownTopic]:
        return {name: KnownTopic(name.encode() * 16, size) for name, size in self.sizes.items()}

    # --- what may happen

    @rule(who=WHO, topics=TOPICS, static=st.booleans())
    def start(self, who: int, topics: tuple[str, ...], static: bool) -> None:
        if who not in self.clients:
            self.count += 1
            self.clients[who] = Client(f"m{self.count}", topics, f"i{who}" if static else None)
            self._beat(who)

    @rule(who=WHO)
    def beat(self, who: int) -> None:
        self._beat(who)

    @rule(who=WHO)
    def revoke(self, who: int) -> None:
        """The client's program gives up what it is to give up."""
        client = self.clients.get(who)
        if client is not None and client.told is not None:
            client.owned &= client.told

    @rule(who=WHO)
    def lose_an_answer(self, who: int) -> None:
        if who in self.clients:
            self._beat(who, lost=True)

    @rule(who=WHO, topics=TOPICS)
    def subscribe(self, who: int, topics: tuple[str, ...]) -> None:
        if who in self.clients:
            self.clients[who].topics = topics
            self._beat(who)

    @rule(who=WHO)
    def die(self, who: int) -> None:
        self.clients.pop(who, None)

    @rule(who=WHO, for_good=st.booleans())
    def leave(self, who: int, for_good: bool) -> None:
        client = self.clients.pop(who, None)
        if client is not None and client.epoch > 0:
            epoch = LEAVING if for_good or client.instance is None else AWAY
            try:
                self.group.beat(self.now, Beat(client.id, epoch, client.instance), self.topics)
            except Refused:
                assert client.id not in self.group.members

    @rule(size=st.integers(1, 6), name=st.sampled_from("tuv"))
    def change_topics(self, name: str, size: int) -> None:
        self.sizes[name] = max(size, self.sizes.get(name, 0))
        self.topics = self._topics()

    @rule(ms=st.sampled_from([100, 4000, SESSION]))
    def time(self, ms: int) -> None:
        """Time passes. Clients whose session is over own nothing any more: they know the time, too."""
        self.now += ms
        for client in self.clients.values():
            if self.now - client.last >= SESSION:
                client.owned, client.told, client.epoch = frozenset(), None, 0
        if self.group.wake is not None and self.group.wake <= self.now:
            self.group.tick(self.now)

    @rule()
    def restart(self) -> None:
        members = [member.dump() for member in self.group.members.values()]
        self.group = ModernGroup.load(self.group.dump(), members, self.group.rules, self.now)
        for client in self.clients.values():
            client.last = max(client.last, self.now if client.id in self.group.members else 0)

    # --- how clients act

    def _beat(self, who: int, *, lost: bool = False) -> None:
        client = self.clients.get(who)
        if client is None:
            return
        joins = client.epoch == 0
        beat = Beat(
            client.id,
            client.epoch,
            client.instance,
            rebalance_ms=5 * SESSION,
            topics=client.topics,
            owned=frozenset() if joins else client.owned,
        )
        try:
            beaten = self.group.beat(self.now, beat, self.topics)
        except Refused:
            client.owned, client.told, client.epoch = frozenset(), None, 0
            return
        client.last = self.now
        if lost:
            return
        client.epoch = beaten.epoch
        if beaten.assignment is not None:
            client.told = beaten.assignment
        if client.told is not None and client.owned <= client.told:  # nothing to give up: it takes what is new
            client.owned = client.told

    # --- what holds

    @invariant()
    def no_partition_is_with_two(self) -> None:
        holders = [p for client in self.clients.values() if client.id in self.group.members for p in client.owned]
        assert len(holders) == len(set(holders))

    def teardown(self) -> None:
        self.now += 1
        for _ in range(12):
            for who, client in self.clients.items():
                self._beat(who)
                if client.told is not None:
                    client.owned &= client.told
            self.time(1000)
        for _ in range(2 * SESSION // 1000):  # clients that left without a word are out by now
            for who, client in self.clients.items():
                self._beat(who)
                if client.told is not None:
                    client.owned &= client.told
            self.time(1000)
        wanted = {name for client in self.clients.values() for name in client.topics if name in self.sizes}
        expected = sorted((name.encode() * 16, at) for name in wanted for at in range(self.sizes[name]))
        assert sorted(p for client in self.clients.values() for p in client.owned) == expected
        for client in self.clients.values():
            assert {chr(topic[0]) for topic, _ in client.owned} <= {*client.topics}
        assert self.group.state == ("Stable" if self.clients else "Empty")


Lives.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
