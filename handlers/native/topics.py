"""CreateTopic, AlterTopic, DeleteTopic, DeleteRecords, DescribeTopics, Ping, Unregister."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.handlers.native import groups
from krappy.handlers.registry import serves
from krappy.ports import SessionPort
from krappy.wire import messages


@serves(messages.CreateTopic, needs=needs.topic(Op.CREATE, Op.DESCRIBE) + needs.cluster(Op.CREATE))
async def create_topic(session: SessionPort, request: messages.CreateTopic) -> messages.TopicCreated:
    access, factor, replicas = session.access, request.replication_factor, None
    partitions = request.partitions or session.broker.config.default_partitions
    if factor is not None and not (request.if_absent and access.find_topic(request.topic, Op.CREATE)):
        replicas = await access.creating(request.topic).place(partitions, factor)
    topic, created = await access.create_topic(
        request.topic, partitions, request.config or {}, if_absent=request.if_absent, replicas=replicas
    )
    told = created or access.may(Resource.TOPIC, request.topic, Op.DESCRIBE)
    return messages.TopicCreated(created, topic.count if told else 0)


@serves(messages.AlterTopic, needs=needs.topic(Op.ALTER, Op.ALTER_CONFIGS))
async def alter_topic(session: SessionPort, request: messages.AlterTopic) -> messages.TopicAltered:
    await session.access.alter_topic(request.topic, request.config, request.partitions)
    return messages.TopicAltered()


@serves(messages.DeleteTopic, needs=needs.topic(Op.DELETE))
async def delete_topic(session: SessionPort, request: messages.DeleteTopic) -> messages.TopicDeleted:
    await session.access.delete_topic(request.topic)
    return messages.TopicDeleted()


@serves(messages.DeleteRecords, needs=needs.topic(Op.DELETE))
async def delete_records(session: SessionPort, request: messages.DeleteRecords) -> messages.RecordsDeleted:
    topic = session.access.topic(request.topic, Op.DELETE)
    wanted = [(topic.led(index), before) for index, before in request.before]
    for partition, before in wanted:  # all are checked first, so that a request that is wrong deletes nothing
        partition.check_deletable(before)
    starts = [(partition, await session.access.delete_records(partition, before)) for partition, before in wanted]
    for partition, start in starts:
        await partition.deleted_everywhere(start)
    return messages.RecordsDeleted([(partition.index, start) for partition, start in starts])


@serves(messages.DescribeTopics, needs=needs.topic(Op.DESCRIBE, Op.DESCRIBE_CONFIGS))
async def describe_topics(session: SessionPort, request: messages.DescribeTopics) -> messages.TopicsDescribed:
    access = session.access
    there = access.topics(Op.DESCRIBE)
    names = request.topics
    if names is None:
        names = sorted(name for name, topic in there.items() if not topic.internal)
    described = []
    for name in names:
        if request.topics is not None or name in there:  # a topic may be deleted while others are described
            told = access.topic(name, Op.DESCRIBE).describe()
            if not access.may(Resource.TOPIC, name, Op.DESCRIBE_CONFIGS):
                told = {**told, "config": {}, "settings": {}}
            described.append(told)
        await session.pause()
    return messages.TopicsDescribed(described)


@serves(messages.Ping, needs=needs.NOTHING)
def ping(session: SessionPort, request: messages.Ping) -> messages.Pong:
    broker, login = session.broker, session.login
    if request.broker:
        session.says_broker = True
    if login is not None and login.user is None:
        return messages.Pong("", "", broker.now_ms(), session.max_frame, mechanisms=list(login.mechanisms))
    return messages.Pong(
        broker.version,
        broker.cluster_id,
        broker.now_ms(),
        session.max_frame,
        broker.http_address or None,
        max(1, len(broker.image.brokers)),
        None if login is None else list(login.mechanisms),
        str(session.principal),
        int(1000 * session.throttled),
    )


@serves(messages.Unregister, needs=needs.NOTHING)
def unregister(
    session: SessionPort, request: messages.Unregister
) -> messages.Unregistered | Coroutine[Any, Any, messages.Unregistered]:
    if request.unseen is not None or request.polls is not None:
        uncount = groups.uncount(session, request)
        if uncount is not None:
            return _unregister(session, request, uncount)
    session.remove(request.handle)
    return messages.Unregistered()


async def _unregister(
    session: SessionPort, request: messages.Unregister, uncount: Callable[[], Awaitable[None]]
) -> messages.Unregistered:
    await uncount()
    session.remove(request.handle)
    return messages.Unregistered()
