"""How a broker enters the cluster: the operations that it writes.

A broker whose disk may have lost events that others count on excludes itself before it enters, in this order: `bump`,
so that no leader adds it to an ISR for what it had before; `exclude`, so that it is a candidate for nothing; `enter`.
Excluding first would lose events: a leader that remembers the broker's earlier fetches would put it back. A broker that
has seen a later leader epoch than the tree has (`pass_epoch`) writes that before it enters, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from krappy.core.cluster import paths, znodes
from krappy.core.cluster.image import TopicImage
from krappy.core.cluster.state import NOBODY, excluded, normalise, write_state
from krappy.core.cluster.tree import Create, Operation, Put, Znode
from krappy.core.epochs import is_far


class Loss(Enum):
    """What a broker has lost of a replica that others may count on."""

    SOME = "some of the last events"
    ALL = "its whole log"


def bump(broker: int, registered: Znode | None) -> list[Operation]:
    """Raises the broker epoch. `registered`: as for `enter`."""
    path = paths.epoch(broker)
    return [Create(path, b"{}") if registered is None else Put(path, registered.data, registered.version)]


def in_use(broker: int, registered: Znode) -> dict[str, Any]:
    """What is told of another process that is registered with this broker id."""
    text = "another process is registered with this broker id; this one waits until that session has ended"
    where = ", ".join(f"{host}:{port}" for host, port in znodes.endpoints(registered.data).values())
    return {"broker": broker, "by": where, "text": text}


def exclude(topic: TopicImage, index: int, broker: int, *, emptied: bool = True) -> list[Operation]:
    """The operations that take the broker out of a partition's candidates; none if it is no candidate. `emptied`: its
    whole log is lost; else some of the last events may be."""
    partition = topic.partitions[index]
    state = partition.state
    known = broker in (*state.isr, *state.elr, state.leader)
    known |= emptied and broker in partition.replicas and broker not in state.emptied
    if partition.version < 0 or not known:
        return []
    after = normalise(excluded(state, broker, emptied=emptied), partition.replicas, state.min_isr)
    return topic.put_state(index, after)


def pass_epoch(topic: TopicImage, index: int, known: int) -> list[Operation]:
    """The operations that raise the leader epoch of a partition above `known`, an epoch that this broker has seen in
    it. None if the epoch is not below `known`, or so far below that `known` must be damaged.

    The epoch is below when ZooKeeper was given older data. A leader of an epoch that others have led in before would
    take their events for its own, and followers would cut off what they have of these."""
    partition = topic.partitions[index]
    state = partition.state
    if partition.version < 0 or state.leader_epoch >= known or is_far(known + 1, state.leader_epoch):
        return []
    return topic.put_state(index, state._replace(leader_epoch=known + 1))


def enter(
    broker: int,
    registered: Znode | None,
    endpoints: Mapping[str, tuple[str, int]],
    rack: str | None,
    session: int,
    directory: str = "",
    boot: str = "",
    start: str = "",
    now_ms: int | None = None,
    *,
    old_folder: bool = False,
) -> tuple[int, list[Operation]]:
    """(the broker epoch, what registers the broker in it). `registered`: its znode at `paths.epoch`, whose version is
    the broker epoch (KIP-380). `endpoints`: host and port by the listener's name. `directory`: the data folder's id.
    `boot`: the id of the machine's boot, which changes when its memory is lost. `start`: an id for this registration.
    `now_ms`: the time of day (ms since the epoch). `old_folder`: whether the folder is an old copy. Only people read
    these two."""
    path = paths.epoch(broker)
    epoch = 0 if registered is None else registered.version + 1
    home = znodes.home(directory, boot, start)
    write: Operation = Create(path, home) if registered is None else Put(path, home, registered.version)
    told = znodes.registration(epoch, endpoints, rack, directory, now_ms, old_folder=old_folder)
    return epoch, [write, Create(paths.broker(broker), told, session)]


def control(broker: int, epoch: int, controller_epoch: Znode | None, session: int) -> Iterator[Operation]:
    """The operations that make the broker the controller."""
    path = paths.CONTROLLER_EPOCH
    if controller_epoch is None:
        yield Create(path, b"1")
    else:
        yield Put(path, b"%d" % (controller_epoch.version + 2), controller_epoch.version)
    yield Create(paths.CONTROLLER, znodes.controller(broker, epoch), session)


def take_over(topic: TopicImage, znode: Znode, states: Mapping[int, Znode], broker: int) -> Iterator[Operation]:
    """The operations that make this broker the only replica of a topic. The topic was that of another broker id, whose
    data folder this broker has. `znode`: the topic's; `states`: its partitions' states, by index."""
    replicas = (broker,)
    data = znodes.topic(topic.id, [replicas] * len(topic.partitions), topic.generation, znode.data)
    yield Put(paths.topic(topic.name), data, znode.version)
    for index, state in states.items():
        after = topic.partitions[index].state._replace(leader=NOBODY, isr=replicas, elr=(), last_known_elr=())
        yield Put(paths.state(topic.name, index), write_state(after, state.data), state.version)
