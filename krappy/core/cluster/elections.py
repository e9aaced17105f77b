"""Elections that no leader's end demands: those of preferred leaders, and those by hand (KIP-183, KIP-460).

The preferred leader of a partition is the first of its replicas. A leader that lives is replaced by another replica in
the ISR, and stays in the ISR itself: it may hold a read lease, and nothing may be committed without it until that ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from krappy.core.cluster import paths
from krappy.core.cluster.image import Image, TopicImage
from krappy.core.cluster.state import NOBODY, PartitionState, elected, elected_uncleanly, normalise, unclean
from krappy.core.cluster.tree import Check, Operation


class NotElected(NamedTuple):
    """Why an election that was asked for does not take place. `needed`: False if the preferred replica leads already;
    for an unclean election, False if there is a leader. Else `why` says which replica can't lead now, and what to do.
    """

    needed: bool
    why: str = ""


NOT_NEEDED = NotElected(needed=False)
NEW = NotElected(needed=True, why="it is new, and has no leader yet: ask again in a moment")


def successor(image: Image, state: PartitionState, replicas: Iterable[int], alive: Collection[int]) -> int | None:
    """Who takes over from a leader that gives up the lead: the first other replica in sync that is alive and not about
    to stop. None: nobody can."""
    others = (each for each in replicas if each in state.isr and each != state.leader)
    return next((each for each in others if each in alive and not image.brokers[each].draining), None)


def moved(image: Image, topic: TopicImage, index: int, to: int) -> list[Operation]:
    """The operations that make a broker of the ISR the leader, if it is registered as the image has it."""
    return led_by(image, topic, index, topic.partitions[index].state, to)


def led_by(image: Image, topic: TopicImage, index: int, state: PartitionState, leader: int) -> list[Operation]:
    """The operations that write the state with this leader, in a new leader epoch, if the leader is registered as the
    image has it."""
    epoch = image.brokers[leader].epoch
    after = state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, leader_inc=epoch)
    after = normalise(after, topic.partitions[index].replicas, state.min_isr)
    return [Check(paths.epoch(leader), epoch), *topic.put_state(index, after)]


def prefer(image: Image, topic: TopicImage, index: int, alive: Collection[int]) -> list[Operation] | NotElected:
    """The operations that make the preferred replica of a partition the leader."""
    partition = topic.partitions[index]
    preferred = partition.replicas[0]
    if partition.state.leader == preferred:
        return NOT_NEEDED
    if partition.version < 0:
        return NEW
    if preferred not in alive:
        advice = f"start it, or give its replicas to others (krappy cluster balance --without {preferred})"
        return NotElected(needed=True, why=f"broker {preferred}, which is to lead it, is away: {advice}")
    if preferred not in partition.state.isr:
        advice = "ask again once it has copied what it lacks (krappy cluster shows its lag)"
        return NotElected(needed=True, why=f"broker {preferred}, which is to lead it, is not in sync: {advice}")
    return moved(image, topic, index, preferred)


def elect_uncleanly(
    image: Image, topic: TopicImage, index: int, alive: Collection[int]
) -> list[Operation] | NotElected:
    """The operations that give a leader to a partition without one: a replica that lacks no acknowledged event if such
    a one is alive, else one that may lack some. Nobody can be elected while the ISR has members and none of them is
    alive (see `elected`)."""
    partition = topic.partitions[index]
    state = partition.state
    if state.leader != NOBODY:
        return NOT_NEEDED
    leader, after = elected(state, partition.replicas, alive)
    if leader != NOBODY:
        return led_by(image, topic, index, after, leader)
    leader = elected_uncleanly(state, partition.replicas, alive, partition.adding)
    if partition.version < 0:
        return NEW
    if leader == NOBODY and state.isr:
        advice = "start one of them, or ask again in some seconds, when they are known to be gone"
        return NotElected(needed=True, why=f"its replicas in sync ({_named(state.isr)}) are away: {advice}")
    if leader == NOBODY:
        return NotElected(
            needed=True, why=f"all its replicas ({_named(partition.replicas)}) are away: start one of them"
        )
    return led_by(image, topic, index, unclean(state, leader), leader)


def _named(brokers: Iterable[int]) -> str:
    return ", ".join(f"broker {each}" for each in brokers)


def rebalance(image: Image, alive: Collection[int], percentage: int) -> list[list[Operation]]:
    """The operations that let brokers lead the partitions that prefer them: each alive broker that leads less than
    (100 - `percentage`) % of these and is not draining. Partitions that are being reassigned wait."""
    preferring: dict[int, list[tuple[TopicImage, int]]] = {}
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            preferring.setdefault(partition.replicas[0], []).append((topic, index))
    found: list[list[Operation]] = []
    for broker, partitions in preferring.items():
        led_elsewhere = [each for each in partitions if each[0].partitions[each[1]].state.leader != broker]
        if len(led_elsewhere) * 100 > len(partitions) * percentage:
            found += _preferred(image, led_elsewhere, alive)
    return found


def _preferred(
    image: Image, partitions: Iterable[tuple[TopicImage, int]], alive: Collection[int]
) -> Iterable[list[Operation]]:
    for topic, index in partitions:
        partition = topic.partitions[index]
        if partition.state.leader != NOBODY and not partition.adding and not partition.removing:
            operations = prefer(image, topic, index, alive)
            if not isinstance(operations, NotElected) and not image.brokers[partition.replicas[0]].draining:
                yield operations
