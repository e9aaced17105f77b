"""What a broker does about a replica of its own whose log is in trouble, step by step, until it is whole again.

- Another replica in sync must lead first, and that leader must be registered: it has all that was acknowledged on its
  disk. So the last candidate stays one, however damaged it is: what it has is all there is.
- A damaged leader that is alone in the ISR gives the lead to a replica of the ELR. That one has all that was
  acknowledged, too; what the old leader has beyond it, nobody may be able to copy. The old leader stays in the ISR, as
  every leader does that is replaced while it lives. So nothing is acknowledged until it follows, and the strong reads
  that it still answers by its read lease miss nothing.
- No replica is made anew from a leader that is damaged, too: what the one lacks, the other may have. These two lead in
  turns, so that a third replica can copy from both.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from krappy.core.cluster.claims import Claim
from krappy.core.cluster.elections import led_by, moved, successor
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.isr import leave_isr
from krappy.core.cluster.state import NOBODY, PartitionState, excluded, normalise
from krappy.core.cluster.tree import Operation


class LogTrouble(StrEnum):
    REFUSES = "refuses"  # the disk refused a sync: what was acknowledged is on it, and nothing more is taken
    DAMAGED = "damaged"  # some of its events can't be read
    LOST = "lost"  # it may lack events that were acknowledged
    AHEAD = "ahead"  # it has committed events that its leader lacks


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
    whether a damaged replica stays in the ISR while the others are too few to acknowledge events without it: it has all
    that is new. `again`: whether a leader may give the lead to a replica that is in trouble, too.

    A replica that empties its log, or has lost events, leaves the candidates by the same write. The write begins a new
    leader epoch of the same leader: what the leader heard from the replica in the epoch before, or hears late, can't
    bring the replica back into the ISR."""
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


def take_over(
    image: Image, topic: TopicImage, index: int, broker: int, claim: Claim, seen: PartitionState
) -> list[Operation]:
    """The operations by which a broker takes the lead from a leader that lacks committed events (claims.py); none if it
    can't now. `seen`: the state in which it was found to lack them. Nobody is a candidate beside the broker: who was in
    sync with that leader may lack them, too. It does not wait for the leader's read lease: that leader's reads were
    stale before."""
    partition = topic.partitions[index]
    state = partition.state
    if (
        state != seen
        or state.leader in (broker, NOBODY)
        or broker not in partition.replicas
        or broker not in image.brokers
    ):
        return []
    epoch = max(state.leader_epoch, claim[0])  # a log's leader epochs never fall
    after = state._replace(isr=(broker,), elr=(), last_known_elr=(), claim=max(claim, state.claim), leader_epoch=epoch)
    return led_by(image, topic, index, after, broker)


def lead_anew(topic: TopicImage, index: int, broker: int) -> list[Operation]:
    """The operations by which a leader begins a new leader epoch; none if it does not lead. It is for a leader whose
    log takes no more events, when no other replica can lead. The leader must stop leading in the old epoch, and open
    its log anew: others may have fetched what was not synced, so these offsets must not be given again in that epoch.
    """
    state = topic.partitions[index].state
    if state.leader != broker:
        return []
    return topic.put_state(index, state._replace(leader_epoch=state.leader_epoch + 1))
