"""What has changed in the cluster from one image to the next, for people who look on: brokers that came or went,
another controller, elections, ISRs, topics.

Images show some moments of the tree, not all. So of two changes in quick succession only the second may be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from krappy.core.cluster.healing import LogTrouble
from krappy.core.cluster.image import Image, PartitionImage, Registration, TopicImage
from krappy.core.cluster.state import NOBODY, PartitionState


class ChangeKind(StrEnum):
    BROKER_CAME = "broker_came"
    BROKER_LEFT = "broker_left"
    BROKER_RESTARTED = "broker_restarted"  # registered anew, in another broker epoch
    CONTROLLER = "controller"
    LEADER = "leader"  # elected, or there is none any more: the leader epoch is another one
    ISR = "isr"
    REPLICA_SPOILED = "replica_spoiled"  # its log is damaged, has lost events or takes no more
    REPLICA_BEGINS_ANEW = "replica_begins_anew"
    REPLICA_WHOLE = "replica_whole"
    LOG_REOPENED = "log_reopened"
    TOPIC_CREATED = "topic_created"
    TOPIC_DELETED = "topic_deleted"


class ClusterChange(NamedTuple):
    """One change. `text`: the change in a sentence. `broker`: who came, went, became the controller or the leader, or
    has the replica; None: nobody. `before`, `after`: the ISRs."""

    kind: ChangeKind
    text: str
    broker: int | None = None
    topic: str | None = None
    partition: int | None = None
    leader_epoch: int | None = None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def shrinks(self) -> bool:
        return self.kind is ChangeKind.ISR and not set(self.before) <= set(self.after)

    @property
    def expands(self) -> bool:
        return self.kind is ChangeKind.ISR and not set(self.after) <= set(self.before)


def changes_between(before: Image, after: Image) -> Iterator[ClusterChange]:
    """The changes, in this order: brokers, the controller, topics and their partitions."""
    yield from _of_brokers(before, after)
    if after.controller != before.controller:
        told = "no broker is" if after.controller is None else f"broker {after.controller} is"
        yield ClusterChange(ChangeKind.CONTROLLER, f"{told} the controller", after.controller)
    if after.brokers is not before.brokers:
        yield from _of_spoiled(before, after)
    if after.topics is before.topics:
        return
    for name, topic in before.topics.items():
        if name not in after.topics or after.topics[name].id != topic.id:
            yield ClusterChange(ChangeKind.TOPIC_DELETED, f"the topic {name} was deleted", topic=name)
    for name, topic in after.topics.items():
        known = before.topics.get(name)
        if known is None or known.id != topic.id:
            spread = f"{len(topic.partitions)} partitions, {len(topic.partitions[0].replicas)} replicas of each"
            yield ClusterChange(ChangeKind.TOPIC_CREATED, f"the topic {name} was created: {spread}", topic=name)
            known = None
        if known is not topic:
            yield from _of_partitions(known, topic)


def _of_brokers(before: Image, after: Image) -> Iterator[ClusterChange]:
    if after.brokers is before.brokers:
        return
    for id in sorted(before.brokers.keys() - after.brokers.keys()):
        yield ClusterChange(ChangeKind.BROKER_LEFT, f"broker {id} is gone", id)
    for id, found in sorted(after.brokers.items()):
        known = before.brokers.get(id)
        if known is None:
            yield ClusterChange(
                ChangeKind.BROKER_CAME, f"broker {id} is there, in its epoch {found.epoch}{_folder(found)}", id
            )
        elif known.epoch != found.epoch:
            text = f"broker {id} was started again, in its epoch {found.epoch}{_folder(found)}"
            yield ClusterChange(ChangeKind.BROKER_RESTARTED, text, id)


def _folder(found: Registration) -> str:
    return ", with an old folder" if found.old_folder else ""


def _of_spoiled(before: Image, after: Image) -> Iterator[ClusterChange]:
    for id, found in sorted(after.brokers.items()):
        known = before.brokers.get(id)
        was = known.spoiled if known is not None and known.epoch == found.epoch else {}
        for name in sorted(was.keys() | found.spoiled.keys()):
            topic, _, index = name.rpartition("-")
            trouble, there = found.spoiled.get(name), after.topics.get(topic)
            if there is None or not index.isdecimal() or int(index) >= len(there.partitions):
                continue
            state = there.partitions[int(index)].state
            place = topic, int(index), state, id
            if trouble is not None and trouble != was.get(name):
                ahead = "has committed events that its leader lacks"
                text = ahead if trouble == LogTrouble.AHEAD else f"is spoiled ({trouble})"
                yield _of_replica(ChangeKind.REPLICA_SPOILED, *place, text)
            elif trouble is None and was[name] == LogTrouble.REFUSES and id not in state.emptied:
                yield _of_replica(ChangeKind.LOG_REOPENED, *place, "takes events again")


def _of_replica(
    kind: ChangeKind, topic: str, index: int, state: PartitionState, broker: int, text: str
) -> ClusterChange:
    text = f"{topic}-{index}: the replica of broker {broker} {text}"
    return ClusterChange(kind, text, broker, topic, index, state.leader_epoch)


def _of_partitions(before: TopicImage | None, after: TopicImage) -> Iterator[ClusterChange]:
    known: Sequence[PartitionImage] = () if before is None else before.partitions
    for index, partition in enumerate(after.partitions):
        was = known[index] if index < len(known) else PartitionImage(partition.replicas)
        if was is not partition and partition.version >= 0:
            yield from _of_partition(after.name, index, was, partition)


def _of_partition(topic: str, index: int, was: PartitionImage, now: PartitionImage) -> Iterator[ClusterChange]:
    old, new, name = was.state, now.state, f"{topic}-{index}"
    place = (topic, index, new.leader_epoch)
    if was.version < 0 or (old.leader, old.leader_epoch) != (new.leader, new.leader_epoch):
        instead = f" instead of {old.leader}" if old.leader not in (NOBODY, new.leader) else ""
        told = "nobody leads it" if new.leader == NOBODY else f"broker {new.leader} leads it{instead}"
        text = f"{name}: {told}, in epoch {new.leader_epoch}"
        yield ClusterChange(ChangeKind.LEADER, text, None if new.leader == NOBODY else new.leader, *place)
    if was.version >= 0 and set(old.isr) != set(new.isr):
        came, left = (
            [each for each in new.isr if each not in old.isr],
            [each for each in old.isr if each not in new.isr],
        )
        told = "; ".join(
            f"broker{'s' * (len(some) > 1)} {', '.join(map(str, some))} {did}"
            for some, did in ((came, "came back"), (left, "left"))
            if some
        )
        text = f"{name}: in sync are {', '.join(map(str, new.isr)) or 'none'} ({told})"
        yield ClusterChange(ChangeKind.ISR, text, None, *place, old.isr, new.isr)
    for id in now.replicas if was.version >= 0 else ():
        if id in new.emptied and id not in old.emptied:
            yield _of_replica(ChangeKind.REPLICA_BEGINS_ANEW, topic, index, new, id, "begins anew")
        elif id in old.emptied and id in new.isr:
            yield _of_replica(ChangeKind.REPLICA_WHOLE, topic, index, new, id, "is whole")


class NotedChange(NamedTuple):
    """A change as a broker has seen it: its number at that broker, when (ms since the epoch), and what."""

    number: int
    at_ms: int
    change: ClusterChange
