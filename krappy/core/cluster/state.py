"""What the cluster knows of a partition: who leads it, in which epoch, and who is in sync (KIP-966 for the last two).

A replica in `isr` has all that was acknowledged, on its disk. One in `elr` had all when it left an ISR that was too
small to acknowledge anything more, so it has all still. `normalise` follows every change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from krappy.core.cluster.document import Document

NOBODY = -1


class PartitionState(NamedTuple):
    """As the znode `/brokers/topics/T/partitions/P/state` has it; `leader_inc`: the leader's broker epoch."""

    leader: int = NOBODY
    leader_epoch: int = 0
    leader_inc: int = -1
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    min_isr: int = 1
    controller_epoch: int = 0


def read_state(data: bytes) -> PartitionState:
    """Raises ValueError."""
    found = Document.of(data)
    return PartitionState(
        found.number("leader"),
        found.number("leader_epoch"),
        found.number("leader_inc", -1),
        found.numbers("isr"),
        found.numbers("elr"),
        found.numbers("last_known_elr"),
        found.number("min_isr", 1),
        found.number("controller_epoch", 0),
    )


def write_state(state: PartitionState, before: bytes | None = None) -> bytes:
    """`before`: what the znode has. Fields that this version does not know stay in it."""
    fields: dict[str, Any] = {"version": 1, **state._asdict()}
    return Document.of(before or b"{}").with_fields(fields)


def normalise(state: PartitionState, replicas: Sequence[int], min_insync: int) -> PartitionState:
    """After every change. `min_insync`: the setting min.insync.replicas."""
    min_isr = max(1, min(min_insync, len(replicas)))
    whole = len(state.isr) >= min_isr
    elr = () if whole else tuple(each for each in state.elr if each not in state.isr and each in replicas)
    return state._replace(min_isr=min_isr, elr=elr)


def first_state(replicas: Sequence[int], alive: Collection[int]) -> tuple[int, tuple[int, ...]]:
    """Of a new partition: its leader, and who is in sync, which all are who are there."""
    isr = tuple(each for each in replicas if each in alive)
    return (isr[0] if isr else NOBODY), isr


def elected(state: PartitionState, replicas: Sequence[int], alive: Collection[int]) -> tuple[int, tuple[int, ...]]:
    """Who leads now, and who is in sync then: the first replica that is there and in sync, else one of the ELR, alone.
    NOBODY: there is none that has all."""
    for isr in (state.isr, state.elr):
        for each in replicas:
            if each in isr and each in alive:
                return each, (state.isr if isr is state.isr else (each,))
    return NOBODY, state.isr
