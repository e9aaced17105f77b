"""What people change in the cluster: who leads which partition, and where replicas are.

Any broker takes these requests. A reassignment is only begun by one; the controller takes its steps, and
`/cluster/state` tells how far it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from krappy.console.api import Call, Routes
from krappy.console.events import Partition
from krappy.console.topics import MOST_PARTITIONS, Name
from krappy.core.cluster.balance import ProposedMove, propose
from krappy.core.cluster.image import Image, PartitionImage
from krappy.core.cluster.reassign import is_moving
from krappy.core.cluster.replica_set import FollowerLag
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import InvalidRequest, KrappyError, UnknownPartition, after_steps
from krappy.ports import TopicPort
from krappy.types import TopicPartition

routes = Routes("cluster")
MOST_MOVES = 1000  # of one request
MOST_REPLICAS = 100  # of one partition
BrokerId = Annotated[int, Meta(ge=0, lt=2**31)]


class NewElection(msgspec.Struct, forbid_unknown_fields=True):
    """Without `unclean` the preferred leaders are elected: the first replicas. With it, partitions that have no leader
    get one that may lack acknowledged events: then those events are lost."""

    topic: Name
    partitions: Annotated[list[Partition], Meta(max_length=MOST_PARTITIONS, description="default: all")] | None = None
    unclean: bool = False


class ElectionRow(msgspec.Struct):
    """`result`: elected; not needed: it has the leader that is to lead it; not available: the replica that is to lead
    is not in sync, or away; or why it failed. `why`: which replica is not available, and what to do."""

    topic: str
    partition: int
    result: str
    why: str | None = None


class Elections(msgspec.Struct):
    elections: list[ElectionRow]


class WantedReplicas(msgspec.Struct, forbid_unknown_fields=True):
    """`replicas`: the brokers that are to have the partition, the first to lead it; null cancels its reassignment."""

    topic: Name
    partition: Partition
    replicas: Annotated[list[BrokerId], Meta(min_length=1, max_length=MOST_REPLICAS)] | None


class WantedMoves(msgspec.Struct, forbid_unknown_fields=True):
    moves: Annotated[list[WantedReplicas], Meta(max_length=MOST_MOVES)]


class Begun(msgspec.Struct):
    """`idle`: how many of the partitions whose reassignment was to be cancelled had none."""

    begun: int
    idle: int


class Reassignment(msgspec.Struct):
    """A partition that is being reassigned. `lags`: by each broker that copies it, how many events it lacks; null if
    its leader does not tell."""

    topic: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]
    lags: dict[str, int | None]


class Reassignments(msgspec.Struct):
    reassignments: list[Reassignment]


class MoveShown(msgspec.Struct):
    """`copies`: the brokers that have to copy the partition; none if only the order of its replicas changes."""

    topic: str
    partition: int
    before: list[int]
    after: list[int]
    copies: list[int]


class BrokerBalance(msgspec.Struct):
    """How many replicas a broker has, and of how many partitions it is preferred to lead, before and after the
    moves."""

    id: int
    rack: str | None
    alive: bool
    replicas_before: int
    replicas_after: int
    preferred_before: int
    preferred_after: int


class BalanceProposal(msgspec.Struct):
    """`moving`: how many partitions are being reassigned; those stay out of it."""

    brokers: list[BrokerBalance]
    moves: list[MoveShown]
    moving: int


class BalanceQuery(msgspec.Struct, forbid_unknown_fields=True):
    without: Annotated[list[BrokerId], Meta(description="brokers that are to have no replicas any more")] = []


@routes.post(
    "/cluster/elections",
    needs=needs.cluster(Op.ALTER) + needs.topic(Op.DESCRIBE),
    summary="Elect the preferred leaders of a topic, or leaders that may lack events",
)
async def elect_leaders(call: Call, body: NewElection) -> Elections:
    topic, moves = call.access.topic(body.topic, Op.DESCRIBE), call.access.moves(Op.ALTER)
    indexes = range(topic.count) if body.partitions is None else list(dict.fromkeys(body.partitions))
    _check_partitions(topic, indexes)

    found = []
    for index in indexes:
        try:
            none = await moves.elect(topic.name, index, unclean=body.unclean)
            result = "elected" if none is None else "not available" if none.needed else "not needed"
            why = none.why if none is not None and none.needed else None
        except KrappyError as error:
            result, why = error.text, None
        found.append(ElectionRow(topic.name, index, result, why))
        await call.pause()
    return Elections(found)


@routes.post(
    "/cluster/reassignments",
    needs=needs.cluster(Op.ALTER) + needs.topic(Op.DESCRIBE),
    summary="Begin to move replicas to other brokers, or cancel that",
)
async def reassign(call: Call, body: WantedMoves) -> Begun:
    moves, known = call.access.moves(Op.ALTER), call.broker.image.brokers
    wanted: dict[str, dict[int, list[int] | None]] = {}
    for each in body.moves:
        topic = call.access.topic(each.topic, Op.DESCRIBE)
        _check_partitions(topic, [each.partition])
        if each.partition in wanted.setdefault(each.topic, {}):
            raise InvalidRequest(f"{each.topic}-{each.partition} is named twice")
        if each.replicas is not None:
            _check_replicas(each.replicas, {*known, *topic.image.partitions[each.partition].replicas})
        wanted[each.topic][each.partition] = each.replicas
        await call.pause()
    idle = 0
    for before, (name, partitions) in enumerate(wanted.items()):
        with after_steps(f"the moves of {before} of {len(wanted)} topics were begun" if before else ""):
            idle += len(await moves.reassign(name, partitions))
    return Begun(len(body.moves) - idle, idle)


def _check_partitions(topic: TopicPort, indexes: Collection[int]) -> None:
    wrong = next((index for index in indexes if index >= topic.count), None)
    if wrong is not None:
        raise UnknownPartition(f"'{topic.name}' has partitions 0 to {topic.count - 1}, not {wrong}")


def _check_replicas(replicas: list[int], known: Collection[int]) -> None:
    if len(set(replicas)) < len(replicas):
        raise InvalidRequest(f"the replicas {replicas} name a broker twice", field="replicas")
    unknown = next((id for id in replicas if id not in known), None)
    if unknown is not None:
        raise InvalidRequest(f"there is no broker {unknown}; there are {sorted(known)}", field="replicas")


@routes.get(
    "/cluster/reassignments",
    needs=needs.cluster(Op.DESCRIBE) + needs.topic(Op.DESCRIBE),
    summary="The partitions that are being reassigned, and how far they are",
)
async def reassignments(call: Call) -> Reassignments:
    call.access.cluster(Op.DESCRIBE)
    moving: dict[TopicPartition, PartitionImage] = {}
    for name in call.access.topics(Op.DESCRIBE).keys() & call.broker.image.topics.keys():
        partitions = enumerate(call.broker.image.topics[name].partitions)
        moving |= {TopicPartition(name, index): each for index, each in partitions if is_moving(each)}
        await call.pause()
    led: dict[int, list[TopicPartition]] = {}
    for at, each in moving.items():
        led.setdefault(each.state.leader, []).append(at)
    lags = await call.lookout.lags(led)
    return Reassignments([_reassignment(at, each, lags.get(at, {})) for at, each in moving.items()])


def _reassignment(at: TopicPartition, partition: PartitionImage, lags: Mapping[int, FollowerLag]) -> Reassignment:
    copying = {str(id): lags[id].lag if id in lags else None for id in partition.adding}
    replicas, adding, removing = (list(each) for each in (partition.replicas, partition.adding, partition.removing))
    return Reassignment(at.topic, at.partition, replicas, adding, removing, copying)


@routes.get(
    "/cluster/balance",
    needs=needs.cluster(Op.DESCRIBE) + needs.topic(Op.DESCRIBE),
    summary="Moves that would give brokers as many replicas as each other, and partitions several racks",
)
async def balance(call: Call, query: BalanceQuery) -> BalanceProposal:
    """Nothing is moved: give the moves to `/cluster/reassignments`. Topics that may not be described do not count."""
    call.access.cluster(Op.DESCRIBE)
    image, there = call.broker.image, call.access.topics(Op.DESCRIBE)
    moves = [each for each in await trio.to_thread.run_sync(propose, image, query.without) if each.topic in there]
    changes = {(each.topic, each.partition): each.after for each in moves}
    held, preferred = Counter[int](), Counter[int]()
    held_after, preferred_after = Counter[int](), Counter[int]()
    moving = 0
    for topic in image.topics.values():
        for index, each in enumerate(topic.partitions) if topic.name in there else ():
            after = changes.get((topic.name, index), each.replicas)
            held.update(each.replicas)
            preferred[each.replicas[0]] += 1
            held_after.update(after)
            preferred_after[after[0]] += 1
            moving += is_moving(each)
        await call.pause()
    ids = sorted({*image.brokers, *held, *held_after})
    counts = (held, held_after, preferred, preferred_after)
    return BalanceProposal([_broker(image, id, *counts) for id in ids], [_shown(each) for each in moves], moving)


def _broker(image: Image, id: int, *counts: Mapping[int, int]) -> BrokerBalance:
    found = image.brokers.get(id)
    return BrokerBalance(
        id, None if found is None else found.rack, found is not None, *(each.get(id, 0) for each in counts)
    )


def _shown(move: ProposedMove) -> MoveShown:
    return MoveShown(move.topic, move.partition, list(move.before), list(move.after), list(move.copies))
