"""Shared groups: a member's messages (its registration and polls come in by `consume`), and their administration."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from krappy.errors import InvalidRequest, KrappyError, UnknownHandle
from krappy.handlers.native.starts import check_start
from krappy.handlers.waits import bounded_ms
from krappy.ports import LaterPort, MemberPort, SessionPort
from krappy.wire import messages

FEW = 250  # rows of an answer that are made in one go


def _member(session: SessionPort, handle: int) -> MemberPort:
    found = session.find(handle, object)
    if not hasattr(found, "ack"):
        raise UnknownHandle(f"handle {handle} is no member of a group", handle=handle)
    return found  # type: ignore[return-value]


async def register_member(session: SessionPort, request: messages.ConsumerRegistration) -> messages.ConsumerRegistered:
    if request.group is None or request.partitions is not None or request.positions is not None:
        raise InvalidRequest("members of a group share all partitions: name none", field="partitions")
    broker = session.broker
    member = await broker.groups.join(
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
    try:
        topics = set(request.topics)
        positions = [each for each in broker.groups.positions(request.group) if each[0] in topics]
        ends = [(topic, at, broker.topic(topic).partition(at).last_stable_offset) for topic, at, _ in positions]
    except KrappyError:
        member.close()  # a topic or the group went away just now
        raise
    return messages.ConsumerRegistered(handle=session.add(member), member=member.name, positions=positions, ends=ends)


def poll(session: SessionPort, request: messages.Poll) -> messages.Polled | Coroutine[Any, Any, messages.Polled]:
    member = _member(session, request.handle)
    if session.ready:
        polled = member.poll_now(request.max_records, min(request.max_bytes, session.answer_bytes))
        if polled is not None and (polled.leases or not request.max_wait):
            return messages.Polled(polled.parts, polled.leases)
    return _poll_later(session, member, request)


async def _poll_later(session: SessionPort, member: MemberPort, request: messages.Poll) -> messages.Polled:
    await session.writable()
    room = min(request.max_bytes, session.answer_bytes)
    polled = await member.poll(request.max_records, room, bounded_ms(request.max_wait))
    if member.closed:  # whatever was leased has been given back
        if session.broker.stopped:  # which ends registrations too, and the poll with no events
            return messages.Polled([], [])
        raise ended(request.handle)
    return messages.Polled(polled.parts, polled.leases)


def ended(handle: int) -> UnknownHandle:
    """What a poll is answered that waited while its consumer was unregistered."""
    return UnknownHandle(f"handle {handle} was unregistered while a poll waited for events", handle=handle)


def ack(session: SessionPort, request: messages.Ack) -> LaterPort:
    later = _member(session, request.handle).ack(request.ranges)
    return later.map(lambda _: messages.Acked())  # type: ignore[no-any-return]


def nack(session: SessionPort, request: messages.Nack) -> messages.Nacked:
    _member(session, request.handle).nack(request.ranges, request.delay_ms)
    return messages.Nacked()


def extend(session: SessionPort, request: messages.Extend) -> messages.Extended:
    _member(session, request.handle).extend(request.ranges, request.lease_ms)
    return messages.Extended()


def uncount(session: SessionPort, request: messages.Unregister) -> None:
    """A member that leaves tells what it has not looked at. Raises UnknownHandle for any other registration."""
    _member(session, request.handle).uncount(request.unseen or (), request.polls)


async def commit(session: SessionPort, request: messages.Commit) -> messages.Committed:
    await session.broker.groups.commit(request.group, request.offsets)
    return messages.Committed()


def positions(session: SessionPort, request: messages.Positions) -> messages.PositionsFound:
    return messages.PositionsFound(session.broker.groups.positions(request.group))


async def groups(session: SessionPort, request: messages.Groups) -> messages.GroupsFound:
    """Others have their turn while all are told of."""
    found = session.broker.groups
    if request.group is not None:
        return messages.GroupsFound([found.describe(request.group)])
    told = []
    rows = 0
    for each in found.each_group():
        told.append(each)
        rows += 1 + len(each["partitions"])
        if rows >= FEW:
            rows = 0
            await session.pause()
    return messages.GroupsFound(sorted(told, key=lambda each: str(each["group"])))


async def delete_group(session: SessionPort, request: messages.DeleteGroup) -> messages.GroupDeleted:
    await session.broker.groups.delete(request.group)
    return messages.GroupDeleted()


async def reset_group(session: SessionPort, request: messages.ResetGroup) -> messages.GroupReset:
    check_start(request.start, request.start_at)
    moved = await session.broker.groups.reset(
        request.group,
        request.topic,
        request.partitions,
        request.start,
        request.start_at,
        dry_run=request.dry_run,
    )
    return messages.GroupReset(moved)
