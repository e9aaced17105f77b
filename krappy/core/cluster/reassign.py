"""Reassignments: other brokers become the replicas of a partition, without a moment in which too few have its events
(KIP-455).

During a reassignment the `replicas` of a partition are the replicas from before it and the wanted ones. `adding` are
the replicas that were not there before, `removing` the ones that are not wanted; a replica may be both, after a change
of mind. A cancellation is a reassignment to the replicas from before. The controller takes these steps, each one write:

1. New replicas copy the log. Nothing is done until all wanted new ones are in the ISR, and enough wanted ones.
2. A leader that has to go hands over to a wanted replica in the ISR, and stays in the ISR itself.
3. After the grace period, in which the read leases of earlier leaders end, the others leave `replicas`, the ISR and the
   ELR together, in a new leader epoch: the leader forgets what it knew of their logs, which they delete now.

Only step 3 takes replicas away. It demands that the topic's znode and the state's are as they were seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from krappy.core.cluster.demands import min_insync
from krappy.core.cluster.elections import moved
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.presence import Presence
from krappy.core.cluster.state import NOBODY, normalise
from krappy.core.cluster.tree import Operation

TOGETHER = 50  # partitions of a topic whose reassignments end in one write


def is_moving(partition: PartitionImage) -> bool:
    """Whether it is being reassigned."""
    return bool(partition.adding or partition.removing)


def wanted(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas after the reassignment, in their order; without one, as they are."""
    return tuple(each for each in partition.replicas if each not in partition.removing)


def original(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas before the reassignment; without one, as they are."""
    return tuple(each for each in partition.replicas if each not in partition.adding)


def reassigned(partition: PartitionImage, to: Sequence[int]) -> PartitionImage:
    """The partition once its reassignment to these brokers has begun. If they are its replicas already, in whatever
    order, the reassignment is done at once."""
    before = original(partition)
    replicas = (*to, *(each for each in partition.replicas if each not in to))
    adding = tuple(each for each in replicas if each not in before)
    removing = tuple(each for each in replicas if each not in to)
    return partition._replace(replicas=replicas, adding=adding, removing=removing)


def steps(
    image: Image, topic: TopicImage, indexes: Iterable[int], presence: Presence, given: Mapping[str, str]
) -> list[list[Operation]]:
    """The operations that bring the reassignments of these partitions one step on. Reassignments that end together are
    one write, because they change the same znode."""
    found: list[list[Operation]] = []
    ended: dict[int, PartitionImage] = {}
    for index in indexes:
        partition = topic.partitions[index]
        if _is_ready(image, topic, partition, given):
            if partition.state.leader in wanted(partition):
                if len(ended) < TOGETHER and presence.has_reigned((topic.id, index), partition.state.leader_epoch):
                    ended[index] = _ended(image, topic, partition, given)
            else:
                leader = next(
                    (each for each in wanted(partition) if _may_lead(image, partition, each, presence)), NOBODY
                )
                if leader != NOBODY:
                    found.append(moved(image, topic, index, leader))
    if ended:
        after = [ended.get(index, each) for index, each in enumerate(topic.partitions)]
        states = (operation for index, each in ended.items() for operation in topic.put_state(index, each.state))
        found.append([topic.put_replicas(after), *states])
    return found


def _may_lead(image: Image, partition: PartitionImage, replica: int, presence: Presence) -> bool:
    in_sync = replica in partition.state.isr and replica in presence.alive
    return in_sync and not image.brokers[replica].draining


def _is_ready(image: Image, topic: TopicImage, partition: PartitionImage, given: Mapping[str, str]) -> bool:
    """Whether those who are wanted have all events, so that the others may go."""
    after = wanted(partition)
    isr = {each for each in partition.state.isr if each in after}
    new = {each for each in partition.adding if each in after}
    least = min_insync(image, topic.name, PartitionImage(after), given)
    return partition.state.leader != NOBODY and new <= isr and len(isr) >= max(1, least)


def _ended(image: Image, topic: TopicImage, partition: PartitionImage, given: Mapping[str, str]) -> PartitionImage:
    after, state = wanted(partition), partition.state
    isr = tuple(each for each in state.isr if each in after)
    least = min_insync(image, topic.name, PartitionImage(after), given)
    state = normalise(state._replace(isr=isr, leader_epoch=state.leader_epoch + 1), after, least)
    return partition._replace(replicas=after, state=state, adding=(), removing=())
