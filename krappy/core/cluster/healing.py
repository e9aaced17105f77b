"""What a broker does about a replica of its own whose log is in trouble, step by step, until it is whole again.

Another replica in sync must lead first, and that leader be there: all that was acknowledged is on its disk. So the last
candidate leaves nothing, however damaged it is: what it has is all there is. A damaged leader that is alone in the ISR
gives the lead to one of the ELR, which has all that was acknowledged, too; what the leader has beyond may be what
nobody can copy. It stays in the ISR, as every leader that lives does when another one takes its place: until it
follows, nothing is acknowledged, so that it does not answer strong reads by its lease meanwhile. And nobody is made
anew from a leader that is damaged, too: what the one lacks, the other may have. Such two lead in turns, so that a third
one can copy from both."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from krappy.core.cluster.elections import led_by, moved, successor
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.isr import leave_isr
from krappy.core.cluster.state import PartitionState, excluded, normalise
from krappy.core.cluster.tree import Operation


class LogTrouble(StrEnum):
    REFUSES = "refuses"  # the disk refused a sync: what was acknowledged is on it, and nothing more is taken
    DAMAGED = "damaged"  # some of its events can't be read
    LOST = "lost"  # it may lack events that were acknowledged


class Deed(StrEnum):
    HAND_OVER = "hand over"  # the lead, to another replica in sync
    LEAVE = "leave"  # the candidates
    BEGIN_ANEW = "begin anew"  # it may be emptied once the write is done


class Step(NamedTuple):
    deed: Deed
    operations: list[Operation]


def next_step(
    image: Image,
    topic: TopicImage,
    index: int,
    broker: int,
    trouble: LogTrouble,
    *,
    empties: bool,
    waits: bool,
    again: bool = True,
) -> Step | None:
    """What is to be written next; None: nothing now. `empties`: whether the replica may be copied anew now. `waits`:
    whether a damaged one stays in sync where the others are too few to acknowledge events: it has all that is new.
    `again`: whether it may give the lead to one that is in trouble, too.

    Whoever empties its log, or has lost events, is out of the candidates by the same write. It begins a new leader
    epoch of the same leader: what that heard from the replica in the epoch before, or hears late, can't bring it back
    into the ISR."""
    partition = topic.partitions[index]
    state = partition.state
    if partition.version < 0:
        return None
    if trouble is LogTrouble.LOST and broker in (*state.isr, *state.elr, state.leader):
        return Step(Deed.LEAVE, topic.put_state(index, _out(partition, broker, emptied=False)))
    if state.leader == broker:
        whole = [each for each in image.brokers if not image.trouble(each, topic.name, index)]
        to = successor(image, state, partition.replicas, whole)
        if to is None and again:
            to = successor(image, state, partition.replicas, image.brokers)
        if to is not None:
            return Step(Deed.HAND_OVER, moved(image, topic, index, to))
        if again and trouble is LogTrouble.DAMAGED and state.isr == (broker,):
            to = next((each for each in state.elr if each in image.brokers and not image.brokers[each].draining), None)
            if to is not None:
                return Step(Deed.HAND_OVER, led_by(image, topic, index, state._replace(isr=(broker, to)), to))
        return None
    leader = image.brokers.get(state.leader)
    if leader is None or leader.epoch != state.leader_inc or broker not in partition.replicas:
        return None
    if trouble is LogTrouble.REFUSES:
        operations = leave_isr(topic, index, broker)
        return Step(Deed.LEAVE, operations) if operations else None
    if waits and broker in state.isr and len(state.isr) <= state.min_isr:
        return None
    if trouble is LogTrouble.DAMAGED and image.trouble(state.leader, topic.name, index) == LogTrouble.DAMAGED:
        return None
    if empties and broker not in partition.removing:
        return Step(Deed.BEGIN_ANEW, topic.put_state(index, _out(partition, broker, emptied=True)))
    if broker not in (*state.isr, *state.elr):
        return None
    after = normalise(excluded(state, broker, emptied=False), partition.replicas, state.min_isr)
    return Step(Deed.LEAVE, topic.put_state(index, after))


def _out(partition: PartitionImage, broker: int, *, emptied: bool) -> PartitionState:
    """The state without this candidate, in a new leader epoch."""
    after = excluded(partition.state, broker, emptied=emptied)
    after = normalise(after, partition.replicas, after.min_isr)
    return after._replace(leader_epoch=partition.state.leader_epoch + 1)


def lead_anew(topic: TopicImage, index: int, broker: int) -> list[Operation]:
    """What lets a leader whose log takes no more events, and for whom no other can lead, begin a new leader epoch;
    nothing if it does not lead. It must stop leading in the old one, and open its log anew: others may have fetched
    what was not synced, so these offsets must not be given again in the same epoch."""
    state = topic.partitions[index].state
    if state.leader != broker:
        return []
    return topic.put_state(index, state._replace(leader_epoch=state.leader_epoch + 1))
