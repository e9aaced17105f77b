"""The controller's decisions: from the cluster's image to the operations to write.

It keeps no state between two calls, so a decision that was not written is made again, by this controller or the next.
"""

from __future__ import annotations

from collections.abc import Iterable

from krappy.core.cluster import places
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.state import NOBODY, PartitionState, elected, first_state, normalise, write_state
from krappy.core.cluster.tree import Changes, Create, Operation, Put

MIN_INSYNC = 1


def decide(image: Image, topics: Iterable[TopicImage]) -> list[Operation]:
    """First states of new partitions, and elections for partitions whose leader is gone or was started again: a
    restarted broker does not go on in its old epoch. `topics`: which topics of the image to look at."""
    found: list[Operation] = []
    for topic in topics:
        for index, partition in enumerate(topic.partitions):
            if partition.version < 0:
                found += _begin(image, topic, index, partition)
            elif not _is_led(image, partition.state):
                found += _elect(image, topic, index, partition)
    return found


def touched(image: Image, changes: Changes) -> Iterable[TopicImage]:
    """The topics that may need a decision after these changes: all, if a broker has come or gone."""
    if any(path.startswith(f"{places.BROKERS}/") for path in changes):
        return image.topics.values()
    names = {path.split("/", 4)[3] for path in changes if path.startswith(f"{places.TOPICS}/")}
    return [image.topics[name] for name in names if name in image.topics]


def _is_led(image: Image, state: PartitionState) -> bool:
    leader = image.brokers.get(state.leader)
    return leader is not None and leader.epoch == state.leader_inc


def _begin(image: Image, topic: TopicImage, index: int, partition: PartitionImage) -> list[Operation]:
    leader, isr = first_state(partition.replicas, image.brokers)
    if leader == NOBODY:
        return []
    state = PartitionState(leader, 0, image.brokers[leader].epoch, isr)
    path = places.partition(topic.name, index)
    return [Create(path), Create(f"{path}/state", write_state(normalise(state, partition.replicas, MIN_INSYNC)))]


def _elect(image: Image, topic: TopicImage, index: int, partition: PartitionImage) -> list[Operation]:
    state = partition.state
    leader, isr = elected(state, partition.replicas, image.brokers)
    if leader == state.leader == NOBODY:
        return []
    epoch = -1 if leader == NOBODY else image.brokers[leader].epoch
    after = state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, leader_inc=epoch, isr=isr)
    data = write_state(normalise(after, partition.replicas, MIN_INSYNC))
    return [Put(places.state(topic.name, index), data, partition.version)]
