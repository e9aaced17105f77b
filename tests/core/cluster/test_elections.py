"""Nobody is elected from outside the ISR while a member of the ISR may hold the read lease of an earlier leader. And
whom an unclean election takes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from krappy.core.cluster import paths
from krappy.core.cluster.decide import decide
from krappy.core.cluster.demands import UNCLEAN
from krappy.core.cluster.elections import NotElected, elect_uncleanly, prefer
from krappy.core.cluster.image import Image, PartitionImage, Registration, TopicImage
from krappy.core.cluster.presence import GRACE_MS, SILENCE_MS, Presence
from krappy.core.cluster.state import NOBODY, PartitionState, read_state
from krappy.core.cluster.tree import Create, Operation, Put

# 3 led before 1, and was alive when it was replaced.
LED = PartitionState(leader=1, leader_epoch=6, leader_inc=1, isr=(3, 1), elr=(), min_isr=1)
GONE_MS = 10_000.0  # when the controller sees that 3 is not registered any more


class Watched:
    """What a controller decides about one partition of replicas 1, 2 and 3."""

    def __init__(self, state: PartitionState, *, unclean: bool, min_insync: int) -> None:
        self.presence = Presence()
        settings = {UNCLEAN: "true" if unclean else "false", "min.insync.replicas": str(min_insync)}
        self.configs = {paths.TOPIC_CONFIG: {"t": settings}}
        self.partition = PartitionImage((1, 2, 3), state, 0)
        self._renewals = 0
        self._now = 0.0

    @property
    def topic(self) -> TopicImage:
        return TopicImage("t", bytes(16), (self.partition,), identified=True)

    def image(self, *registered: int) -> Image:
        brokers = {id: Registration(id, 1, {}) for id in registered}
        return Image(brokers, topics={"t": self.topic}, configs=self.configs)

    def look(self, now: float, registered: tuple[int, ...], silent: tuple[int, ...] = ()) -> PartitionState:
        """The state after the controller has looked at this time, and has written what it decided."""
        image = self.image(*registered)
        self._now = now
        self._renewals += 1
        leases = {each: 0 if each in silent else self._renewals for each in registered}
        self.presence.look(image, leases, now)
        for operations in decide(image, [self.topic], self.presence):
            self.written(operations)
        return self.partition.state

    def written(self, operations: list[Operation]) -> None:
        put = operations[-1]
        assert isinstance(put, Put)
        self.partition = self.partition._replace(state=read_state(put.data), version=self.partition.version + 1)

    def until(self, end: float, registered: tuple[int, ...], silent: tuple[int, ...] = ()) -> PartitionState:
        """The state after the controller has looked every 100 ms until this time."""
        while self._now < end:
            found = self.look(min(self._now + 100, end), registered, silent)
        return found


@pytest.mark.parametrize(
    ("unclean", "before", "elected"),
    [
        (True, LED, (2, (2,), ())),
        (False, LED._replace(isr=(3, 1), elr=(2,), min_isr=3), (2, (2,), (1, 3))),
    ],
)
def test_who_was_replaced_while_it_lived_is_gone_before_another_from_outside_leads(
    unclean: bool, before: PartitionState, elected: tuple[int, tuple[int, ...], tuple[int, ...]]
) -> None:
    """The leader is silent. The leader before it has just lost its session with ZooKeeper, and may not know that."""
    watched = Watched(before, unclean=unclean, min_insync=before.min_isr)
    watched.look(GONE_MS - SILENCE_MS - 100, (1, 2, 3))
    watched.until(GONE_MS - 100, (1, 2, 3), silent=(1,))
    assert watched.partition.state == before
    found = watched.until(GONE_MS + GRACE_MS - 1, (1, 2), silent=(1,))
    assert (found.leader, found.isr) == (NOBODY, (3,))
    none = elect_uncleanly(watched.image(1, 2), watched.topic, 0, {2})
    assert isinstance(none, NotElected)
    assert none.needed
    assert none.why.startswith("its replicas in sync (broker 3) are away: ")
    found = watched.look(GONE_MS + GRACE_MS, (1, 2), silent=(1,))
    assert (found.leader, found.isr, tuple(sorted(found.elr))) == elected


def test_by_hand_one_is_elected_uncleanly_once_the_isr_is_empty() -> None:
    watched = Watched(PartitionState(NOBODY, 7, isr=(), elr=(1, 3), min_isr=1), unclean=False, min_insync=1)
    operations = elect_uncleanly(watched.image(2), watched.topic, 0, {2})
    assert not isinstance(operations, NotElected)
    watched.written(operations)
    assert (watched.partition.state.leader, watched.partition.state.isr) == (2, (2,))


@pytest.mark.parametrize(
    ("state", "alive", "why"),
    [
        (PartitionState(2, 7, isr=(2, 3)), (2, 3), "broker 1, which is to lead it, is away: start it"),
        (PartitionState(2, 7, isr=(2, 3)), (1, 2, 3), "broker 1, which is to lead it, is not in sync: "),
        (PartitionState(1, 7, isr=(1, 2)), (1, 2, 3), None),
    ],
    ids=["away", "not in sync", "not needed"],
)
def test_who_is_not_available_as_the_preferred_leader_is_told(
    state: PartitionState, alive: tuple[int, ...], why: str | None
) -> None:
    watched = Watched(state, unclean=False, min_insync=1)
    none = prefer(watched.image(*alive), watched.topic, 0, alive)
    assert isinstance(none, NotElected)
    assert none.needed == (why is not None)
    assert none.why.startswith(why or "")


def test_replicas_that_are_all_away_are_told() -> None:
    watched = Watched(PartitionState(NOBODY, 7, isr=(), elr=(1, 3), min_isr=1), unclean=False, min_insync=1)
    none = elect_uncleanly(watched.image(), watched.topic, 0, ())
    assert none == NotElected(
        needed=True, why="all its replicas (broker 1, broker 2, broker 3) are away: start one of them"
    )


def test_one_of_the_isr_leads_as_soon_as_it_is_alive() -> None:
    watched = Watched(PartitionState(NOBODY, 7, isr=(3,), elr=(1,), min_isr=2), unclean=True, min_insync=2)
    watched.look(0, (1, 2, 3))
    watched.look(100, (1, 2))
    assert watched.look(200, (1, 2)).leader == NOBODY
    watched.look(300, (1, 2, 3))
    assert watched.look(400, (1, 2, 3)).leader == 3


@pytest.mark.parametrize(
    ("state", "alive", "elected"),
    [
        (PartitionState(emptied=(1,)), {1, 3}, 3),
        (PartitionState(last_known_elr=(3,)), {2, 3}, 3),
        (PartitionState(), {1, 4}, 1),
        (PartitionState(), {4}, 4),
        (PartitionState(last_known_elr=(4,)), {1, 4}, 4),  # 4 was in sync already
    ],
)
def test_whom_an_unclean_election_takes(state: PartitionState, alive: set[int], elected: int) -> None:
    """A reassignment adds 4, which began with an empty log."""
    topic = TopicImage("t", bytes(16), (PartitionImage((4, 1, 2, 3), state, 0, adding=(4,)),), identified=True)
    configs = {paths.TOPIC_CONFIG: {"t": {UNCLEAN: "true"}}}
    image = Image({id: Registration(id, 1, {}) for id in alive}, topics={"t": topic}, configs=configs)
    presence = Presence(silence_ms=math.inf)
    presence.look(image, {}, 0)
    by_hand = elect_uncleanly(image, topic, 0, alive)
    assert not isinstance(by_hand, NotElected)
    for *_, put in (by_hand, *decide(image, [topic], presence)):
        assert isinstance(put, Put)
        after = read_state(put.data)
        assert (after.leader, after.isr) == (elected, (elected,))


def test_a_topic_of_an_earlier_version_is_identified() -> None:
    state = PartitionState(1, 3, 1, (1,), min_isr=1)
    topic = TopicImage("t", b"i" * 16, (PartitionImage((1,), state, 0),))
    image = Image({1: Registration(1, 1, {})}, topics={"t": topic})
    presence = Presence(silence_ms=math.inf)
    presence.look(image, {}, 0)
    assert decide(image, [topic], presence) == [[Create(paths.identity("t", b"i" * 16))]]
    assert decide(image, [replace(topic, identified=True)], presence) == []
