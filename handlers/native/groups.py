"""Native groups: the messages of members (`consume` passes on their registrations and polls) and administration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar, cast

from krappy.core.security import needs
from krappy.core.security.operations import Grant, Op, Resource
from krappy.errors import AuthorizationFailed, CoordinatorNotAvailable, InvalidRequest, KrappyError, UnknownHandle
from krappy.handlers.handles import Membership
from krappy.handlers.native.starts import check_start
from krappy.handlers.registry import serves
from krappy.handlers.waits import bounded_ms
from krappy.ports import AccessPort, GroupFacts, MemberPort, Ranges, SessionPort
from krappy.ports.audit import asked_for
from krappy.types import dead_letter_topic, text_id
from krappy.waiting import Later
from krappy.wire import messages

A = TypeVar("A", bound=messages.Answer)
FEW = 250  # rows of an answer that are made, or topics that are looked at, in one turn
MANY = 2000  # ranges of a request; more are settled in several turns


def _member(session: SessionPort, handle: int) -> MemberPort:
    """Raises UnknownHandle; NotCoordinator when another broker coordinates the group by now."""
    member = session.find(handle, Membership).member
    member.check()
    return member


async def register_member(session: SessionPort, request: messages.ConsumerRegistration) -> messages.ConsumerRegistered:
    if request.group is None or request.partitions is not None or request.positions is not None:
        raise InvalidRequest(
            "members of a group share all partitions: leave out `partitions` and `positions`", field="partitions"
        )
    access = session.access
    coordinator = access.group(request.group, Op.READ)
    topics = dict.fromkeys(request.topics)
    dead_letters = dict.fromkeys(dead_letter_topic(each, request.group, request.dead_letter) for each in topics)
    for name in dead_letters:
        _check_dead_letters(access, name)
    member = await coordinator.join(
        request.group,
        session.client,
        request.topics,
        start=request.start,
        start_at=request.start_at,
        order=request.order,
        lease_ms=request.lease_ms,
        max_deliveries=request.max_deliveries,
        dead_letter=request.dead_letter,
    )
    member.pay(session.payer)
    try:
        ids = [(name, text_id(access.topic(name, Op.READ).id)) for name in topics]
        positions = [each for each in coordinator.positions(request.group) if each[0] in topics]
        ends = coordinator.ends(request.group, topics)
    except KrappyError:
        member.close()  # a topic or the group was deleted meanwhile
        raise
    grants = [Grant(Resource.GROUP, request.group, Op.READ)]
    grants += [Grant(Resource.TOPIC, name, Op.READ) for name in topics]
    grants += [Grant(Resource.TOPIC, name, Op.WRITE) for name in dead_letters]
    handle = session.add(Membership(member), grants)
    return messages.ConsumerRegistered(
        handle=handle, member=member.name, positions=positions, ends=ends, topic_ids=ids, takes_epochs=True
    )


def _check_dead_letters(access: AccessPort, topic: str) -> None:
    """The broker makes this topic, and writes there, in the name of the member. Raises AuthorizationFailed."""
    try:
        if access.find_topic(topic, Op.WRITE) is None:
            access.check(Resource.TOPIC, topic, Op.CREATE)
    except AuthorizationFailed as error:
        raise type(error)(f"{error}, where the group's dead letters go") from None


def poll(session: SessionPort, request: messages.Poll) -> messages.Polled | Coroutine[Any, Any, messages.Polled]:
    member = _member(session, request.handle)
    if session.ready:
        polled = member.poll_now(request.max_records, min(request.max_bytes, session.read_bytes))
        if polled is not None and (polled.leases or not request.max_wait):
            return messages.Polled(*polled)
    return _poll_later(session, member, request)


async def _poll_later(session: SessionPort, member: MemberPort, request: messages.Poll) -> messages.Polled:
    # `revoked` looks at the rights, and closes the member if they are gone.
    async def again() -> None:
        await session.affordable()
        session.revoked(request.handle)

    room = min(request.max_bytes, session.read_bytes)
    async with session.reading(room):
        await session.writable()
        session.revoked(request.handle)
        polled = await member.poll(request.max_records, room)
    if not polled.leases and request.max_wait:
        polled = await member.poll(request.max_records, room, bounded_ms(request.max_wait), again)
    session.revoked(request.handle)
    if member.closed:  # its leases were given back
        if session.broker.stopped or session.closed:  # which closes members, too: then the poll brings no events
            return messages.Polled([], [])
        raise ended(session, request.handle)
    return messages.Polled(*polled)


def ended(session: SessionPort, handle: int) -> KrappyError:
    """The error of a poll whose consumer was unregistered while the poll waited, or may not read any more."""
    return session.revoked(handle) or UnknownHandle(
        f"handle {handle} was unregistered while a poll waited for events", handle=handle
    )


@serves(messages.Ack, needs=needs.group(Op.READ))
def ack(session: SessionPort, request: messages.Ack) -> Later[messages.Acked] | Coroutine[Any, Any, messages.Acked]:
    member = _member(session, request.handle)
    epochs = request.epochs
    if epochs is not None and len(epochs) != len(request.ranges):
        raise InvalidRequest(f"{len(epochs)} epochs of {len(request.ranges)} ranges", field="epochs")
    ranges: Ranges = request.ranges
    if epochs is not None:
        ranges = [(*each, epoch) for each, epoch in zip(request.ranges, epochs, strict=True)]
    if len(ranges) > MANY:
        return _in_parts(session, member, ranges, member.ack, messages.Acked())
    return member.ack(ranges).map(lambda _: messages.Acked())


@serves(messages.Nack, needs=needs.group(Op.READ))
def nack(session: SessionPort, request: messages.Nack) -> messages.Nacked | Coroutine[Any, Any, messages.Nacked]:
    member = _member(session, request.handle)
    if len(request.ranges) > MANY:
        settle = partial(member.nack, delay_ms=request.delay_ms)
        return _in_parts(session, member, request.ranges, settle, messages.Nacked())
    member.nack(request.ranges, request.delay_ms)
    return messages.Nacked()


@serves(messages.Extend, needs=needs.group(Op.READ))
def extend(
    session: SessionPort, request: messages.Extend
) -> messages.Extended | Coroutine[Any, Any, messages.Extended]:
    member = _member(session, request.handle)
    if len(request.ranges) > MANY:
        settle = partial(member.extend, lease_ms=request.lease_ms)
        return _in_parts(session, member, request.ranges, settle, messages.Extended())
    member.extend(request.ranges, request.lease_ms)
    return messages.Extended()


async def _in_parts(
    session: SessionPort,
    member: MemberPort,
    ranges: Ranges,
    settle: Callable[[Ranges], Later[None] | None],
    answer: A,
) -> A:
    await member.in_parts(ranges, settle, session.pause)
    return answer


def uncount(session: SessionPort, request: messages.Unregister) -> Callable[[], Awaitable[None]] | None:
    """Tells the group which events a leaving member has not looked at. Returns None when that is done, else a function
    that does it in several turns. Raises UnknownHandle when the handle is not a member's."""
    if session.revoked(request.handle) is not None:
        return None
    member = session.find(request.handle, Membership).member
    ranges = member.unseen(request.unseen or (), request.polls)
    settle = partial(member.uncount, polls=None)
    if len(ranges) > MANY:
        return partial(member.in_parts, ranges, settle, session.pause)
    settle(ranges)
    return None


@serves(messages.Commit, needs=needs.group(Op.READ) + needs.topic(Op.READ))
async def commit(session: SessionPort, request: messages.Commit) -> messages.Committed:
    access = session.access
    access.check(Resource.GROUP, request.group, Op.READ)
    for number, topic in enumerate({topic for topic, _, _ in request.offsets}, 1):
        access.check(Resource.TOPIC, topic, Op.READ)
        if number % FEW == 0:
            await session.pause()
    await access.group(request.group, Op.READ).commit(request.group, request.offsets)
    return messages.Committed()


@serves(messages.Positions, needs=needs.group(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
def positions(session: SessionPort, request: messages.Positions) -> messages.PositionsFound:
    access = session.access
    found = access.group(request.group, Op.DESCRIBE).positions(request.group)
    return messages.PositionsFound([each for each in found if access.may(Resource.TOPIC, each[0], Op.DESCRIBE)])


@serves(messages.Groups, needs=needs.group(Op.DESCRIBE))
async def groups(session: SessionPort, request: messages.Groups) -> messages.GroupsFound:
    """One group, or all of them, in several turns. Raises CoordinatorNotAvailable while some would be left out."""
    if request.group is not None:
        return _found([session.access.describe_group(request.group)])
    epoch = session.access.groups_epoch()
    told: list[GroupFacts] = []
    rows = 0
    for each in session.access.each_group(Op.DESCRIBE, request.only):
        told.append(each)
        rows += 1 + len(each["partitions"])
        if rows >= FEW:
            rows = 0
            await session.pause()
    if session.access.groups_epoch() != epoch:
        raise CoordinatorNotAvailable("other brokers coordinate some groups since the list was begun; ask again")
    return _found(sorted(told, key=lambda each: each["group"]), epoch)


def _found(told: list[GroupFacts], epoch: int | None = None) -> messages.GroupsFound:
    return messages.GroupsFound(cast(list[dict[str, Any]], told), epoch)


@serves(messages.DeleteGroup, needs=needs.group(Op.DELETE))
async def delete_group(session: SessionPort, request: messages.DeleteGroup) -> messages.GroupDeleted:
    await session.access.group(request.group, Op.DELETE).delete(request.group)
    return messages.GroupDeleted()


@serves(messages.ResetGroup, needs=needs.group(Op.READ) + needs.topic(Op.READ))
async def reset_group(session: SessionPort, request: messages.ResetGroup) -> messages.GroupReset:
    check_start(request.start, request.start_at)
    coordinator = session.access.group(request.group, Op.READ)
    if request.topic is not None:
        session.access.check(Resource.TOPIC, request.topic, Op.READ)
    else:
        topics = {topic for topic, _, _ in coordinator.positions(request.group)}
        session.access.check_topics(topics, Op.READ, "the group")
    with nullcontext() if request.owner is None or not session.is_broker else asked_for(request.owner):
        moved = await coordinator.reset(
            request.group,
            request.topic,
            request.partitions,
            request.start,
            request.start_at,
            dry_run=request.dry_run,
        )
    return messages.GroupReset(moved)
