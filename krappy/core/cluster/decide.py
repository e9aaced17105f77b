"""The controller's decisions: from the cluster's image to the operations to write.

Between two calls it remembers only since when a broker is gone (`Presence`). So a decision that was not written is made
again, by this controller or the next. A partition's operations are done together or not at all: a refusal concerns that
partition alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from krappy.core.cluster import paths, reassign
from krappy.core.cluster.demands import is_unclean, min_insync
from krappy.core.cluster.elections import successor
from krappy.core.cluster.image import NOTHING, Image, PartitionImage, TopicImage
from krappy.core.cluster.presence import Presence
from krappy.core.cluster.state import (
    NOBODY,
    PartitionState,
    elected,
    elected_uncleanly,
    first_state,
    normalise,
    unclean,
    without,
    write_state,
)
from krappy.core.cluster.tree import Changes, Create, Operation


def decide(
    image: Image, topics: Iterable[TopicImage], presence: Presence, given: Mapping[str, str] = NOTHING
) -> list[list[Operation]]:
    """The operations for each partition that needs some: first states of new partitions, elections for partitions whose
    leader is gone or was started again, shorter ISRs, another min.insync.replicas, and the next steps of reassignments.
    Topics of earlier versions get their identities. A restarted broker does not go on in its old epoch.

    `topics`: which topics of the image to look at. `given`: topics' settings that rank below all stored ones."""
    found: list[list[Operation]] = []
    for topic in topics:
        moving: list[int] = []
        if not topic.identified:
            found.append([Create(paths.identity(topic.name, topic.id))])
        for index, partition in enumerate(topic.partitions):
            if partition.version < 0:
                operations = _begin(image, topic, index, partition, presence, given)
            else:
                operations = _decide(image, topic, index, partition, presence, given)
            if operations:
                found.append(operations)
            elif reassign.is_moving(partition) and partition.version >= 0:
                moving.append(index)
        if moving:
            found += reassign.steps(image, topic, moving, presence, given)
    return found


def touched(image: Image, changes: Changes) -> Iterable[TopicImage]:
    """The topics that may need a decision after these changes: all, if a broker has come or gone."""
    if any(path.startswith(f"{paths.BROKERS}/") for path in changes):
        return image.topics.values()
    names = {path.split("/", 4)[3] for path in changes if path.startswith(f"{paths.TOPICS}/")}
    return [image.topics[name] for name in names if name in image.topics]


def _begin(
    image: Image,
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    presence: Presence,
    given: Mapping[str, str],
) -> list[Operation]:
    leader, isr = first_state(partition.replicas, presence.alive)
    if leader == NOBODY:
        return []
    state = PartitionState(leader, 0, image.brokers[leader].epoch, isr)
    least = min_insync(image, topic.name, partition, given)
    path = paths.partition(topic.name, index)
    made = Create(f"{path}/state", write_state(normalise(state, partition.replicas, least)))
    return [*topic.unless_deleted(), Create(path), made]


def _decide(
    image: Image,
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    presence: Presence,
    given: Mapping[str, str],
) -> list[Operation]:
    """Takes those who are gone out of the ISR, and elects a leader if there is none."""
    before, replicas = partition.state, partition.replicas
    led = before.leader != NOBODY and not presence.gone(before.leader, before.leader_inc)
    gone = [each for each in before.isr if presence.gone(each)]
    least = min_insync(image, topic.name, partition, given)
    after = normalise(without(before, gone), replicas, least)
    leader = image.brokers.get(before.leader)
    if led and leader is not None and leader.draining:
        after = _moved(image, after, replicas, presence)
    elif not led:
        chosen, after = elected(after, replicas, presence.alive)
        if chosen == NOBODY and is_unclean(image, topic.name, given):
            chosen = elected_uncleanly(after, replicas, presence.alive, partition.adding)
            if chosen != NOBODY:
                after = unclean(after, chosen)
        if chosen != NOBODY:
            epoch = image.brokers[chosen].epoch
            after = after._replace(leader=chosen, leader_epoch=before.leader_epoch + 1, leader_inc=epoch)
        elif before.leader != NOBODY:
            after = after._replace(leader=NOBODY, leader_epoch=before.leader_epoch + 1, leader_inc=-1)
        after = normalise(after, replicas, least)
    if after == before:
        return []
    fences = [check for each in {*gone, *([] if led else [before.leader])} for check in presence.fence(each)]
    put = topic.put_state(index, after)
    return [*fences, *put] if put else []


def _moved(image: Image, state: PartitionState, replicas: Sequence[int], presence: Presence) -> PartitionState:
    """The state after the leader, which is about to stop, has given its place to another replica in sync, if one can
    take it. The old leader stays in the ISR: so the new one commits nothing without it while it may hold a read lease.
    """
    to = successor(image, state, replicas, presence.alive)
    if to is None:
        return state
    return state._replace(leader=to, leader_epoch=state.leader_epoch + 1, leader_inc=image.brokers[to].epoch)
