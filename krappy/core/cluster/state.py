"""The cluster's state of a partition: its leader, the leader epoch, and which replicas are in sync (ISR and ELR,
KIP-966).

A replica in `isr` has all acknowledged events on its disk. One in `elr` had all of them when it left an ISR that was
too small to acknowledge more, so it still has them. One in `last_known_elr` was in either, and may have lost the last
events with its machine's memory; one in `emptied` has lost its log, and was not in sync since. These two tell only whom
an unclean election takes first, and last. `normalise` follows every change.

So a follower never has to cut off events that it knows to be committed, unless an election was unclean since. If it
should, ZooKeeper was given older data: claims.py has what becomes of that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from krappy.core.cluster.document import Document
from krappy.core.epochs import LAST

NOBODY = -1


class PartitionState(NamedTuple):
    """The content of the znode `/brokers/topics/T/partitions/P/state`. `leader_inc`: the leader's broker epoch.
    `unclean`: the leader epoch that the last unclean election began; -1: there was none. `claim`: (the
    leader epoch of its last committed event, the offset behind that) of who has taken the lead last because the leader
    lacked committed events; empty: nobody has since the last unclean election."""

    leader: int = NOBODY
    leader_epoch: int = 0
    leader_inc: int = -1
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    min_isr: int = 1
    controller_epoch: int = 0
    emptied: tuple[int, ...] = ()
    unclean: int = -1
    claim: tuple[int, ...] = ()


FIELDS = ("version", *PartitionState._fields)


def read_state(data: bytes) -> PartitionState:
    """Raises ValueError."""
    return state_of(Document.of(data))


def state_of(found: Document) -> PartitionState:
    """As `read_state`."""
    epoch = found.number("leader_epoch")
    if epoch > LAST:
        raise ValueError(f"{epoch} is not a leader epoch")
    return PartitionState(
        found.number("leader"),
        epoch,
        found.number("leader_inc", -1),
        found.numbers("isr"),
        found.numbers("elr"),
        found.numbers("last_known_elr"),
        found.number("min_isr", 1),
        found.number("controller_epoch", 0),
        found.numbers("emptied"),
        found.number("unclean", -1),
        found.numbers("claim"),
    )


def write_state(state: PartitionState, before: bytes | None = None) -> bytes:
    """The znode's new content. `before`: its content now; fields of it that this version does not know stay."""
    fields: dict[str, Any] = {"version": 1, **state._asdict()}
    return Document.of(before or b"{}").with_fields(fields)


def normalise(state: PartitionState, replicas: Sequence[int], min_insync: int) -> PartitionState:
    """The state with `min_isr` and `elr` set as they must be; to be called after every change. `min_insync`: the
    setting min.insync.replicas."""
    min_isr = max(1, min(min_insync, len(replicas)))
    outside = [each for each in replicas if each not in state.isr]
    elr, last_known = (
        tuple(each for each in known if each in outside and len(state.isr) < min_isr)
        for known in (state.elr, state.last_known_elr)
    )
    emptied = tuple(each for each in state.emptied if each in outside)
    return state._replace(min_isr=min_isr, elr=elr, last_known_elr=last_known, emptied=emptied)


def without(state: PartitionState, gone: Collection[int]) -> PartitionState:
    """The state after these brokers have left the ISR. They are in the ELR then: `normalise` empties it again if the
    ISR is still large enough to acknowledge events."""
    left = tuple(each for each in state.isr if each in gone)
    elr = (*state.elr, *(each for each in left if each not in state.elr))
    return state._replace(isr=tuple(each for each in state.isr if each not in gone), elr=elr)


def excluded(state: PartitionState, broker: int, *, emptied: bool) -> PartitionState:
    """The state for a broker that may have lost events of this partition: it is a candidate for nothing any more.
    `emptied`: its whole log is lost."""
    was = broker in (*state.isr, *state.elr, *state.last_known_elr)
    isr, elr, last_known, others = (
        tuple(each for each in known if each != broker)
        for known in (state.isr, state.elr, state.last_known_elr, state.emptied)
    )
    after = state._replace(
        isr=isr,
        elr=elr,
        last_known_elr=(*last_known, broker) if was and not emptied else last_known,
        emptied=(*others, broker) if emptied else state.emptied,
    )
    if state.leader != broker:
        return after
    return after._replace(leader=NOBODY, leader_inc=-1, leader_epoch=state.leader_epoch + 1)


def first_state(replicas: Sequence[int], alive: Collection[int]) -> tuple[int, tuple[int, ...]]:
    """(leader, ISR) of a new partition: all replicas that are alive are in sync; NOBODY leads if none is."""
    isr = tuple(each for each in replicas if each in alive)
    return (isr[0] if isr else NOBODY), isr


def elected(state: PartitionState, replicas: Sequence[int], alive: Collection[int]) -> tuple[int, PartitionState]:
    """(new leader, the state with its ISR): the first replica that is alive and in the ISR. If the ISR is empty, the
    first alive one of the ELR, which is alone in the ISR then. NOBODY: no replica can lead yet that has all events.

    As long as somebody is in the ISR, nobody else is elected, not even uncleanly. An earlier leader that lived when it
    was replaced is in the ISR until it is gone, and may hold a read lease until then (see `presence`). A leader from
    outside would leave it out, and commit without it."""
    for each in replicas:
        if each in (state.isr or state.elr) and each in alive:
            return each, (state if state.isr else state._replace(isr=(each,)))
    return NOBODY, state


def elected_uncleanly(
    state: PartitionState, replicas: Sequence[int], alive: Collection[int], adding: Collection[int] = ()
) -> int:
    """The new leader where `elected` finds none: an alive replica that may lack acknowledged events. One that was a
    candidate last comes first; one that has lost its log, or that a reassignment adds, comes last: it began with
    nothing. NOBODY: none is alive, or the ISR is not empty."""
    if state.isr:
        return NOBODY

    def order(replica: int) -> tuple[bool, bool]:
        return replica not in state.last_known_elr, replica in state.emptied or replica in adding

    return min((each for each in replicas if each in alive), key=order, default=NOBODY)


def unclean(state: PartitionState, leader: int) -> PartitionState:
    """The state once this broker was elected uncleanly: from the next leader epoch on its log is what counts."""
    return state._replace(isr=(leader,), elr=(), last_known_elr=(), unclean=state.leader_epoch + 1, claim=())
